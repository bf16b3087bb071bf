"""Random numbers that depend on a seed and a task alone, for classifiers that draw them while they fit a task.

A classifier that trains on random batches should give a task the same scores whatever other tasks are in its batch, in
whatever order its support images come, and however its classes are numbered. So the images of a task are first sorted
by their features, and its random numbers are hashes of ranks of these features.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepbdc._seeds import derive
from deepbdc.classifiers.base import membership

_DIRECTIONS = 4


@dataclass(frozen=True, eq=False)
class Tasks:
    """Tasks with their support images and classes in an order of their own, and a source of random numbers for each."""

    support: Tensor
    """``(e, s, features)``: sorted."""
    labels: Tensor
    """``(e, s)``: sorted like the images; the class of the first image is 0, the next class that appears is 1, ..."""
    _numbers: Tensor
    """``(e, way)``: what the labels above are for classes in the order of the original labels."""
    _keys: NDArray[np.uint64]
    """``(e,)``"""

    def by_label(self, values: Tensor) -> Tensor:
        """Values ``(e, way, ...)`` of the renumbered classes, in the order of the original labels."""
        return values[_episodes(self._numbers), self._numbers]

    def uniform(self, purpose: int, *shape: int) -> Tensor:
        """Numbers ``(e, *shape)`` in [0, 1), of the type and on the device of the images; others for each purpose."""
        numbers = (self._hashes(purpose, *shape) >> np.uint64(40)) * 2.0**-24
        return torch.from_numpy(numbers).to(self.support)

    def order(self, purpose: int, count: int) -> Tensor:
        """A random order of ``count`` things for each task, ``(e, count)``; another for each purpose."""
        hashes = (self._hashes(purpose, count) >> np.uint64(1)).view(np.int64)
        return torch.from_numpy(hashes).argsort(dim=-1).to(self.support.device)

    def _hashes(self, purpose: int, *shape: int) -> NDArray[np.uint64]:
        places = np.arange(int(np.prod(shape)), dtype=np.uint64)
        keys = _mixed(self._keys + np.uint64(purpose))
        return _mixed(_mixed(keys[:, None] + places)).reshape(len(keys), *shape)


def sorted_tasks(support: Tensor, labels: Tensor, way: int, seed: int) -> Tasks:
    """Sort the images of each task, ``(e, s, features), (e, s)``.

    The images are sorted along a random direction. Ranks along more directions tell tasks apart. Ranks hardly ever
    change when the last digits of the features do, so scores are almost the same on every machine.
    """
    generator = torch.Generator().manual_seed(derive(seed, "directions"))
    directions = torch.randn(support.shape[-1], _DIRECTIONS, generator=generator).to(support)
    ranks = (support @ directions).argsort(dim=1, stable=True)  # (e, s, directions): images in the order of each
    order = ranks[..., 0]
    episodes = _episodes(order)
    sorted_labels = labels[episodes, order]
    first = membership(sorted_labels, way, torch.int64).argmax(dim=1)  # (e, way): where a class appears first
    numbers = first.argsort(dim=-1).argsort(dim=-1)
    # The same tasks get the same keys if their images are listed in another order: only places among the sorted count.
    places = order.argsort(dim=-1)
    listed = torch.stack([places[episodes, ranks[..., i]] for i in range(1, _DIRECTIONS)], dim=-1).flatten(1)
    keys = np.full(len(labels), derive(seed, "tasks"), dtype=np.uint64)
    for column in listed.cpu().numpy().astype(np.uint64).T:
        keys = _mixed(keys + column)
    return Tasks(support[episodes, order], numbers[episodes, sorted_labels], numbers, keys)


def _episodes(like: Tensor) -> Tensor:
    return torch.arange(len(like), device=like.device).unsqueeze(-1)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash of each number: a step of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), which wraps around at 2⁶⁴."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
