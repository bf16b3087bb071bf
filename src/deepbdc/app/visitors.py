"""Who visits the web page: each has a random id, and what belongs to one is never seen by another."""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from threading import Lock

from deepbdc.app.limits import Limits
from deepbdc.app.visitor import Visitor


class Visitors:
    """The visitors by their ids, the one who was away longest first.

    Args:
        create: Makes a new visitor.
        limits: How many are kept, and for how long.
        clock: Seconds that only ever grow.
    """

    def __init__(self, create: Callable[[], Visitor], limits: Limits, clock: Callable[[], float] = time.monotonic):
        self._create = create
        self._limits = limits
        self._clock = clock
        self._lock = Lock()
        self._visitors: OrderedDict[str, tuple[Visitor, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._visitors)

    def find(self, visitor_id: str | None) -> Visitor | None:
        """The visitor with this id, if known."""
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
        """A new visitor and the id, which nobody can guess."""
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
        """A fitted classifier takes some megabytes more than its pictures: only the latest visitors keep theirs."""
        latest = islice(reversed(self._visitors.values()), self._limits.fitted, self._limits.fitted + 1)
        for visitor, _ in latest:
            visitor.rest()

    def _forget_one(self) -> None:
        """Rather one who has done nothing yet: somebody who only knocks often must not cost others their work."""
        untouched = (key for key, (visitor, _) in self._visitors.items() if not visitor.touched)
        self._visitors.pop(next(untouched, next(iter(self._visitors))))
