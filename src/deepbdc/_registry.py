"""Registries of factory functions: a decorator registers a function under its own name."""

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from deepbdc.errors import UserError, WrongType

T = TypeVar("T")


class Registry(Generic[T]):
    """Factories for one kind of object, which are called by name with checked options."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._factories: dict[str, Callable[..., T]] = {}

    def register(self, factory: Callable[..., T]) -> Callable[..., T]:
        """Register ``factory`` under its own name; used as a decorator."""
        self._factories[factory.__name__] = factory
        return factory

    def names(self) -> list[str]:
        """Return the registered names, sorted."""
        return sorted(self._factories)

    def create(self, name: str, **options: Any) -> T:
        """Call the factory ``name``; the error for an unknown name or option suggests the most similar one."""
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
    """Write the end of an error message: the most similar known name, if there is one, and all known names."""
    close = get_close_matches(given, known, n=1)
    guess = f": did you mean {close[0]!r}?" if close else "."
    return f"{guess} Known: {', '.join(known)}."
