"""The trained networks behind the rows of the paper's tables: found if they exist, else trained, each only once."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from deepbdc import weight_files
from deepbdc.errors import UserError
from deepbdc.paper.settings import Setting
from deepbdc.recipes import Recipe, list_recipes, load_recipe
from deepbdc.runs import MODEL, RECIPE, is_finished, same_training, training_differences
from deepbdc.training.devices import DeviceOptions
from deepbdc.training.run import train

_DEPTHS = ("*", "*/*", "*/*/*", "*/*/*/*")


@dataclass(frozen=True)
class Training:
    """A recipe, and the folder in which its run is or will be."""

    recipe: Recipe
    folder: Path

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to train."""
        return is_finished(self.folder)


def training_of(setting: Setting, recipe: Recipe, fingerprint: str) -> Training:
    """The training of a recipe: a finished run with the same recipe and images, or a new one.

    A finished run may have another precision, which depends on the processor, and may have been validated more or less
    often where its last network is kept.

    Args:
        setting: Where the runs are.
        recipe: The recipe.
        fingerprint: That of the training images.
    """
    usual = _folder(setting, recipe)
    for folder in (usual, *_finished_runs(setting.folders_of_runs)):
        if is_finished(folder) and _is_run_of(folder, recipe, fingerprint):
            return Training(recipe, folder)
    return Training(recipe, usual)


def carry_out(setting: Setting, training: Training, quiet: bool) -> None:
    """Train a run, from its last checkpoint if it was begun. Stages that other runs have trained are taken over."""
    train(
        training.recipe,
        training.folder,
        data=setting.place,
        resume=True,
        devices=DeviceOptions(devices=1),
        quiet=quiet,
        reuse=setting.folders_of_runs,
    )


def _finished_runs(folders: Iterable[Path]) -> Iterator[Path]:
    for runs in folders:
        for depth in _DEPTHS:
            yield from (path.parent for path in sorted(runs.glob(f"{depth}/{RECIPE}")))


def _is_run_of(folder: Path, recipe: Recipe, fingerprint: str) -> bool:
    try:
        other = load_recipe(folder / RECIPE)
    except (UserError, OSError):
        return False  # of an earlier version, or damaged: it is of no use here
    if other.method != recipe.method or any(_matters(key, recipe) for key in training_differences(other, recipe)):
        return False
    return bool(weight_files.load_header(folder / MODEL).get("data_fingerprint") == fingerprint)


def _matters(key: str, recipe: Recipe) -> bool:
    """Whether another value of a key of the recipe, like ``pretrain.epochs``, makes a run useless for a table."""
    stage, _, name = key.partition(".")
    if name == "validate_every" and stage in recipe.stages:
        return recipe.stages[stage].select != "last"
    return key != "precision"


def _folder(setting: Setting, recipe: Recipe) -> Path:
    """``RUNS/RECIPE`` for a recipe of the package as it is, as for `deepbdc train`; else one named after its values."""
    name = f"{setting.folder_of_recipes}/{recipe.method}"
    for known in (name, f"{name}_1shot", f"{name}_5shot"):
        if known in list_recipes() and same_training(load_recipe(known), recipe):
            folder = setting.runs / known
            if not (folder / RECIPE).is_file() or same_training(load_recipe(folder / RECIPE), recipe):
                return folder
    text = json.dumps(recipe.as_dict(), sort_keys=True)
    key = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return setting.runs / "paper" / re.sub(r"[^\w.-]", "_", setting.data) / f"{recipe.method}-{key}"
