"""Another value for each option of a factory, from its signature: for tests that an option makes a difference."""

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal


def other_values(factory: Callable[..., Any], leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """For each option, a value that differs from its default (or from 4, where it has none)."""
    hints = typing.get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    parameters = inspect.signature(factory).parameters
    return {name: _other(hints[name], entry.default) for name, entry in parameters.items() if name not in leave_out}


def _other(hint: Any, default: Any) -> Any:
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    for kind in kinds:
        if typing.get_origin(kind) is Literal:
            return next(choice for choice in typing.get_args(kind) if choice != default)
        if typing.get_origin(kind) is Mapping:
            return {1: 3.0}
        if kind is bool:
            return not default
        if kind is int:
            return default + 1 if isinstance(default, int) else 5
        if kind is float:
            return default / 2 if isinstance(default, (int, float)) and default else 0.7
    raise TypeError(f"no other value is known for {hint}")
