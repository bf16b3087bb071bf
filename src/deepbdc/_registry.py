"""A registry: factories of one kind of thing, registered under names by a decorator."""

import inspect
import warnings
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from deepbdc.errors import Note, UserError, WrongType

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


PLUGINS = "deepbdc.plugins"
"""The entry points by which other packages name modules that register things of their own."""


class Registry(Generic[T]):
    """Named factories of one kind of thing. A factory is a function or a class.

    Modules of other packages that register more are imported when a list of all names, or an unknown one, is asked for.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._factories: dict[str, Callable[..., T]] = {}

    def register(self, factory: F) -> F:
        """Add ``factory`` under its own name (a decorator)."""
        return self.named(factory.__name__)(factory)

    def named(self, name: str) -> Callable[[F], F]:
        """Add a factory under another name than its own (a decorator)."""

        def add(factory: F) -> F:
            if name in self._factories:
                raise ValueError(f"two factories are registered as the {self.kind} {name!r}")
            self._factories[name] = factory
            return factory

        return add

    def names(self) -> list[str]:
        """The registered names, sorted."""
        import_plugins()
        return sorted(self._factories)

    def find(self, name: str) -> Any:
        """The factory called ``name``; an unknown name is an error that names the nearest right one."""
        if name not in self._factories:
            import_plugins()
        if name not in self._factories:
            raise UserError(f"no {self.kind} is called {name!r}{nearest(name, self.names())}")
        return self._factories[name]

    def create(self, name: str, **options: Any) -> T:
        """Call the factory called ``name``; an unknown option is an error that names the nearest right one."""
        made: T = call_checked(self.find(name), f"{self.kind} {name!r}", options)
        return made


@cache
def import_plugins() -> None:
    """Import the modules that installed packages name as entry points of the group `PLUGINS`, once."""
    for entry in entry_points(group=PLUGINS):
        try:
            entry.load()
        except Exception as error:  # the plugin is not ours: nothing else should fail with it
            warnings.warn(f"the plugin {entry.name!r} ({entry.value}) cannot be imported: {error}", Note, stacklevel=3)


def call_checked(factory: Callable[..., T], title: str, options: dict[str, Any]) -> T:
    """Call ``factory(**options)`` after checking the options against its signature."""
    known = list(inspect.signature(factory).parameters)
    for option in options:
        if option not in known:
            raise WrongType(f"{title} has no option {option!r}{nearest(option, known)}")
    parameters = inspect.signature(factory).parameters.values()
    missing = [entry.name for entry in parameters if entry.default is entry.empty and entry.name not in options]
    if missing:
        raise WrongType(f"{title} needs {', '.join(missing)}")
    return factory(**options)


def nearest(given: str, known: list[str]) -> str:
    """The end of an error message: what was probably meant, and all there is."""
    close = get_close_matches(given, known, n=1)
    guess = f": did you mean {close[0]!r}?" if close else "."
    return f"{guess} Known: {', '.join(known)}."
