"""The pictures and the tasks of benchmarks/alternatives.py, and feature maps of the pictures, computed once."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from deepbdc.data.dataset import Dataset
from deepbdc.estimator import EmbeddedImage
from deepbdc.own_images.networks import find_embedding
from deepbdc.own_images.reading import embed_all, map_fingerprint
from own_maps import SETS, chosen_photos, draw, photos_of

WAY, QUERY = 5, 15
_CHUNK = 50
"""So many pictures are embedded before the maps are written."""


@dataclass(frozen=True)
class Photos:
    """Some pictures of the test classes of a data set."""

    name: str
    data: Dataset
    places: Sequence[int]
    """Their indices in the data set."""

    @classmethod
    def of(cls, name: str, source: Path) -> "Photos":
        """The same pictures as in benchmarks/own_images.py."""
        data = photos_of(name, source, "test")
        return cls(name, data, chosen_photos(data, SETS[name]))

    @property
    def labels(self) -> NDArray[np.int64]:
        labels: NDArray[np.int64] = self.data.labels.numpy()[list(self.places)]
        return labels

    def picture(self, index: int) -> Image.Image:
        return self.data.image(self.places[index]).convert("RGB")


@dataclass(frozen=True)
class Task:
    """A task: examples of five classes, and pictures to classify, as indices of `Photos`; labels are 0 to 4."""

    photos: Photos
    shot: int
    number: int
    examples: list[int]
    queries: list[int]

    @property
    def example_labels(self) -> list[int]:
        return [label for label in range(WAY) for _ in range(self.shot)]

    def accuracy(self, answers: Sequence[int]) -> float:
        """In percent."""
        right = np.repeat(np.arange(WAY), len(self.queries) // WAY)
        return float(100 * (np.asarray(answers) == right).mean())


def tasks_of(photos: Photos, shot: int, count: int) -> Iterator[Task]:
    """The first tasks. Those with one shot have the first examples of those with five."""
    drawn = draw(photos.labels, WAY, shot, count, query=QUERY)
    for number in range(count):
        yield Task(photos, shot, number, drawn.support[number].tolist(), drawn.query[number].tolist())


class Maps:
    """Feature maps of pictures. With a folder, those that were computed are kept in it, in half precision."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._kept: dict[str, dict[int, Tensor]] = {}

    def of(self, photos: Photos, network: str, indices: Sequence[int], parts: bool) -> list[EmbeddedImage]:
        """Embedded pictures, with their parts if asked for."""
        title = f"{network},{photos.name},{'parts' if parts else 'whole'}"
        known = self._known(title) if self.folder else {}
        embedding = find_embedding(network, None, None, "cpu")
        missing = [index for index in dict.fromkeys(indices) if index not in known]
        for chunk in _chunks(missing):
            found = embed_all([photos.picture(index) for index in chunk], embedding, 8, parts=parts)
            known.update({index: _views(one).half() for index, one in zip(chunk, found, strict=True)})
            if self.folder:
                torch.save(known, self.folder / f"{title}.pt")
        fingerprint = map_fingerprint(embedding)
        return [_embedded(str(index), known[index].float(), fingerprint) for index in indices]

    def _known(self, title: str) -> dict[int, Tensor]:
        assert self.folder is not None
        if title not in self._kept:
            file = self.folder / f"{title}.pt"
            self._kept[title] = torch.load(file, weights_only=True) if file.exists() else {}
        return self._kept[title]


def _chunks(indices: Sequence[int]) -> Iterable[Sequence[int]]:
    return (indices[start : start + _CHUNK] for start in range(0, len(indices), _CHUNK))


def _views(found: EmbeddedImage) -> Tensor:
    """The maps of a picture and of its parts ``(views, d, h, w)``."""
    whole = found.features.unsqueeze(0)
    return whole if found.parts is None else torch.cat([whole, found.parts])


def _embedded(name: str, views: Tensor, network: str) -> EmbeddedImage:
    """An embedded picture whose thumbnail is only its name: equal thumbnails would be taken for equal pictures."""
    return EmbeddedImage(name, views[0], name.encode(), network, views[1:] if len(views) > 1 else None)
