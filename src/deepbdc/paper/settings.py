"""Where and how the experiments of the paper are run: from a row of a table to the recipe that trains it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deepbdc._registry import nearest
from deepbdc.backbones import create_backbone
from deepbdc.data.dataset import Dataset
from deepbdc.data.loading import find_data, list_datasets, load_dataset, load_splits
from deepbdc.errors import UserError
from deepbdc.methods.base import methods
from deepbdc.paper.experiments import Row
from deepbdc.recipes import Recipe, list_recipes, load_recipe, read_recipe
from deepbdc.recipes.recipe import stages_of_all_methods
from deepbdc.stages import BatchSettings, StageSettings

_LARGER = {"resnet12": "resnet34s", "resnet10": "resnet18", "resnet18": "resnet34"}
"""Networks that the paper's supplement S3-2 compares; of the others, the one with twice as many channels is larger."""


class NotPossible(UserError):
    """A cell of a table cannot be filled; the message says why, for the table."""


@dataclass(frozen=True)
class Setting:
    """The data set, the network and the places of files that all experiments of one call share."""

    data: str
    """A benchmark with recipes of its own, or a data set for which the recipes of ``recipes`` are taken."""
    runs: Path
    output: Path
    root: Path | None = None
    """The folder of prepared benchmarks."""
    recipes: str = ""
    """The folder of the recipes; empty: that of ``data``."""
    backbone: str | None = None
    """A network in place of that of the recipes."""
    target: str | None = None
    """The data set of the tests across domains."""
    values: tuple[str, ...] = ()
    """Values for all recipes, like ``evaluation.episodes=600``; those of stages that a recipe lacks are left out."""
    seeds: int = 1
    """How many seeds each row is trained with."""
    reuse: tuple[Path, ...] = ()
    """Further folders with finished runs, such as the zoo."""
    shortened: int = 1
    """All stages have only one epoch for each ``shortened`` epochs of their recipe, to fit a budget."""

    @property
    def folder_of_recipes(self) -> str:
        """The first part of the names of the recipes."""
        return self.recipes or (self.data if _has_recipes(self.data) else "glyphs")

    @property
    def folders_of_runs(self) -> tuple[Path, ...]:
        """Where finished runs may be: first the folder in which new ones are made."""
        return (self.runs, *self.reuse)

    @property
    def place(self) -> str | Path | None:
        """Where a training finds the images, as its argument ``data``."""
        return self.root if self.data in list_datasets() else self.data

    def load_data(self) -> dict[str, Dataset]:
        """The splits of the data set."""
        known = self.data in list_datasets()
        return load_splits(*find_data(self.data, self.root)) if known else load_splits(self.data)

    def load_target(self, usual: str) -> Dataset:
        """The test classes of another domain; ``usual`` is the data set that the paper has there."""
        assert self.target is not None
        named = self.root is not None and self.target in list_datasets()
        name, root = find_data(self.target, self.root) if named else find_data(usual, self.target)
        return load_dataset(name, "test", root=root)

    def check(self) -> None:
        """Raise an error if the target or the folder of recipes does not exist."""
        if self.target is not None and self.target not in list_datasets() and not Path(self.target).exists():
            meant = nearest(self.target, list_datasets())
            raise UserError(f"--target {self.target} is neither a data set nor a path{meant}")
        if not _has_recipes(self.folder_of_recipes):
            known = sorted({name.partition("/")[0] for name in list_recipes()})
            raise UserError(f"there are no recipes {self.recipes}/*{nearest(self.recipes, known)}")

    def recipe(self, row: Row, shot: int) -> Recipe:
        """The recipe that trains a row for a number of shots; it may be the same for all numbers of shots."""
        name = self._recipe_name(row.method, shot)
        backbone = self._backbone(name, row)
        channels = create_backbone(**backbone).out_channels if _needs_channels(row.set) else 0
        changes = [f"{key}={json.dumps(_value(value, channels))}" for key, value in row.set.items()]
        recipe = load_recipe(name, [f"backbone={json.dumps(backbone)}", *self._values_for(row.method), *changes])
        data = self.data if self.data in list_datasets() else recipe.data
        stages = {name: shortened(settings, self.shortened) for name, settings in recipe.stages.items()}
        return replace(recipe, data=data, stages=stages)

    def _recipe_name(self, method: str, shot: int) -> str:
        names = [f"{self.folder_of_recipes}/{method}", f"{self.folder_of_recipes}/{method}_{shot}shot"]
        known = set(list_recipes())
        found = next((name for name in names if name in known), None)
        if found is None:
            raise NotPossible(f"there is no recipe {names[0]}")
        return found

    def _values_for(self, method: str) -> list[str]:
        """The values for all recipes that concern a method: not those of stages that it does not have.

        Those of the network are left to `_backbone`.
        """
        others = stages_of_all_methods() - set(methods.find(method).objectives) | {"backbone"}
        return [value for value in self.values if value.partition(".")[0] not in others]

    def _backbone(self, recipe: str, row: Row) -> dict[str, Any]:
        values = [value for value in self.values if value.startswith("backbone.")]
        if self.backbone is not None:
            values.append(f"backbone.name={json.dumps(self.backbone)}")  # drops the options of another network
        chosen = {"name": "resnet12", **(read_recipe(recipe, values).get("backbone") or {})}
        return _larger(chosen) if row.larger else chosen


def _has_recipes(data: str) -> bool:
    return any(name.startswith(f"{data}/") for name in list_recipes())


def _needs_channels(change: Mapping[str, Any]) -> bool:
    return any(isinstance(value, Mapping) for value in change.values())


def _value(value: Any, channels: int) -> Any:
    """The value of a recipe; ``{channels: 0.4}`` stands for that share of the channels of the network."""
    return max(2, round(value["channels"] * channels)) if isinstance(value, Mapping) else value


def _larger(backbone: Mapping[str, Any]) -> dict[str, Any]:
    """A network of higher capacity.

    >>> _larger({"name": "resnet12"}), _larger({"name": "conv4", "width": 0.5})
    ({'name': 'resnet34s'}, {'name': 'conv4', 'width': 1.0})
    """
    if backbone["name"] in _LARGER:
        return {**backbone, "name": _LARGER[backbone["name"]]}
    return {**backbone, "width": 2.0 * backbone.get("width", 1.0)}


def shortened(settings: StageSettings, factor: int) -> StageSettings:
    """A stage with one epoch for each ``factor`` epochs, and everything that is counted in epochs with it."""
    if factor == 1:
        return settings
    epochs = max(1, settings.epochs // factor)
    milestones = tuple(sorted({max(1, milestone // factor) for milestone in settings.milestones}))
    gamma = settings.gamma if isinstance(settings.gamma, float) else settings.gamma[: len(milestones)]
    frozen = settings.freeze_batchnorm_from
    if isinstance(settings, BatchSettings):
        settings = replace(settings, small_epochs=settings.small_epochs // factor)
    return replace(
        settings,
        epochs=epochs,
        milestones=milestones,
        gamma=gamma,
        warmup=min(settings.warmup / factor, epochs / 2),
        validate_from=max(1, settings.validate_from // factor),
        freeze_batchnorm_from=None if frozen is None else max(1, frozen // factor),
    )
