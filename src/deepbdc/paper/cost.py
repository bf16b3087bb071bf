"""What the experiments of the paper cost on this machine, and how much shorter trainings must be to fit a budget."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

import torch

from deepbdc.backbones import create_backbone
from deepbdc.data.dataset import Dataset
from deepbdc.paper.trainings import Training
from deepbdc.recipes import Recipe, build_method
from deepbdc.stages import EpisodeSettings, StageSettings
from deepbdc.stages.settings import limits
from deepbdc.training.estimate import shortest_seconds

_FORWARD = 1 / 3
"""Cost of an image that is only embedded, in images that are trained on."""
_IMAGES, _SECONDS = 64, 1.0
"""Images in a step whose time is measured, and for how long steps are repeated."""
_SHORTER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def images_of(trainings: Iterable[Training], splits: Mapping[str, Dataset], shortened: int = 1) -> float:
    """Images that pass through networks in trainings that are not finished, with their gradients.

    A stage that several trainings share counts once. This is an estimate: stages count as shared if their settings and
    the representations that they train are the same.
    """
    total, seen = 0.0, set()
    for training in trainings:
        if training.finished:
            continue
        recipe = training.recipe
        evaluated = sum(len(splits[split]) for split in ("val", "test") if split in splits)
        total += _FORWARD * evaluated
        before = ""
        for stage in recipe.trainings:
            key = before = f"{before}|{stage.name}|{_key(recipe, stage.settings)}"
            if key not in seen:
                seen.add(key)
                epochs = max(1, stage.settings.epochs // shortened)
                share = stage.settings.full_epochs(_size(recipe)) / stage.settings.epochs
                total += epochs * share * _images_per_epoch(stage.settings, len(splits["train"]))
                total += _FORWARD * epochs / stage.settings.validate_every * len(splits.get("val", ()))
    return total


def _key(recipe: Recipe, settings: StageSettings) -> str:
    """Equal for stages that train the same; methods that are built with the same seed then give the same scores."""
    episodic = isinstance(settings, EpisodeSettings)
    values = {key: value for key, value in asdict(settings).items() if not key.startswith("validat")}
    own = [recipe.method, dict(recipe.options)] if episodic else _scores(recipe)
    return json.dumps([own, values, recipe.dropout, recipe.augmentation], sort_keys=True, default=str)


def _scores(recipe: Recipe) -> list[str]:
    """The scores of a head on the representation of one image: equal if an ordinary training trains the same."""
    key = json.dumps([recipe.method, dict(recipe.options), dict(recipe.backbone), recipe.size], sort_keys=True)
    if key not in _SCORES:
        _SCORES[key] = _computed_scores(recipe)
    return _SCORES[key]


_SCORES: dict[str, list[str]] = {}


def _computed_scores(recipe: Recipe) -> list[str]:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        method = build_method(recipe).eval()
        torch.manual_seed(0)
        head = method.head(8).eval()
        size = method.embedding.preprocessing.input_size
        scores = head(method.features(torch.ones(1, 3, size, size)))
    return [f"{float(value):.4g}" for value in scores.flatten()]


def _size(recipe: Recipe) -> int:
    return recipe.size or create_backbone(**recipe.backbone).preprocessing.input_size


def _images_per_epoch(settings: StageSettings, images: int) -> float:
    if isinstance(settings, EpisodeSettings):
        way, shot = (sum(limits(count)) / 2 for count in (settings.way, settings.shot))
        return settings.episodes * way * (shot + settings.query)
    return images


def fitting(trainings: Iterable[Training], splits: Mapping[str, Dataset], rate: float, seconds: float) -> int:
    """The smallest shortening with which the trainings fit the time; the largest if none does.

    Args:
        trainings: What is to be trained.
        splits: The data set.
        rate: Images per second of a training.
        seconds: The time.
    """
    trainings = list(trainings)
    fits = (factor for factor in _SHORTER if images_of(trainings, splits, factor) / rate <= seconds)
    return next(fits, _SHORTER[-1])


def images_per_second(trainings: Sequence[Training]) -> float:
    """How fast this machine trains the network of the first training, measured in a few steps on random images."""
    if not trainings:
        return math.inf
    recipe = trainings[0].recipe
    with torch.random.fork_rng(devices=[]):
        network = create_backbone(**recipe.backbone).train()
        images = torch.randn(_IMAGES, 3, _size(recipe), _size(recipe))
        weights = list(network.parameters())

        def step() -> object:  # without an optimiser, whose import takes longer than all else here
            return torch.autograd.grad(network(images).sum(), weights)

        step()  # the first one initialises much
        return _IMAGES / shortest_seconds(step, _SECONDS)
