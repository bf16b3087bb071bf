"""From plain values, as YAML or JSON give them, to typed dataclasses, and back.

Every error names the file, the full path of the key, and the nearest key that exists. pydantic, msgspec, cattrs and
dacite name the path at best, so this is our own code.
"""

import dataclasses
import math
import re
import typing
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, Literal

import yaml

from deepbdc._registry import nearest
from deepbdc.errors import UserError

_WORDS = {int: "a whole number", float: "a finite number", str: "text", bool: "true or false"}


def read_yaml(text: str) -> Any:
    """The values of a YAML text, in which 1e-3 is a number."""
    return yaml.load(text, _Loader)


def write_yaml(values: Any) -> str:
    """Values as YAML that `read_yaml` gives back unchanged."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, as everybody expects; YAML 1.1 reads it as text."""


class _Dumper(yaml.SafeDumper):
    """Puts the text "1e-3" in quotes, so that `_Loader` reads it back as text, and escapes line breaks of Unicode."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Use double quotes where PyYAML would fold the text at a character that it cannot read back."""
        return self.represent_scalar(
            "tag:yaml.org,2002:str", text, '"' if re.search("[\x85\u2028\u2029]", text) else None
        )


_Dumper.add_representer(str, _Dumper.represent_text)

for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )


def build(kind: type, content: Any, title: str, prefix: str = "") -> Any:
    """An instance of the dataclass ``kind`` from plain values. Every key and type is checked.

    Args:
        kind: The dataclass.
        content: A mapping from the names of its fields to values.
        title: Names the file in errors.
        prefix: The path of the section within the file, with a dot at its end.
    """
    if not isinstance(content, Mapping):
        raise UserError(f"{title}: {prefix.rstrip('.')} must hold keys and values, got {content!r}")
    hints = typing.get_type_hints(kind)
    known = [entry.name for entry in dataclasses.fields(kind)]
    for key in content:
        if key not in known:
            raise UserError(f"{title} has a key {prefix + str(key)!r} that does not exist{nearest(str(key), known)}")
    missing = [
        entry.name
        for entry in dataclasses.fields(kind)
        if entry.default is dataclasses.MISSING
        and entry.default_factory is dataclasses.MISSING
        and entry.name not in content
    ]
    if missing:
        raise UserError(f"{title} lacks {', '.join(prefix + name for name in missing)}")
    return kind(**{key: _convert(hints[key], value, title, prefix + key) for key, value in content.items()})


def _convert(hint: Any, value: Any, title: str, key: str) -> Any:
    """``value`` as the type that the dataclass declares, or an error that names the key."""
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin in (UnionType, typing.Union):
        if value is None and NoneType in choices:
            return None
        return _convert(_member(choices, value), value, title, key)
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), value, title, key + ".")
    if origin is Literal:
        if value not in choices:
            raise UserError(f"{title}: {key} must be one of {', '.join(map(str, choices))}, got {value!r}")
        return value
    if origin is tuple:
        return _convert_tuple(choices, value, title, key)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if origin is not None:
        return _convert_mapping(choices[1], value, title, key)
    if not _is(hint, value):
        raise UserError(f"{title}: {key} must be {_WORDS[hint]}, got {value!r}")
    return value


def _member(choices: tuple[Any, ...], value: Any) -> Any:
    """The type of a union that a value is meant for: a tuple for a list, else the first other one."""
    kinds = [choice for choice in choices if choice is not NoneType]
    tuples = [kind for kind in kinds if typing.get_origin(kind) is tuple]
    if tuples and isinstance(value, (list, tuple)):
        return tuples[0]
    return next(kind for kind in kinds if kind not in tuples or len(kinds) == 1)


def _convert_tuple(choices: tuple[Any, ...], value: Any, title: str, key: str) -> tuple[Any, ...]:
    """A list as a tuple; a single value where a list of any length is expected is a list of one."""
    values = value if isinstance(value, (list, tuple)) else [value]
    if choices[-1] is not Ellipsis and len(values) != len(choices):
        raise UserError(f"{title}: {key} must be a list of {len(choices)} values, got {value!r}")
    return tuple(_convert(choices[0], part, title, key) for part in values)


def _convert_mapping(kind: Any, value: Any, title: str, key: str) -> dict[str, Any]:
    """A mapping from names to dataclasses, or to plain values whose names are not known here.

    If the dataclass has a ``kind_of``, each name stands for a dataclass of its own, and null leaves a name out.
    """
    if not isinstance(value, Mapping):
        raise UserError(f"{title}: {key} must hold keys and values, got {value!r}")
    for name in value:
        if not isinstance(as_number(name), str):
            raise UserError(f"{title}: {key} has a key {name!r} that is not the name of an option")
    kind_of = getattr(kind, "kind_of", None)
    if kind_of is not None:
        return {
            name: build(_named_kind(kind_of, name, title, key), part, title, f"{key}.{name}.")
            for name, part in value.items()
            if part is not None
        }
    if dataclasses.is_dataclass(kind):
        return {name: build(typing.cast(type, kind), part, title, f"{key}.{name}.") for name, part in value.items()}
    return {name: _plain_value(part, title, f"{key}.{name}") for name, part in value.items()}


def _named_kind(kind_of: Callable[[str], type], name: str, title: str, key: str) -> type:
    """The dataclass that a name stands for. An unknown name is an error that names the key."""
    try:
        return kind_of(name)
    except UserError as error:
        raise UserError(f"{title}: {key}: {error}") from None


def _plain_value(value: Any, title: str, key: str) -> Any:
    """A value in the one form that YAML and JSON give back as it was written."""
    if isinstance(value, Mapping):
        for name in value:
            if not (_is(str, name) or _is(int, name)):
                raise UserError(f"{title}: {key} has a key {name!r} that is neither text nor a whole number")
        return {as_number(name): _plain_value(part, title, f"{key}.{name}") for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_value(part, title, key) for part in value]
    if value is None or any(_is(kind, value) for kind in (str, bool, int, float)):
        return value
    raise UserError(f"{title}: {key} must be text, a finite number, true, false or null, got {value!r}")


def _is(kind: type, value: Any) -> bool:
    """Whether a value has this type. True is not a number here, and neither are infinity and NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def as_number(key: Any) -> Any:
    """A key as it was before JSON turned it into text: "1" was the number of shots 1."""
    return int(key) if isinstance(key, str) and re.fullmatch(r"-?[0-9]{1,18}", key) else key


def plain(value: Any) -> Any:
    """Dataclasses as dictionaries and tuples as lists, all the way down."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, (list, tuple)) else value
