"""Feature maps whose classes differ in one planted thing, and the methods that need no training to look for it.

A map is ``content + constant + noise``. The constant and the noise are the same for all classes: the noise is
independent, with the same variance in every channel and at every position. A constant stands for the positive mean of
features behind a ReLU; DeepEMD, which weights positions by their inner product with the mean of the other image, needs
one. The five kinds of content are in `KINDS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import sqrt
from typing import Any

import torch
from torch import Tensor

import deepbdc
from deepbdc.backbones.base import Backbone
from deepbdc.errors import UserError
from deepbdc.methods.base import Method
from deepbdc.pooling import AveragePool, Flatten
from deepbdc.preprocessing import Preprocessing

CHANNELS, SIDE = 16, 8
POSITIONS = SIDE * SIDE
WAY, SHOT = 5, 5
CHANCE = 100 / WAY
EPISODES = 20  # classified at a time

Content = Callable[[int, torch.Generator], Tensor]
"""From a number of images to the contents ``(way, images, positions, channels)`` of new classes."""


def mean(images: int, generator: torch.Generator) -> Tensor:
    """A class is a vector, which all positions of all its images share."""
    vectors: Tensor = torch.nn.functional.normalize(_normal(WAY, 1, 1, CHANNELS, generator=generator), dim=-1)
    return (vectors * 2.0).expand(-1, images, POSITIONS, -1)


def covariance(images: int, generator: torch.Generator) -> Tensor:
    """A class divides the channels into four groups, and the channels of a group vary together.

    The values are new in each image, and their mean over the positions is exactly 0. All channels of all classes have
    the same variance, and all covariance matrices have the same eigenvalues.
    """
    own = _normal(WAY, images, POSITIONS, CHANNELS, generator=generator)
    common = _normal(WAY, images, POSITIONS, 4, generator=generator).repeat_interleave(CHANNELS // 4, dim=-1)
    content = sqrt(0.8) * common + sqrt(0.2) * own
    content = content - content.mean(dim=2, keepdim=True)
    groups = torch.stack([torch.randperm(CHANNELS, generator=generator) for _ in range(WAY)])
    return content.gather(3, groups[:, None, None].expand_as(content))


def descriptors(images: int, generator: torch.Generator) -> Tensor:
    """A class is a set of 32 local descriptors, each at two random positions of an image.

    They are plus and minus the vectors of an orthogonal basis: the mean of each image is 0, and its second moment is
    the identity matrix, whatever the basis.
    """
    bases = torch.linalg.qr(_normal(WAY, CHANNELS, CHANNELS, generator=generator)).Q * sqrt(CHANNELS)
    content = torch.cat([bases, -bases], dim=1).repeat(1, POSITIONS // (2 * CHANNELS), 1)
    order = torch.rand(WAY, images, POSITIONS, generator=generator).argsort(dim=-1)
    content = content[:, None].expand(-1, images, -1, -1)
    return content.gather(2, order[..., None].expand_as(content))


def place(images: int, generator: torch.Generator) -> Tensor:
    """The maps of all classes have the same two descriptors; a class is the set of positions of the rarer one."""
    vectors = torch.nn.functional.normalize(_normal(2, CHANNELS, generator=generator), dim=-1)
    content = 3 * vectors[_regions((1, 3), generator)]
    return content[:, None].expand(-1, images, -1, -1)


def dependence(images: int, generator: torch.Generator) -> Tensor:
    """A class divides the positions into four regions. Each image draws a new descriptor for each region."""
    regions = _regions((1, 1, 1, 1), generator)
    drawn = _normal(WAY, images, 4, CHANNELS, generator=generator)
    return drawn.gather(2, regions[:, None, :, None].expand(-1, images, -1, CHANNELS))


def _regions(parts: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """For each class, the number of the region of each position; the sizes of the regions have the ratio ``parts``.

    Regions are connected as far as that goes: they divide the values of a random smooth function.
    """
    coarse = _normal(WAY, 1, SIDE // 2, SIDE // 2, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic").flatten(1)
    numbers = torch.arange(len(parts)).repeat_interleave(torch.tensor(parts) * (POSITIONS // sum(parts)))
    return numbers[smooth.argsort(dim=1).argsort(dim=1)]


def _normal(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.randn(*shape, generator=generator)


KINDS: dict[str, tuple[Content, float, float]] = {
    "mean": (mean, 1.0, 0.0),
    "covariance": (covariance, 0.3, 2.0),
    "descriptors": (descriptors, 0.5, 2.0),
    "place": (place, 0.7, 0.0),
    "dependence": (dependence, 0.5, 0.0),
}
"""What tells the classes apart -> the content of the maps, the standard deviation of the noise, and the constant."""


@dataclass(frozen=True)
class Maps:
    """Feature maps of many episodes, each with new classes: ``(episodes, way, images, channels, side, side)``."""

    support: Tensor
    query: Tensor


@cache
def planted_maps(kind: str, episodes: int, query: int, seed: int = 0) -> Maps:
    """Draw episodes whose classes differ only in ``kind``, with ``query`` query images per class."""
    generator = torch.Generator().manual_seed(seed)
    content_of, noise, constant = KINDS[kind]
    content = torch.stack([content_of(SHOT + query, generator) for _ in range(episodes)])
    maps = content + constant + noise * _normal(*content.shape, generator=generator)
    maps = maps.transpose(-2, -1).unflatten(-1, (SIDE, SIDE))
    return Maps(maps[:, :, :SHOT], maps[:, :, SHOT:])


class Identity(Backbone):
    """No network: the images are feature maps already."""

    def __init__(self) -> None:
        super().__init__(CHANNELS, Preprocessing(SIDE, SIDE))

    def forward(self, images: Tensor) -> Tensor:
        return images


@dataclass(frozen=True)
class Entry:
    """A method with its options, before any training."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])

    def create(self, seed: int = 0) -> Method:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return deepbdc.create_method(self.name, Identity(), self.shot, **self.options).eval()

    @property
    def shot(self) -> int:
        """Support images per class that the method is given."""
        return OF_SHOTS.get(self.name, SHOT)

    def accuracy(self, kind: str, episodes: int, query: int) -> float:
        """Percent of the queries that the method classifies correctly."""
        method, maps = self.create(), planted_maps(kind, episodes, query)
        labels, answers = (torch.arange(WAY).repeat_interleave(images) for images in (self.shot, query))
        right = 0
        with torch.no_grad():
            for support, queries in zip(maps.support.split(EPISODES), maps.query.split(EPISODES), strict=True):
                parts = [part.flatten(1, 2) for part in (support[:, :, : self.shot], queries)]
                embedded = [method.embed(part.flatten(0, 1)).unflatten(0, part.shape[:2]) for part in parts]
                scores = method.classify(embedded[0], labels.expand(len(support), -1), embedded[1])
                right += int((scores.argmax(dim=-1) == answers).sum())
        return 100 * right / (episodes * WAY * query)


def entries() -> list[Entry]:
    """All registered methods, and the two with BDC pooling also with positions as observations."""
    positions = {"observations": "positions"}
    return [
        *map(Entry, deepbdc.list_methods()),
        Entry("meta_deepbdc", positions),
        Entry("stl_deepbdc", positions),
    ]


def why_not(entry: Entry) -> str | None:
    """Why a method cannot classify before it is trained; None if it can."""
    try:
        method, other = entry.create(seed=0), entry.create(seed=1)
    except UserError:
        return "it acts between the blocks of a network"
    if any(not torch.equal(value, other.state_dict()[name]) for name, value in method.state_dict().items()):
        return "it starts from random weights"
    if type(method).remember is not Method.remember:
        return "it remembers its training classes"
    return None


@dataclass(frozen=True)
class Sight:
    """What a group of methods can see of a feature map.

    Args:
        title: In words.
        sees: The kinds in which these methods find the classes.
        partly: The kinds in which they may be better than chance; nothing is expected there. In all other kinds they
            are at chance.
    """

    title: str
    sees: tuple[str, ...]
    partly: tuple[str, ...] = ()


MEAN = Sight("the mean", ("mean",))
MOMENTS = Sight("mean and covariance", ("mean", "covariance"))
LOCAL = Sight("local descriptors", ("mean", "covariance", "descriptors"))
WHOLE = Sight("each position in its place", ("mean", "place"), partly=("covariance", "dependence"))
DISTANCES = Sight("distances between positions", ("place", "dependence"))
SIGHTS = (MEAN, MOMENTS, LOCAL, WHOLE, DISTANCES)

OF_SHOTS = {"deepemd": 1}
"""Methods that are given fewer support images. DeepEMD starts the map of a class from the mean of its images at each
position, which means nothing where the positions are in a random order."""

OF_METHODS = {
    "deepemd": LOCAL,
    "adm": MOMENTS,
    "covnet": MOMENTS,
    "frn": MOMENTS,
    "meta_deepbdc": MOMENTS,
    "stl_deepbdc": MOMENTS,
    "adm+dn4": LOCAL,
    "dn4": LOCAL,
    "meta_deepbdc+dn4": LOCAL,
}
"""Methods whose pooling layer does not tell what they see."""


def sight_of(entry: Entry) -> Sight:
    """What a method sees: by its pooling layer, or by `OF_METHODS`."""
    pool = entry.create().embedding.pool
    if entry.options.get("observations") == "positions":
        return DISTANCES
    if isinstance(pool, AveragePool):
        return MEAN
    if isinstance(pool, Flatten):
        return WHOLE
    if entry.name not in OF_METHODS:
        raise LookupError(f"{entry.name} runs without training: say in OF_METHODS what it sees of a feature map")
    return OF_METHODS[entry.name]
