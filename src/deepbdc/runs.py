"""Trained runs: from the folder that a training wrote to a method with its weights."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from deepbdc import weight_files
from deepbdc._modes import to_channels_last
from deepbdc.data.dataset import Dataset
from deepbdc.data.loading import find_data, load_dataset
from deepbdc.data.shrunk import shrunk
from deepbdc.errors import UserError
from deepbdc.feature_bank import Source
from deepbdc.methods import Method
from deepbdc.methods.base import TrainingClasses
from deepbdc.preprocessing import AtTestTime
from deepbdc.recipes import Recipe, build_method, recipe_from_dict
from deepbdc.sources import prepare_source

MODEL, RESULT, RECIPE, CURVE = "model.safetensors", "result.json", "recipe.yaml", "curve.png"
"""The files in the folder of a run."""
CHECKPOINTS = "checkpoints"
"""Its folder of what each stage has trained."""
_NOT_TRAINING = ("evaluation", "workers")
"""Prefixes of the keys of a recipe that do not change the trained model."""


@dataclass(frozen=True)
class Run:
    """A trained model and where it comes from."""

    folder: Path
    name: str
    recipe: Recipe
    method: Method
    class_names: tuple[str, ...]
    """The classes that it was trained on."""
    data: str | None
    """The ``--data`` of its training, if that was given."""


def is_finished(folder: str | Path) -> bool:
    """Whether a run is complete."""
    return (Path(folder) / RESULT).is_file() and (Path(folder) / MODEL).is_file()


def load_run(path: str | Path) -> Run:
    """The trained model of a run, in evaluation mode, from its folder or from one of its files of weights."""
    path = Path(path)
    file = path / MODEL if path.is_dir() else path
    if not file.is_file():
        unfinished = path.is_dir() and (path / CHECKPOINTS).is_dir()
        hint = "; the run is not finished: train it with --resume" if unfinished else ""
        raise FileNotFoundError(f"{path} holds no trained model ({MODEL}){hint}")
    tensors, header = weight_files.load(file)
    if header.get("kind") != "weights" or "recipe" not in header:
        raise UserError(f"{file} is a checkpoint to resume from, not a trained model: take {MODEL} of the same run")
    recipe = recipe_from_dict(header["recipe"], str(file))
    with torch.random.fork_rng(devices=[]):
        method = build_method(recipe)
    weight_files.load_into(method, tensors, "method.", file, ignore=("",))  # a head is needed for training only
    method.embedding.preprocessing = weight_files.read_preprocessing(header)
    if recipe.channels_last:
        to_channels_last(method)  # another layout rounds differently, which changes some answers
    if method.needs_base_images:
        method.base = base_images(recipe, header["data"])
    folder = path if path.is_dir() else path.parent
    name = folder.name if path.is_dir() else path.stem
    return Run(folder, name, recipe, method.eval(), tuple(header["class_names"]), header["data"])


def source_of_run(
    run: Run, dataset: Dataset, test_time: AtTestTime | None = None, base: str | Path | None = None, **options: Any
) -> Source:
    """Where an evaluation of a run takes the representations of a data set from.

    Args:
        run: The run.
        dataset: The images.
        test_time: What is made of each image besides the usual (default: what the recipe of the run says).
        base: Where the training images are, if they are needed and are not where the training found them.
        options: As for `build_bank`.
    """
    chosen = run.recipe.evaluation_settings.test_time if test_time is None else test_time
    images = base_images(run.recipe, run.data if base is None else base) if chosen.centre else None
    return prepare_source(run.method, dataset, chosen, images, workers=run.recipe.workers, **options)


def base_images(recipe: Recipe, data: str | Path | None) -> TrainingClasses:
    """The training images of a run. They are looked for when they are first used.

    Args:
        recipe: The recipe of the run, which names its data.
        data: Where else to look, as ``--data`` of its training; None for the data that the recipe names.
    """
    return TrainingClasses(partial(_load_base_images, recipe, data))


def _load_base_images(recipe: Recipe, data: str | Path | None) -> Dataset:
    try:
        name, root = find_data(recipe.data, data)
        return shrunk(load_dataset(name, "train", root=root), recipe.shrink_to)
    except (OSError, UserError) as error:
        raise UserError(
            f"this evaluation of {recipe.method} needs the images of its training classes as well. {error}. "
            "Say where they are: deepbdc evaluate RUN --base DATA"
        ) from error


def same_training(one: Recipe, other: Recipe) -> bool:
    """Whether two recipes train the same; how they are evaluated does not count."""
    return not training_differences(one, other)


def training_differences(one: Recipe, other: Recipe) -> dict[str, tuple[Any, Any]]:
    """The values in which the trainings of two recipes differ, by keys such as ``pretrain.epochs``."""
    first, second = _flat(one.as_dict()), _flat(other.as_dict())
    return {
        key: (first.get(key), second.get(key))
        for key in {**first, **second}
        if first.get(key) != second.get(key) and not key.startswith(_NOT_TRAINING)
    }


def _flat(content: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested dictionaries to keys like ``pretrain.epochs``."""
    if not isinstance(content, dict):
        return {prefix: content}
    return {
        key: value
        for name, part in content.items()
        for key, value in _flat(part, f"{prefix}.{name}" if prefix else str(name)).items()
    }
