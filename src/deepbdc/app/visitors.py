"""All visitors of the web page. Each has a random id and sees only their own classes and pictures."""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from threading import Lock

from deepbdc.app.limits import AppLimits
from deepbdc.app.visitor import Visitor


class Visitors:
    """The visitors by their ids, in the order of their last request, the oldest first.

    Args:
        create: Makes a new visitor.
        limits: How many visitors to remember, and for how long.
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, create: Callable[[], Visitor], limits: AppLimits, clock: Callable[[], float] = time.monotonic):
        self._create = create
        self._limits = limits
        self._clock = clock
        self._lock = Lock()
        self._visitors: OrderedDict[str, tuple[Visitor, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._visitors)

    def find(self, visitor_id: str | None) -> Visitor | None:
        """The visitor with this id; None if there is none."""
        with self._lock:
            self._forget_the_idle()
            if visitor_id is None or visitor_id not in self._visitors:
                return None
            visitor, _ = self._visitors[visitor_id]
            self._visitors[visitor_id] = (visitor, self._clock())
            self._visitors.move_to_end(visitor_id)
            self._let_others_rest()
            return visitor

    def welcome(self) -> tuple[str, Visitor]:
        """Add a new visitor. Return their id, which nobody can guess, and the visitor."""
        visitor_id, visitor = secrets.token_urlsafe(24), self._create()
        with self._lock:
            self._forget_the_idle()
            if len(self._visitors) >= self._limits.visitors:
                self._forget_one()
            self._visitors[visitor_id] = (visitor, self._clock())
        return visitor_id, visitor

    def _forget_the_idle(self) -> None:
        oldest = self._clock() - self._limits.idle_seconds
        while self._visitors and next(iter(self._visitors.values()))[1] < oldest:
            self._visitors.popitem(last=False)

    def _let_others_rest(self) -> None:
        """Only the latest visitors keep their fitted classifier, which needs some megabytes besides the pictures."""
        latest = islice(reversed(self._visitors.values()), self._limits.fitted, self._limits.fitted + 1)
        for visitor, _ in latest:
            visitor.rest()

    def _forget_one(self) -> None:
        """Make room for a new visitor.

        Visitors who have changed nothing are forgotten first. Otherwise, many requests without a cookie could delete
        the work of others.
        """
        untouched = (key for key, (visitor, _) in self._visitors.items() if not visitor.touched)
        self._visitors.pop(next(untouched, next(iter(self._visitors))))
