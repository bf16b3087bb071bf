"""The latency of methods on one 5-way task, as in the paper's Table 3 and supplement S3-4.

Timed are one test task (the support images of 5 classes and 15 queries of each) and one step of episodic training with
the same task. The pass of the images through the network is the same for nearly all methods. It is timed for itself, so
that its noise does not hide the differences, and each method is timed on feature maps of the same size: the whole is
the sum of both. Methods that act inside the network (MAML, TADAM, ...) are timed as a whole. All run in turn, round by
round. Ratios carry over to other machines, milliseconds do not.
"""

import copy
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from deepbdc._memory import keep_freed_memory
from deepbdc._modes import evaluating
from deepbdc.backbones import create_backbone
from deepbdc.backbones.base import Backbone
from deepbdc.classifiers import create_classifier
from deepbdc.data.dataset import ArrayDataset
from deepbdc.errors import UserError
from deepbdc.methods import Method, create_method
from deepbdc.methods.base import TrainingClasses
from deepbdc.preprocessing import Preprocessing
from deepbdc.recipes import Recipe
from deepbdc.stages import TrainingEpisode

WAY, QUERY = 5, 15


@dataclass(frozen=True)
class Timed:
    """What is timed under a name: the method of a recipe, with its own classifier of test tasks or another one."""

    recipe: Recipe
    classifier: str | None = None


@dataclass(frozen=True)
class Latency:
    """Milliseconds, medians over the rounds."""

    test: float
    """One test task."""
    test_own: float | None
    """The part of it behind the network; None if the method acts inside the network."""
    training: float | None
    """One step of episodic training; None if the method is not trained in episodes."""
    training_own: float | None


def measure(
    rows: Mapping[str, Timed],
    shot: int,
    rounds: int,
    *,
    training: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Latency]:
    """Time one task of each row, in turn.

    Args:
        rows: What to time, by name. A method that needs its training images for every task cannot be timed, and is
            left out.
        shot: Support images per class.
        rounds: How often; one more round before the first warms up.
        training: Time training steps as well.
        progress: Called with what is being timed.
    """
    keep_freed_memory()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        timing = _Timing(shot, training)
        for name, row in rows.items():
            timing.add(name, row)
        times = timing.run(rounds, progress)
    return {name: timing.latency(name, times) for name in rows if (name, "test") in times}


class _Maps(Backbone):
    """No network: the images are its feature maps already."""

    def __init__(self, like: Backbone, size: int) -> None:
        super().__init__(like.out_channels, Preprocessing(size, size))

    def forward(self, images: Tensor) -> Tensor:
        """The maps themselves."""
        return images


@dataclass(frozen=True)
class _Network:
    """A network, the images of a task, and the maps that it makes of them."""

    backbone: Backbone
    images: Tensor
    maps: Tensor


class _Timing:
    """The functions to time, by name and kind (``test`` or ``training``)."""

    def __init__(self, shot: int, training: bool) -> None:
        self._shot, self._training = shot, training
        self._labels = torch.arange(WAY).repeat(shot)
        self._answers = torch.arange(WAY).repeat(QUERY)
        self._networks: dict[str, _Network] = {}
        self._network_of: dict[str, str | None] = {}
        self._sides: dict[tuple[str, str], Callable[[], object]] = {}

    def add(self, name: str, row: Timed) -> None:
        """Add a row; its network, too, if it is the first with that network."""
        recipe = row.recipe
        key, network = self._network(recipe)
        try:
            maps = _Maps(network.backbone, network.maps.shape[-1])
            method, inputs = create_method(recipe.method, maps, self._shot, **recipe.options), network.maps
            inside = type(method).source is not Method.source
        except UserError:  # it acts between the blocks of the network
            inside = True
        if inside:
            backbone = copy.deepcopy(network.backbone)
            method, inputs = create_method(recipe.method, backbone, self._shot, **recipe.options), network.images
        if method.needs_base_images:
            return
        if not inside and type(method).remember is not Method.remember:
            whole = create_method(recipe.method, network.backbone, self._shot, **recipe.options)
            self._remember(method, whole, network.images.shape[-1])
        self._network_of[name] = None if inside else key
        trained = copy.deepcopy(method)
        if row.classifier is not None:
            method = Method(method.embedding, create_classifier(row.classifier))
        self._sides[name, "test"] = lambda: self._classify(method, inputs)
        if self._training and "meta" in recipe.stages:
            values = list(trained.parameters()) or [nn.Parameter(torch.zeros(1))]  # most have none beside the network's
            optimiser = torch.optim.SGD(values, lr=1e-6, momentum=0.9, nesterov=True)
            self._sides[name, "training"] = lambda: self._train(trained, optimiser, inputs)

    def _network(self, recipe: Recipe) -> tuple[str, _Network]:
        key = json.dumps([dict(recipe.backbone), recipe.size], sort_keys=True)
        if key not in self._networks:
            options = dict(recipe.backbone)
            backbone = create_backbone(options.pop("name"), **options).train()
            size = recipe.size or backbone.preprocessing.input_size
            generator = torch.Generator().manual_seed(self._shot)
            images = torch.randn(WAY * (self._shot + QUERY), 3, size, size, generator=generator)
            with torch.no_grad():
                maps = backbone(images)  # also fills the running statistics of batch norm
            network = self._networks[key] = _Network(backbone, images, maps)
            optimiser = torch.optim.SGD(backbone.parameters(), lr=1e-6, momentum=0.9, nesterov=True)
            self._sides[key, "test"] = lambda: self._embed(network)
            if self._training:
                self._sides[key, "training"] = lambda: self._train_network(network, optimiser)
        return key, self._networks[key]

    def _remember(self, method: Method, whole: Method, size: int) -> None:
        """Let ``whole``, which has a network, remember random training images, and give that to ``method``."""
        pictures = np.random.default_rng(0).integers(0, 256, (16, size, size, 3), dtype=np.uint8)
        data = ArrayDataset(pictures, np.arange(16) // 2, [str(label) for label in range(8)], "random", "train")
        with evaluating(whole), torch.no_grad():
            whole.remember(TrainingClasses(data))
        kept = {key: value for key, value in whole.state_dict().items() if not key.startswith("embedding.backbone.")}
        method.load_state_dict(kept, strict=False)

    def _embed(self, network: _Network) -> object:
        network.backbone.eval()
        with torch.no_grad():
            return network.backbone(network.images)

    def _train_network(self, network: _Network, optimiser: torch.optim.Optimizer) -> None:
        network.backbone.train()
        optimiser.zero_grad()
        maps = network.backbone(network.images)
        maps.backward(torch.ones_like(maps))
        optimiser.step()

    def _classify(self, method: Method, inputs: Tensor) -> object:
        with evaluating(method), torch.no_grad():
            support, query = method.embed(inputs).split([len(self._labels), len(self._answers)])
            return method.classify(support, self._labels, query)

    def _train(self, method: Method, optimiser: torch.optim.Optimizer, inputs: Tensor) -> None:
        method.train()
        optimiser.zero_grad()
        images = inputs.clone().requires_grad_()  # the maps get a gradient, as from the network
        episode = TrainingEpisode(images, self._labels, self._answers, torch.arange(WAY))
        method.episode_loss(episode).value.backward()
        optimiser.step()

    def run(self, rounds: int, progress: Callable[[str], None]) -> dict[tuple[str, str], float]:
        """The median time of each side in milliseconds, after one round to warm up."""
        times: dict[tuple[str, str], list[float]] = {key: [] for key in self._sides}
        for number, (key, side) in self._turns(rounds):
            shown = "the network" if key[0] in self._networks else key[0]
            progress(f"{self._shot}-shot, round {number} of {rounds}: {shown}, {key[1]}")
            start = time.perf_counter()
            side()
            if number > 0:
                times[key].append((time.perf_counter() - start) * 1e3)
        return {key: statistics.median(values) for key, values in times.items()}

    def _turns(self, rounds: int) -> Iterator[tuple[int, tuple[tuple[str, str], Callable[[], object]]]]:
        for number in range(rounds + 1):
            for side in self._sides.items():
                yield number, side

    def latency(self, name: str, times: Mapping[tuple[str, str], float]) -> Latency:
        """The latency of a row from the times of its own part and of its network."""
        network = self._network_of[name]
        values: list[float | None] = []
        for kind in ("test", "training"):
            own = times.get((name, kind))
            if own is None:
                values += [None, None]
            elif network is None:
                values += [own, None]
            else:
                values += [own + times[network, kind], own]
        test, test_own, training, training_own = values
        assert test is not None
        return Latency(test, test_own, training, training_own)
