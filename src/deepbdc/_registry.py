"""A registry is a decorator on plain functions whose names are the keys."""

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from deepbdc.errors import UserError, WrongType

T = TypeVar("T")


class Registry(Generic[T]):
    """Named factories of one kind of thing, created by name with checked options."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._factories: dict[str, Callable[..., T]] = {}

    def register(self, factory: Callable[..., T]) -> Callable[..., T]:
        """Add ``factory`` under its own name (a decorator)."""
        self._factories[factory.__name__] = factory
        return factory

    def names(self) -> list[str]:
        """The registered names, sorted."""
        return sorted(self._factories)

    def create(self, name: str, **options: Any) -> T:
        """Call the factory called ``name``; unknown names and options are errors that name the nearest right one."""
        factory = self._factories.get(name)
        if factory is None:
            raise UserError(f"no {self.kind} is called {name!r}{nearest(name, self.names())}")
        return call_checked(factory, f"{self.kind} {name!r}", options)


def call_checked(factory: Callable[..., T], title: str, options: dict[str, Any]) -> T:
    """Call ``factory(**options)`` after checking the options against its signature."""
    known = list(inspect.signature(factory).parameters)
    for option in options:
        if option not in known:
            raise WrongType(f"{title} has no option {option!r}{nearest(option, known)}")
    return factory(**options)


def nearest(given: str, known: list[str]) -> str:
    """The end of an error message: what was probably meant, and all there is."""
    close = get_close_matches(given, known, n=1)
    guess = f": did you mean {close[0]!r}?" if close else "."
    return f"{guess} Known: {', '.join(known)}."
