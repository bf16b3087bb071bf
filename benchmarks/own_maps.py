"""Feature maps and inner products of real pictures, for benchmarks/own_images.py."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from deepbdc import load_dataset
from deepbdc.classifiers import create_classifier
from deepbdc.data.dataset import Dataset
from deepbdc.own_images.networks import find_embedding
from deepbdc.own_images.reading import embed_all

SETS = {"CUB": 20, "Cars": 20, "CIFAR-FS": 30, "Omniglot": 20}
"""The data sets, with the number of pictures of each class that are used."""
REPRESENTATIONS = ("own", "average", "bdc", "both")
C = 10.0
FAR, OUTSIDE = 60, -1
"""How many pictures of each other data set are there to be rejected, and their label."""


@dataclass(frozen=True)
class Pictures:
    """Inner products of the representations of all pictures of a data set, and their classes."""

    products: dict[str, Tensor]
    """Those of the whole pictures; except for "average", followed by those of their first parts and second parts."""
    labels: NDArray[np.int64]

    @property
    def views(self) -> tuple[int, ...]:
        """By how much the index of each part is larger than that of its picture; empty if there are no parts."""
        return tuple(range(len(self.labels), len(self.products["both"]), len(self.labels)))


def pictures_of(name: str, sources: dict[str, Path], split: str) -> Iterator[tuple[Any, int]]:
    """Some pictures of each class of a split, always the same ones, and their labels."""
    if name == "Omniglot":  # 60 characters, at the size at which they were drawn, black on white
        draw = np.random.default_rng(0)
        content = np.load(sources[name])
        chosen = draw.permutation(np.flatnonzero(content["class_split"] == split))[:60]
        for label in chosen.tolist():
            for index in np.flatnonzero(content["labels"] == label)[: SETS[name]]:
                ink = np.unpackbits(content["images105_packed"][index])[: 105 * 105].reshape(105, 105)
                yield (255 * (1 - ink)).astype(np.uint8), label
        return
    data = photos_of(name, sources[name], split)
    for index in chosen_photos(data, SETS[name]):
        yield data.image(index), int(data.labels[index])


def photos_of(name: str, source: Path, split: str) -> Dataset:
    """A split of CUB, Cars or CIFAR-FS; ``source`` is the folder of its pictures, or for CIFAR-FS that of its file."""
    return load_dataset("cifar_fs", split, root=source) if name == "CIFAR-FS" else load_dataset(source, split)


def chosen_photos(data: Dataset, per_class: int) -> list[int]:
    """The indices of some pictures of each class, always the same ones."""
    draw = np.random.default_rng(0)
    every = data.labels.numpy()
    classes = range(len(data.class_names))
    return [int(index) for one in classes for index in draw.permutation(np.flatnonzero(every == one))[:per_class]]


def maps_of(network: str, name: str, split: str, sources: dict[str, Path], kept: Path) -> tuple[Tensor, Tensor]:
    """Feature maps ``(n, views, d, h, w)`` in half precision and labels, computed once and kept in a folder.

    The views are the whole picture and, if the pictures are large, two parts of it.
    """
    from PIL import Image

    file = kept / f"{network},{name},{split}.npz"
    if not file.exists():
        embedding = find_embedding(network, "both", None, "cpu")
        maps, labels = [], []
        for picture, label in pictures_of(name, sources, split):
            image = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
            (found,) = embed_all([image.convert("RGB")], embedding, 1, parts=True)
            parts = found.features.unsqueeze(0)[:0] if found.parts is None else found.parts
            maps.append(torch.cat([found.features.unsqueeze(0), parts]).half())
            labels.append(label)
        if np.median([len(views) for views in maps]) == 1:  # tiny pictures have no parts
            maps = [views[:1] for views in maps]
        else:  # of the few tiny ones among others, copies stand for parts
            maps = [views if len(views) > 1 else views.expand(3, -1, -1, -1) for views in maps]
        kept.mkdir(parents=True, exist_ok=True)
        np.savez(file, maps=torch.stack(maps).numpy(), labels=np.array(labels))
    content = np.load(file)
    return torch.from_numpy(content["maps"]), torch.from_numpy(content["labels"])


@torch.no_grad()
def products_of(
    network: str, name: str, far: Sequence[str], split: str, sources: dict[str, Path], kept: Path
) -> Pictures:
    """Inner products of the pictures of a data set, followed by `FAR` pictures of each of the data sets ``far``."""
    maps, labels = maps_of(network, name, split, sources, kept)
    numbers, parts = [np.unique(labels.numpy(), return_inverse=True)[1]], [maps]
    for other in far:
        unlike, _ = maps_of(network, other, split, sources, kept)
        if unlike.shape[1] < maps.shape[1]:  # their parts are never looked at
            unlike = unlike.expand(-1, maps.shape[1], *unlike.shape[2:])
        unlike = unlike[:, : maps.shape[1]]
        parts.append(unlike[np.random.default_rng(0).permutation(len(unlike))[:FAR]])
        numbers.append(np.full(FAR, OUTSIDE))
    whole = torch.cat(parts)
    views = whole.transpose(0, 1).flatten(0, 1)  # all whole pictures, then all first parts, then all second ones
    products = {}
    for pool in REPRESENTATIONS[:3]:
        embedding = find_embedding(network, pool, None, "cpu")
        chosen = views if pool in ("own", "bdc") else views[: len(whole)]
        unit = torch.cat([normalize(embedding.represent(part.float()).flatten(1), dim=1) for part in chosen.split(64)])
        products[pool] = unit @ unit.T
    products["both"] = (products["own"] + products["bdc"]) / 2
    return Pictures(products, np.concatenate(numbers))


@dataclass(frozen=True)
class Tasks:
    """Indices of pictures in several tasks: examples ``(e, s)``, queries ``(e, q)`` and those of other classes."""

    way: int
    support: Tensor
    query: Tensor
    others: Tensor

    @property
    def support_labels(self) -> Tensor:
        return torch.arange(self.way).repeat_interleave(self.support.shape[1] // self.way)

    @property
    def query_labels(self) -> Tensor:
        return torch.arange(self.way).repeat_interleave(self.query.shape[1] // self.way)

    def of(self, products: Tensor, *more: Tensor) -> Tensor:
        """The inner products of all pictures of each task ``(e, n, n)``, in the order of the fields."""
        rows = torch.cat([self.support, self.query, self.others, *more], dim=1)
        return products[rows.unsqueeze(2), rows.unsqueeze(1)].double()

    def with_parts(self, views: Sequence[int]) -> "Tasks":
        """The same tasks, in which each example is followed by its parts; ``views`` as in `Pictures`."""
        every = torch.stack([self.support, *(self.support + more for more in views)], dim=2).flatten(1)
        return replace(self, support=every)

    def seen_as(self, view: int) -> "Tasks":
        """The same tasks, in which the queries are parts of pictures."""
        return replace(self, query=self.query + view, others=self.others + view)


def draw(labels: NDArray[np.int64], way: int, shot: int, count: int, others: int = 0, query: int = 15) -> Tasks:
    """Random tasks. The pictures of ``others`` more classes are queries only."""
    stream = np.random.default_rng(0)
    members = [np.flatnonzero(labels == label) for label in np.unique(labels[labels != OUTSIDE])]
    drawn: list[tuple[list[int], list[int], list[int]]] = []
    for _ in range(count):
        task: tuple[list[int], list[int], list[int]] = ([], [], [])
        for place, label in enumerate(stream.permutation(len(members))[: way + others]):
            chosen = stream.permutation(members[label]).tolist()
            if place < way:
                task[0].extend(chosen[:shot])
                task[1].extend(chosen[shot : shot + query])
            else:
                task[2].extend(chosen[:query])
        drawn.append(task)
    return Tasks(way, *(torch.tensor([task[part] for task in drawn], dtype=torch.long) for part in range(3)))


def scores(products: Tensor, labels: Tensor, way: int) -> Tensor:
    """Scores ``(e, n - s, way)`` of logistic regression that was fitted to the first s pictures of each task."""
    shown = len(labels)
    inner = products[:, :shown, :shown]
    logistic: Any = create_classifier("logistic", C=C)
    coefficients, intercepts = logistic.fit_products(inner, labels.expand(len(products), -1), way)
    intercepts = intercepts - inner.mean(dim=1, keepdim=True) @ coefficients
    found: Tensor = products[:, shown:, :shown] @ coefficients + intercepts
    return found


def unit(products: Tensor) -> Tensor:
    """Inner products of the same vectors divided by their lengths."""
    lengths = products.diagonal(dim1=-2, dim2=-1).clamp(min=1e-12).sqrt()
    return products / lengths.unsqueeze(-1) / lengths.unsqueeze(-2)


def without_mean(products: Tensor, weights: Tensor) -> Tensor:
    """Inner products of the same vectors minus their weighted mean, with weights ``(e, n)`` or ``(n,)``."""
    means = (products * weights.unsqueeze(-2)).sum(dim=-1)
    whole = (means * weights).sum(dim=-1)
    return products - means.unsqueeze(-1) - means.unsqueeze(-2) + whole[..., None, None]
