"""The files of recipes: where they are, and their values after inheritance and overrides. Nothing here needs torch."""

import typing
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml

from deepbdc._registry import nearest
from deepbdc.errors import UserError
from deepbdc.recipes.values import as_number, read_yaml

RECIPES = Path(__file__).parent


def list_recipes() -> list[str]:
    """Names of the recipes that come with the package, like ``cifar_fs/stl_deepbdc``."""
    return list(_names())


@cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(path.relative_to(RECIPES).with_suffix("").as_posix() for path in RECIPES.rglob("*.yaml")))


def read_recipe(name_or_path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The values of a recipe by its name or file, with ``key=value`` overrides, not checked yet.

    A recipe may inherit from one other (``inherits: NAME``, or a path relative to the file), which may not inherit.
    """
    path = _find(name_or_path)
    content = _read(path)
    parent = content.pop("inherits", None)
    if parent is not None:
        if not isinstance(parent, str):
            raise UserError(f"{path}: inherits must name one recipe, got {parent!r}")
        base = _read(_find(parent, path.parent))
        if "inherits" in base:
            raise UserError(f"{path} inherits from {parent}, which inherits itself: one parent is the limit")
        content = _merge(base, content)
    # All overrides are one change: their order does not matter when one of them is the name of another method.
    change: dict[str, Any] = {}
    for override in overrides:
        change = _merge(change, parse_override(override))
    return _merge(content, change)


def parse_override(text: str) -> dict[str, Any]:
    """``a.b=value`` as nested dictionaries.

    >>> parse_override("pretrain.lr=1e-3")
    {'pretrain': {'lr': 0.001}}
    """
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")):
        raise UserError(f"{text!r} is not of the form key=value, like pretrain.epochs=10")
    try:
        nested = read_yaml(value)
    except yaml.YAMLError:
        raise UserError(f"{text!r}: the value after = is not valid YAML: {value!r}") from None
    for part in reversed(key.split(".")):
        nested = {part: nested}
    return typing.cast("dict[str, Any]", nested)


def _find(name_or_path: str | Path, beside: Path | None = None) -> Path:
    """The file of a recipe: one of ours by its name, or a path, relative to the folder ``beside`` if that is given."""
    for path in (RECIPES / f"{name_or_path}.yaml", (beside or Path()) / name_or_path):
        if path.is_file():
            return path
    raise FileNotFoundError(f"no recipe is called {str(name_or_path)!r}{nearest(str(name_or_path), list_recipes())}")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = deepcopy(_parsed(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold keys and values, like 'method: protonet'")
    return content


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Any:
    """The values of a file. Parsing is slow, and tables of the paper read the same files hundreds of times."""
    return read_yaml(text)


def _merge(base: Any, change: Any) -> dict[str, Any]:
    """``base`` with the values of ``change``, section by section. Another method or backbone drops the old options."""
    merged = {as_number(key): value for key, value in base.items()}
    if _differ(base, change, "method"):
        merged.pop("options", None)
    for key, value in change.items():
        old = merged.get(as_number(key))
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[as_number(key)] = _merge(old, value) if both and not _differ(old, value, "name") else value
    return merged


def _differ(base: Any, change: Any, key: str) -> bool:
    return key in base and key in change and base[key] != change[key]
