"""The recipe of an experiment: its checked values, its stages, and the method that it describes."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deepbdc._registry import nearest
from deepbdc.errors import UserError
from deepbdc.preprocessing import AtTestTime
from deepbdc.recipes.files import read_recipe
from deepbdc.recipes.values import build, plain, write_yaml
from deepbdc.stages.settings import Augmentation, StageSettings, check_counts

if TYPE_CHECKING:
    from deepbdc.methods import Method
    from deepbdc.stages import Objective

Precision = Literal["32-true", "bf16-mixed", "16-mixed"]


@dataclass(frozen=True)
class Validation:
    """Episodes from the validation classes, the same ones in every epoch."""

    shot: int = 1
    way: int = 5
    query: int = 15
    episodes: int = 600


@dataclass(frozen=True)
class Evaluation:
    """The final evaluation on the test classes.

    For ``unbalanced`` and ``dirichlet`` see `sample_episodes`; for ``crops``, ``crop_side``, ``centre``
    and ``power`` see `AtTestTime`.
    """

    shots: tuple[int, ...] = (1, 5)
    way: int = 5
    query: int = 15
    episodes: int = 2000
    seed: int = 0
    unbalanced: bool = False
    dirichlet: float = 1.0
    crops: int = 1
    crop_side: float = AtTestTime.crop_side
    centre: bool = False
    power: float = 1.0

    @property
    def test_time(self) -> AtTestTime:
        """What is made of each image besides the usual."""
        return AtTestTime(self.crops, self.crop_side, self.centre, self.power)

    def of_episodes(self) -> dict[str, Any]:
        """The settings that say which episodes are drawn."""
        other = {entry.name for entry in dataclasses.fields(AtTestTime)}
        return {key: value for key, value in dataclasses.asdict(self).items() if key not in other}


@dataclass(frozen=True)
class Recipe:
    """An experiment.

    In a file, the sections besides those of the fields below are the stages of the training, such as ``pretrain`` and
    ``meta``. Which stages there are, their order and their settings depend on the method: see `Method.objectives`. A
    stage that is null is left out.
    """

    method: str
    data: str
    backbone: Mapping[str, Any] = field(default_factory=lambda: {"name": "resnet12"})
    """``name`` and the options of `create_backbone`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the method, as for `create_method`."""
    size: int | None = None
    """Side of the images in pixels, where it is not the backbone's own."""
    dropout: float = 0.0
    """Probability of dropout on the representation, before the head of a stage that has one. Of a map, whole channels
    are dropped."""
    augmentation: Augmentation = "paper"
    shrink_to: int | None = None
    """Decode each image file only once, shrink it to this many pixels on its shorter side (smaller images stay as they
    are), and keep the pixels in a file beside the images; see `deepbdc.data.shrunk`. By default, files are decoded in
    every epoch. With the number to which the network's images are resized (92 for 84 px), evaluations and ``crop_flip``
    get the same pixels as without it; the random crops of ``paper`` are cut from the shrunk image and have less detail.
    """
    seed: int = 1
    workers: int = 4
    """Processes that read and augment image files. Arrays in memory need none."""
    precision: Precision = "32-true"
    channels_last: bool = False
    sync_batchnorm: bool = False
    """Compute batch norm over all processes (GPU only); otherwise each process uses the statistics of its own part."""
    validation: Validation = field(default_factory=Validation)
    evaluation: Evaluation | None = field(default_factory=Evaluation)
    """null leaves the test classes alone while settings are being chosen."""
    stages: Mapping[str, StageSettings] = field(default_factory=dict)
    """The settings of each stage, in the order of the training."""

    @property
    def evaluation_settings(self) -> Evaluation:
        """How to evaluate when asked to: as the recipe says, or as usual."""
        return self.evaluation or Evaluation()

    @property
    def trainings(self) -> list["Stage"]:
        """The trainings in order. A section such as ``distill`` may stand for several, one for each generation."""
        return [
            Stage(instance, section, settings)
            for section, settings in self.stages.items()
            for instance in settings.instances(section)
        ]

    def validation_shot(self, stage: "Stage") -> int:
        """Shots of the validation episodes of a stage: its own, else those it trains with, else the recipe's."""
        settings = stage.settings
        return settings.validation_shot or settings.usual_validation_shot or self.validation.shot

    def as_dict(self) -> dict[str, Any]:
        """Plain values, all of them, defaults included, in the layout of a recipe file."""
        values: dict[str, Any] = plain(self)
        stages = values.pop("stages")
        last = {key: values.pop(key) for key in ("validation", "evaluation")}
        return {**values, **stages, **last}

    def as_yaml(self) -> str:
        """The recipe with all its values, as a file that can be given in place of its name."""
        return write_yaml(self.as_dict())


@dataclass(frozen=True)
class Stage:
    """One training from beginning to end: ``pretrain``, ``distill-1``, ``distill-2``, ..., ``meta``."""

    name: str
    section: str
    """The section of the recipe that holds its settings, such as ``distill``."""
    settings: StageSettings


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe by its name or file, with ``key=value`` overrides such as ``pretrain.epochs=10``; see `read_recipe`."""
    return recipe_from_dict(read_recipe(name_or_path, overrides), str(name_or_path))


def recipe_from_dict(content: Mapping[str, Any], title: str = "the recipe") -> Recipe:
    """A checked recipe from plain values, in the layout of a recipe file."""
    content = _modernised(content, title)
    fields = [entry.name for entry in dataclasses.fields(Recipe) if entry.name != "stages"]
    values = {key: value for key, value in content.items() if key in fields}
    recipe: Recipe = build(Recipe, values, title)
    objectives = objectives_of(recipe.method, title)
    for key, value in content.items():
        if key not in fields and key not in objectives and not (value is None and key in stages_of_all_methods()):
            known = nearest(str(key), [*fields, *objectives])
            trained = (
                f" {recipe.method} is trained by {' and '.join(objectives)}." if isinstance(value, Mapping) else ""
            )
            raise UserError(f"{title} has a key {key!r} that does not exist{known}{trained}")
    stages = {
        name: build(objective.Settings, content[name], title, f"{name}.")
        for name, objective in objectives.items()
        if content.get(name) is not None
    }
    recipe = dataclasses.replace(recipe, stages=stages)
    _check(recipe, title)
    first = next(iter(recipe.trainings), None)
    if first is not None and objectives[first.section].needs_stage_before:
        raise UserError(f"{title}: {first.section} needs a stage before it, which trains its first teacher")
    return recipe


def objectives_of(method: str, title: str) -> Mapping[str, type["Objective"]]:
    """The stages that can train a method, with their objectives."""
    from deepbdc.methods.base import methods

    if method not in methods.names():
        raise UserError(f"{title}: no method is called {method!r}{nearest(method, methods.names())}")
    objectives: Mapping[str, type[Objective]] = methods.find(method).objectives
    return objectives


def stages_of_all_methods() -> set[str]:
    """The names of all stages that any method can be trained by."""
    from deepbdc.methods.base import methods

    return {stage for name in methods.names() for stage in methods.find(name).objectives}


def build_method(recipe: Recipe) -> "Method":
    """The method of a recipe, with random weights."""
    from deepbdc.backbones import create_backbone
    from deepbdc.methods import create_method

    options = dict(recipe.backbone)
    backbone = create_backbone(options.pop("name"), **options)
    preprocessing = backbone.preprocessing.resized(recipe.size)
    return create_method(recipe.method, backbone, recipe.validation.shot, preprocessing, **recipe.options)


def _modernised(content: Mapping[str, Any], title: str) -> dict[str, Any]:
    """The values of a recipe that an earlier version wrote: ``t_lr`` was the rate of the group ``t``."""
    modern = dict(content)
    for name, section in content.items():
        if isinstance(section, Mapping) and "t_lr" in section:
            if "groups" in section:
                raise UserError(f"{title}: {name}.t_lr is now called {name}.groups.t.lr: give only that")
            rate = section["t_lr"]
            groups = {} if rate is None else {"groups": {"t": {"lr": rate}}}
            modern[name] = {key: value for key, value in section.items() if key != "t_lr"} | groups
    return modern


def _check(recipe: Recipe, title: str) -> None:
    """Check what types do not tell."""
    if not isinstance(recipe.backbone.get("name"), str):
        raise UserError(f"{title}: backbone needs a name, like 'backbone: {{name: resnet12}}'")
    if not 0 <= recipe.dropout < 1:
        raise UserError(f"{title}: dropout must be at least 0 and below 1, got {recipe.dropout}")
    if recipe.workers < 0 or recipe.seed < 0:
        raise UserError(f"{title}: workers and seed must not be negative")
    for name, pixels in (("size", recipe.size), ("shrink_to", recipe.shrink_to)):
        if pixels is not None and pixels < 1:
            raise UserError(f"{title}: {name} must be positive, got {pixels}")
    for name, settings in recipe.stages.items():
        settings.check(f"{title}: {name}")
    check_counts(recipe.validation, f"{title}: validation", ("shot", "way", "query", "episodes"))
    evaluation = recipe.evaluation_settings
    check_counts(evaluation, f"{title}: evaluation", ("way", "query", "episodes"))
    if not evaluation.shots or min(evaluation.shots) < 1:
        raise UserError(f"{title}: evaluation.shots must be one or more positive numbers")
    if not 0 < evaluation.dirichlet < float("inf"):
        raise UserError(f"{title}: evaluation.dirichlet must be a positive number, got {evaluation.dirichlet}")
    try:
        _ = evaluation.test_time
    except UserError as error:
        raise UserError(f"{title}: evaluation.{error}") from error
    if evaluation.dirichlet != 1 and not evaluation.unbalanced:
        raise UserError(f"{title}: evaluation.dirichlet has no effect without evaluation.unbalanced: true")
