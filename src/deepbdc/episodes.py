"""Episodes: which images are support and which are query, as indices and labels. Episodes never hold pixels."""

import io
import json
import operator
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from deepbdc._files import read_npz, temporary
from deepbdc.errors import UserError, WrongType

Indices = NDArray[np.int64]
Range = int | tuple[int, int]


class Labelled(Protocol):
    """The part of a data set that is needed to sample episodes."""

    class_names: tuple[str, ...]
    labels: Tensor

    @property
    def fingerprint(self) -> str:
        """A text that is the same for two data sets only if their content is the same."""

    def content_ids(self) -> Indices:
        """For each image, the index of the first image with the same content."""


@dataclass(frozen=True)
class Episode:
    """One task: the indices of its support and query images, and their labels 0..way-1.

    Label i stands for the class ``classes[i]`` of the data set.
    """

    support: Indices
    support_labels: Indices
    query: Indices
    query_labels: Indices
    classes: Indices

    @property
    def shape(self) -> tuple[int, int, int]:
        """(way, support images, query images)."""
        return len(self.classes), len(self.support), len(self.query)


@dataclass(frozen=True)
class Settings:
    """The arguments of `sample_episodes`. Together with the data set, they determine the episodes."""

    way: Range
    shot: Range
    query: int
    count: int
    seed: int
    unbalanced: bool = False
    distinct_content: bool = False
    dirichlet: float = 1.0


@dataclass(frozen=True)
class Episodes:
    """A list of episodes, with the settings and the fingerprint of the data set that they were sampled from."""

    items: tuple[Episode, ...]
    settings: Settings
    data_fingerprint: str

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Episode]:
        return iter(self.items)

    def __getitem__(self, index: int) -> Episode:
        return self.items[index]

    def check(self, dataset: Labelled) -> None:
        """Raise `UserError` if these episodes were sampled from another data set."""
        if dataset.fingerprint != self.data_fingerprint:
            raise UserError(
                f"these episodes were drawn from another data set, with the fingerprint {self.data_fingerprint}; "
                f"the fingerprint of this one is {dataset.fingerprint}"
            )

    def save(self, path: str | Path) -> None:
        """Write the episodes to one small .npz file."""
        header = {"settings": asdict(self.settings), "data_fingerprint": self.data_fingerprint}
        columns = {
            name: np.concatenate([getattr(episode, name) for episode in self.items]).astype(np.int32)
            for name in _COLUMNS
        }
        sizes = np.array([episode.shape for episode in self.items], dtype=np.int32)
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {"header": np.array(json.dumps(header)), "sizes": sizes, **columns}
        np.savez_compressed(buffer, **arrays)
        with temporary(Path(path)) as part:
            part.write_bytes(buffer.getvalue())

    @staticmethod
    def load(path: str | Path) -> "Episodes":
        """Read a file that `save` wrote."""
        file = read_npz(path)
        if not {"header", "sizes", *_COLUMNS} <= file.keys():
            raise UserError(f"{path} is not a file of episodes")
        header, sizes = json.loads(str(file["header"])), file["sizes"]
        columns = {name: file[name].astype(np.int64) for name in _COLUMNS}
        ends = {name: np.cumsum(sizes[:, column])[:-1] for name, column in _COLUMNS.items()}
        parts = {name: np.split(columns[name], ends[name]) for name in _COLUMNS}
        items = tuple(Episode(**{name: parts[name][index] for name in _COLUMNS}) for index in range(len(sizes)))
        given: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in header["settings"].items()
        }
        return Episodes(items, Settings(**given), header["data_fingerprint"])


# For each field of an episode, the column of "sizes" that holds its length.
_COLUMNS = {"classes": 0, "support": 1, "support_labels": 1, "query": 2, "query_labels": 2}


def sample_episodes(
    dataset: Labelled,
    way: Range = 5,
    shot: Range = 1,
    query: int = 15,
    count: int = 2000,
    seed: int = 0,
    *,
    unbalanced: bool = False,
    dirichlet: float = 1.0,
    distinct_content: bool = False,
) -> Episodes:
    """Sample episodes: for each one draw classes, then images of each class, uniformly and without replacement.

    Each episode has its own random stream, which depends only on ``seed`` and on the number of the episode. The same
    seed gives the same episodes on every machine, and the first 100 episodes are the same whether ``count`` is 100 or
    2,000.

    Args:
        dataset: The split to sample from.
        way: Classes per episode, or an inclusive range ``(fewest, most)`` from which each episode draws its number.
        shot: Support images per class, or such a range.
        query: Query images per class.
        count: Number of episodes.
        seed: Any integer from 0 to 2⁶⁴ - 1.
        unbalanced: Distribute the way · query query images of an episode over its classes at random: the shares of the
            classes come from a Dirichlet distribution, and each query then draws its class. If a class has too few
            images, the remaining queries are drawn from the following classes.
        dirichlet: Parameter of the Dirichlet distribution, the same for all classes. With 1, all distributions of the
            queries are equally likely; the larger, the more balanced. Veilleux et al., "Realistic Evaluation of
            Transductive Few-Shot Learning", NeurIPS 2021, has 2; as far as we remember it rounds the shares instead
            of drawing the queries, which makes its tasks slightly more balanced.
        distinct_content: Of several images with the same content, use only the first. This reads all images once.
    """
    way, shot = _plain_range("way", way), _plain_range("shot", shot)
    query, count, seed = operator.index(query), operator.index(count), operator.index(seed)
    settings = Settings(way, shot, query, count, seed, unbalanced, distinct_content, float(dirichlet))
    members = _members(dataset, distinct_content)
    _check_settings(settings, dataset.class_names, members)
    items = tuple(_draw(settings, members, number) for number in range(count))
    return Episodes(items, settings, dataset.fingerprint)


class EpisodeStream:
    """An endless sequence of episodes, each drawn when it is accessed.

    Episode ``n`` is the same as episode ``n`` of `sample_episodes` with the same arguments.
    """

    def __init__(self, dataset: Labelled, way: Range, shot: Range, query: int, seed: int) -> None:
        self._settings = Settings(_plain_range("way", way), _plain_range("shot", shot), query, 1, seed)
        self._members = _members(dataset, distinct_content=False)
        _check_settings(self._settings, dataset.class_names, self._members)

    def __getitem__(self, number: int) -> Episode:
        return _draw(self._settings, self._members, number)


def _members(dataset: Labelled, distinct_content: bool) -> list[Indices]:
    """The image indices of each class."""
    labels = dataset.labels.numpy()
    usable = np.ones(len(labels), dtype=bool)
    if distinct_content:
        usable = dataset.content_ids() == np.arange(len(labels))
    return [np.flatnonzero((labels == label) & usable) for label in range(len(dataset.class_names))]


def _check_settings(settings: Settings, class_names: tuple[str, ...], members: list[Indices]) -> None:
    for name in ("way", "shot"):
        fewest, most = _range(getattr(settings, name))
        if not 1 <= fewest <= most:
            raise UserError(f"{name} must be at least 1, or a range (fewest, most), got {getattr(settings, name)}")
    if settings.query < 1 or settings.count < 1 or not 0 <= settings.seed < 2**64:
        given = f"{settings.query}, {settings.count} and {settings.seed}"
        raise UserError(f"query and count must be at least 1, and seed at least 0 and below 2^64, got {given}")
    check_dirichlet(settings.unbalanced, settings.dirichlet)
    way, shot = _range(settings.way)[1], _range(settings.shot)[1]
    if way > len(members):
        raise UserError(f"{way}-way episodes need {way} classes, but the data set has {len(members)}")
    for class_name, images in zip(class_names, members, strict=True):
        if len(images) < shot + settings.query:
            raise UserError(
                f"class {class_name!r} has {len(images)} images, but {shot} for support + {settings.query} for query "
                f"= {shot + settings.query} are needed"
            )


def check_dirichlet(unbalanced: bool, dirichlet: float) -> None:
    """Raise `UserError` unless the Dirichlet parameter is positive, and has a meaning if it is not the default."""
    if not 0 < dirichlet < float("inf"):
        raise UserError(f"dirichlet must be a positive number, got {dirichlet!r}")
    if dirichlet != 1 and not unbalanced:
        raise UserError(f"dirichlet={dirichlet:g} has no effect on balanced queries: set unbalanced as well")


def _draw(settings: Settings, members: list[Indices], number: int) -> Episode:
    """Episode ``number``, from the image indices of each class."""
    stream = np.random.Philox(key=np.array([settings.seed, number], dtype=np.uint64))
    way = _between(stream, _range(settings.way))
    shot = _between(stream, _range(settings.shot))
    classes = _choose(stream, np.arange(len(members)), way)
    queries = _shares(stream, settings, [len(members[c]) - shot for c in classes])
    support, query = [], []
    for label, queries_of_class in zip(classes, queries, strict=True):
        images = _choose(stream, members[label], shot + queries_of_class)
        support.append(images[:shot])
        query.append(images[shot:])
    return Episode(
        support=np.concatenate(support),
        support_labels=np.repeat(np.arange(way), shot),
        query=np.concatenate(query),
        query_labels=np.repeat(np.arange(way), queries),
        classes=classes,
    )


def _choose(stream: np.random.Philox, values: Indices, count: int) -> Indices:
    """``count`` of the values in random order: each value gets a random key, and those with the smallest keys win."""
    return values[np.argsort(stream.random_raw(len(values)), kind="stable")[:count]]


def _between(stream: np.random.Philox, limits: tuple[int, int]) -> int:
    """A random integer between the limits, both included. Equal limits take no number from the stream."""
    fewest, most = limits
    return fewest if fewest == most else fewest + int(stream.random_raw()) % (most - fewest + 1)


def _shares(stream: np.random.Philox, settings: Settings, available: list[int]) -> list[int]:
    """The number of query images of each class: equal, or random for unbalanced episodes.

    If a class has fewer images than its random number (see ``available``), the surplus passes to the following classes.
    """
    way, total = len(available), len(available) * settings.query
    if not settings.unbalanced:
        return [settings.query] * way
    shares = _equally_likely(stream, way, total) if settings.dirichlet == 1 else _urn(stream, way, total, settings)
    surplus = 0
    for label in [*range(way), *range(way)]:
        wanted = shares[label] + surplus
        shares[label] = min(wanted, available[label])
        surplus = wanted - shares[label]
    return shares


def _equally_likely(stream: np.random.Philox, way: int, total: int) -> list[int]:
    """Numbers of all classes that sum to ``total``: each such list is equally likely.

    "Stars and bars": of total + way - 1 places in a row, way - 1 are bars, which separate the query images of the
    classes. All positions of the bars are equally likely.
    """
    bars = np.sort(_choose(stream, np.arange(total + way - 1), way - 1))
    return [int(share) for share in np.diff(np.concatenate([[-1], bars, [total + way - 1]])) - 1]


def _urn(stream: np.random.Philox, way: int, total: int, settings: Settings) -> list[int]:
    """Numbers of all classes that sum to ``total``, from a Dirichlet distribution of their shares.

    "Pólya's urn": one query after the other draws its class, with a probability proportional to the parameter plus the
    number that the class has already. This gives the same distribution as drawing shares first, and needs only
    arithmetic whose results are the same on every machine. With the parameter 1 it is that of `_equally_likely`.
    """
    shares = [0] * way
    for drawn in range(total):
        place = int(stream.random_raw() >> np.uint64(11)) * 2.0**-53 * (way * settings.dirichlet + drawn)
        label = 0
        while label < way - 1 and place >= settings.dirichlet + shares[label]:
            place -= settings.dirichlet + shares[label]
            label += 1
        shares[label] += 1
    return shares


def _plain_range(name: str, value: Range) -> Range:
    """The value with its integers, which may be numpy integers, converted to ints."""
    try:
        return (
            (operator.index(value[0]), operator.index(value[1])) if isinstance(value, tuple) else operator.index(value)
        )
    except (TypeError, IndexError):
        raise WrongType(f"{name} must be an integer or a range (fewest, most), got {value!r}") from None


def _range(value: Range) -> tuple[int, int]:
    """The smallest and the largest number; both are the value itself, if it is a single number."""
    return value if isinstance(value, tuple) else (value, value)
