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
        create: Makes a visitor with a given id, who starts anew.
        restore: Brings back the visitor with a given id, whose work was kept on disk; None if there is none.
        release: Called with a visitor who is forgotten.
        limits: How many visitors to remember, and for how long.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        create: Callable[[str], Visitor],
        limits: AppLimits,
        clock: Callable[[], float] = time.monotonic,
        restore: Callable[[str], Visitor | None] = lambda _: None,
        release: Callable[[Visitor], None] = lambda _: None,
    ) -> None:
        self._create = create
        self._restore = restore
        self._release = release
        self._limits = limits
        self._clock = clock
        self._lock = Lock()
        self._visitors: OrderedDict[str, tuple[Visitor, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._visitors)

    def find(self, visitor_id: str | None) -> Visitor | None:
        """The visitor with this id, from memory or from the disk; None if there is none."""
        if visitor_id is None:
            return None
        with self._lock:
            self._forget_the_idle()
            known = visitor_id in self._visitors
        restored = None if known else self._restore(visitor_id)  # slow, so others need not wait
        with self._lock:
            if visitor_id not in self._visitors:
                if restored is None:
                    return None
                self._make_room()
                self._visitors[visitor_id] = (restored, self._clock())
            visitor, _ = self._visitors[visitor_id]
            self._visitors[visitor_id] = (visitor, self._clock())
            self._visitors.move_to_end(visitor_id)
            self._let_others_rest()
            return visitor

    def welcome(self) -> tuple[str, Visitor]:
        """Add a new visitor. Return their id, which nobody can guess, and the visitor."""
        visitor_id = secrets.token_urlsafe(24)
        visitor = self._create(visitor_id)
        with self._lock:
            self._forget_the_idle()
            self._make_room()
            self._visitors[visitor_id] = (visitor, self._clock())
        return visitor_id, visitor

    def _make_room(self) -> None:
        if len(self._visitors) >= self._limits.visitors:
            self._forget_one()

    def _forget_the_idle(self) -> None:
        oldest = self._clock() - self._limits.idle_seconds
        while self._visitors and next(iter(self._visitors.values()))[1] < oldest:
            _, (visitor, _) = self._visitors.popitem(last=False)
            self._release(visitor)

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
        visitor, _ = self._visitors.pop(next(untouched, next(iter(self._visitors))))
        self._release(visitor)
