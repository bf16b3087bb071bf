"""Recipes: everything about an experiment in one small YAML file, checked before anything is trained."""

import dataclasses
import math
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal

import yaml

from deepbdc._registry import nearest
from deepbdc.errors import UserError

RECIPES = Path(__file__).parent.parent / "recipes"

Augmentation = Literal["paper", "crop_flip"]  # of data/transforms.py, which needs torch
Precision = Literal["32-true", "bf16-mixed", "16-mixed"]


@dataclass(frozen=True)
class Optimisation:
    """SGD with Nesterov momentum and a schedule of the learning rate; what all stages have in common."""

    epochs: int
    lr: float = 0.05
    t_lr: float | None = None
    """Learning rate of the scale ``t`` of BDC pooling (default: that of the network)."""
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: Literal["multistep", "cosine"] = "multistep"
    milestones: tuple[int, ...] = ()
    """Of the multi-step schedule: after so many epochs the rate is multiplied by ``gamma``."""
    gamma: float = 0.1
    warmup: float = 0.0
    """Epochs in which the rate grows linearly from 0, for either schedule. Cosine counts in steps, not epochs."""
    accumulate: int = 1
    """Into how many parts a step is cut, one after the other, when the memory is short."""
    select: Literal["best", "last"] = "last"
    """The epoch to keep: the one with the best few-shot accuracy on the validation classes, or the last."""
    validate_from: int = 1
    """The first epoch that is validated, counted from 1."""
    validate_every: int = 1
    """Epochs from one validation to the next; the last epoch is always validated."""
    validation_shot: int | None = None
    """Shots of the validation episodes of this stage, where they are not those of ``validation``."""


@dataclass(frozen=True)
class Pretrain(Optimisation):
    """Cross-entropy over all classes of the meta-training set."""

    batch_size: int = 64


@dataclass(frozen=True)
class Distill(Pretrain):
    """Sequential self-distillation: each generation a fresh student of the one before."""

    generations: int = 1
    temperature: float = 4.0
    distillation_weight: float = 0.5
    """Of the teacher's part of the loss; the labels have the rest."""


@dataclass(frozen=True)
class Meta(Optimisation):
    """Episodic training."""

    lr: float = 1e-4
    way: int = 5
    shot: int = 1
    query: int = 16
    episodes: int = 600
    """Episodes an epoch."""
    episodes_per_step: int = 1
    select: Literal["best", "last"] = "best"


@dataclass(frozen=True)
class Validation:
    """Episodes from the validation classes, the same ones in every epoch."""

    shot: int = 1
    way: int = 5
    query: int = 15
    episodes: int = 600


@dataclass(frozen=True)
class Evaluation:
    """The final evaluation on the test classes."""

    shots: tuple[int, ...] = (1, 5)
    way: int = 5
    query: int = 15
    episodes: int = 2000
    seed: int = 0


@dataclass(frozen=True)
class Recipe:
    """An experiment. ``pretrain``, ``distill`` and ``meta`` are the stages, in this order; null leaves one out."""

    method: str
    data: str
    backbone: Mapping[str, Any] = field(default_factory=lambda: {"name": "resnet12"})
    """``name`` and the options of `create_backbone`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the method, as for `create_method`."""
    size: int | None = None
    """Side of the images in pixels, where it is not the backbone's own."""
    dropout: float = 0.0
    """On the representation, before the linear head of pretrain and distill."""
    augmentation: Augmentation = "paper"
    seed: int = 1
    workers: int = 4
    """Processes that read and augment image files. Arrays in memory need none."""
    precision: Precision = "32-true"
    channels_last: bool = False
    sync_batchnorm: bool = False
    """Batch norm over all processes (GPU only); otherwise each process uses the statistics of its own part."""
    pretrain: Pretrain | None = None
    distill: Distill | None = None
    meta: Meta | None = None
    validation: Validation = field(default_factory=Validation)
    evaluation: Evaluation | None = field(default_factory=Evaluation)
    """null leaves the test classes alone, while settings are being chosen."""

    @property
    def evaluation_settings(self) -> Evaluation:
        """How to evaluate, when asked to: as the recipe says, or as usual."""
        return self.evaluation or Evaluation()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, all of them, defaults included."""
        plain: dict[str, Any] = _plain(dataclasses.asdict(self))
        return plain

    def as_yaml(self) -> str:
        """The recipe with nothing left to guess, as a file that can be given in place of its name."""
        return yaml.dump(self.as_dict(), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def list_recipes() -> list[str]:
    """Names of the recipes that come with the package, like ``cifar_fs/stl_deepbdc``."""
    return sorted(path.relative_to(RECIPES).with_suffix("").as_posix() for path in RECIPES.rglob("*.yaml"))


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe by its name or file, with ``key=value`` overrides such as ``pretrain.epochs=10``.

    A recipe may inherit from one other (``inherits: NAME``, or a path relative to the file), which may not inherit.
    Unknown keys are errors that name the nearest right one.
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
    return recipe_from_dict(_merge(content, change), str(name_or_path))


def recipe_from_dict(content: Mapping[str, Any], title: str = "the recipe") -> Recipe:
    """A checked recipe of plain values."""
    recipe: Recipe = _build(Recipe, content, title, "")
    _check(recipe, title)
    return recipe


def parse_override(text: str) -> dict[str, Any]:
    """``a.b=value`` as nested dictionaries.

    >>> parse_override("pretrain.lr=1e-3")
    {'pretrain': {'lr': 0.001}}
    """
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")):
        raise UserError(f"{text!r} is not of the form key=value, like pretrain.epochs=10")
    try:
        nested = yaml.load(value, _Loader)
    except yaml.YAMLError:
        raise UserError(f"{text!r}: what stands after = cannot be read: {value!r}") from None
    for part in reversed(key.split(".")):
        nested = {part: nested}
    return typing.cast("dict[str, Any]", nested)


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, as everybody expects."""


class _Dumper(yaml.SafeDumper):
    """Puts the text "1e-3" in quotes, so that `_Loader` gives it back as text, and escapes line breaks of Unicode."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Double quotes where PyYAML would fold the text at a character that it cannot read back."""
        return self.represent_scalar(
            "tag:yaml.org,2002:str", text, '"' if re.search("[\x85\u2028\u2029]", text) else None
        )


_Dumper.add_representer(str, _Dumper.represent_text)

for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )


def _find(name_or_path: str | Path, beside: Path | None = None) -> Path:
    """The file of a recipe: one of ours by its name, or a path, relative to the folder ``beside`` if there is one."""
    for path in (RECIPES / f"{name_or_path}.yaml", (beside or Path()) / name_or_path):
        if path.is_file():
            return path
    raise FileNotFoundError(f"no recipe is called {str(name_or_path)!r}{nearest(str(name_or_path), list_recipes())}")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold keys and values, like 'method: protonet'")
    return content


def _merge(base: Any, change: Any) -> dict[str, Any]:
    """``base`` with the values of ``change``, by sections. Another method or backbone starts its options anew."""
    merged = {_number(key): value for key, value in base.items()}
    if _differ(base, change, "method"):
        merged.pop("options", None)
    for key, value in change.items():
        old = merged.get(_number(key))
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[_number(key)] = _merge(old, value) if both and not _differ(old, value, "name") else value
    return merged


def _differ(base: Any, change: Any, key: str) -> bool:
    return key in base and key in change and base[key] != change[key]


def _number(key: Any) -> Any:
    """A key as it was before JSON, which knows only text: "1" was 1, a number of shots."""
    return int(key) if isinstance(key, str) and re.fullmatch(r"-?[0-9]{1,18}", key) else key


def _build(kind: type, content: Any, title: str, prefix: str) -> Any:
    """An instance of a dataclass from plain values; every key and type is checked."""
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
    """``value`` as the type that the dataclass says, or an error that names the key."""
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin in (UnionType, typing.Union):
        if value is None and NoneType in choices:
            return None
        (hint,) = (choice for choice in choices if choice is not NoneType)
        return _convert(hint, value, title, key)
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), value, title, key + ".")
    if origin is Literal:
        if value not in choices:
            raise UserError(f"{title}: {key} must be one of {', '.join(map(str, choices))}, got {value!r}")
        return value
    if origin is tuple:
        values = value if isinstance(value, (list, tuple)) else [value]
        return tuple(_convert(choices[0], part, title, key) for part in values)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if origin is not None:
        return _options(value, title, key)
    if not _is(hint, value):
        words = {int: "a whole number", float: "a finite number", str: "text", bool: "true or false"}
        raise UserError(f"{title}: {key} must be {words[hint]}, got {value!r}")
    return value


def _is(kind: type, value: Any) -> bool:
    """Whether a value is of this type; true is no number, and neither are infinity and nan."""
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _options(value: Any, title: str, key: str) -> dict[str, Any]:
    """Options of a method or backbone: their names are not known here, but they must be names."""
    if not isinstance(value, Mapping):
        raise UserError(f"{title}: {key} must hold keys and values, got {value!r}")
    for name in value:
        if not isinstance(_number(name), str):
            raise UserError(f"{title}: {key} has a key {name!r} that is not the name of an option")
    return {name: _option(part, title, f"{key}.{name}") for name, part in value.items()}


def _option(value: Any, title: str, key: str) -> Any:
    """A value in the one form that comes back from YAML and JSON as it went."""
    if isinstance(value, Mapping):
        for name in value:
            if not (_is(str, name) or _is(int, name)):
                raise UserError(f"{title}: {key} has a key {name!r} that is neither text nor a whole number")
        return {_number(name): _option(part, title, f"{key}.{name}") for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_option(part, title, key) for part in value]
    if value is None or any(_is(kind, value) for kind in (str, bool, int, float)):
        return value
    raise UserError(f"{title}: {key} must be text, a finite number, true, false or null, got {value!r}")


def _check(recipe: Recipe, title: str) -> None:
    """What types do not tell."""
    if not isinstance(recipe.backbone.get("name"), str):
        raise UserError(f"{title}: backbone needs a name, like 'backbone: {{name: resnet12}}'")
    if not 0 <= recipe.dropout < 1:
        raise UserError(f"{title}: dropout must be at least 0 and below 1, got {recipe.dropout}")
    if recipe.workers < 0 or recipe.seed < 0 or (recipe.size is not None and recipe.size < 1):
        raise UserError(f"{title}: workers and seed must not be negative, and size must be positive")
    for name in ("pretrain", "distill", "meta"):
        stage = getattr(recipe, name)
        if stage is not None:
            _check_stage(stage, f"{title}: {name}")
    if recipe.distill is not None and recipe.pretrain is None and recipe.distill.generations > 0:
        raise UserError(f"{title}: distill needs a pretrain stage, which makes its first teacher")
    _check_counts(recipe.validation, f"{title}: validation", ("shot", "way", "query", "episodes"))
    evaluation = recipe.evaluation_settings
    _check_counts(evaluation, f"{title}: evaluation", ("way", "query", "episodes"))
    if not evaluation.shots or min(evaluation.shots) < 1:
        raise UserError(f"{title}: evaluation.shots must be one or more positive numbers")


def _check_stage(stage: Optimisation, title: str) -> None:
    _check_counts(stage, title, ("epochs", "accumulate", "validate_from", "validate_every"))
    if isinstance(stage, Pretrain):
        _check_counts(stage, title, ("batch_size",))
    if isinstance(stage, Meta):
        _check_counts(stage, title, ("way", "shot", "query", "episodes", "episodes_per_step"))
        if stage.accumulate != 1:
            raise UserError(f"{title}.accumulate: each episode of a step is a part of its own already")
    if isinstance(stage, Distill):
        if stage.generations < 0 or not stage.temperature > 0:
            raise UserError(f"{title}: generations must not be negative, and temperature must be positive")
        if not 0 <= stage.distillation_weight <= 1:
            raise UserError(f"{title}.distillation_weight must be 0 to 1, got {stage.distillation_weight}")
    if stage.validation_shot is not None:
        _check_counts(stage, title, ("validation_shot",))
    if not stage.lr > 0 or (stage.t_lr is not None and stage.t_lr < 0):
        raise UserError(f"{title}: lr must be positive and t_lr not negative, got {stage.lr} and {stage.t_lr}")
    if not 0 <= stage.momentum < 1 or stage.weight_decay < 0 or not 0 < stage.gamma <= 1:
        raise UserError(f"{title}: momentum must be in [0, 1), weight_decay not negative, gamma in (0, 1]")
    if not 0 <= stage.warmup < stage.epochs:
        raise UserError(f"{title}.warmup must be fewer epochs than the {stage.epochs} there are, got {stage.warmup}")
    if list(stage.milestones) != sorted(set(stage.milestones)) or min(stage.milestones, default=1) < 1:
        raise UserError(f"{title}.milestones must be positive and grow, got {list(stage.milestones)}")


def _check_counts(part: Any, title: str, names: Sequence[str]) -> None:
    for name in names:
        if getattr(part, name) < 1:
            raise UserError(f"{title}.{name} must be at least 1, got {getattr(part, name)}")


def _plain(value: Any) -> Any:
    """Tuples as lists, all the way down."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value
