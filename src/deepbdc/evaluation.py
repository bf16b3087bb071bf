"""Evaluate a method on thousands of episodes: embed every image once, then score the episodes in batches."""

import hashlib
import json
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deepbdc._files import write_json
from deepbdc._fingerprint import weights_fingerprint
from deepbdc._modes import evaluating
from deepbdc.data.dataset import Dataset
from deepbdc.episodes import Episode, Episodes, Range, sample_episodes
from deepbdc.errors import UserError
from deepbdc.feature_bank import Shard, Source, device_of
from deepbdc.intervals import class_interval, usual_interval
from deepbdc.methods.base import Method, TrainingClasses, shots_of
from deepbdc.preprocessing import AtTestTime
from deepbdc.sources import name_of, prepare_source

_BYTES_AT_A_TIME = 2**27
"""Memory for the representations of a batch of episodes and what a classifier needs besides."""


@dataclass(frozen=True, eq=False)
class EvaluationResult:
    """The accuracies of an evaluation, and everything that identifies what was evaluated."""

    accuracies: NDArray[np.float64] = field(repr=False)  # of each episode, in percent
    way: Range
    shot: Range
    query: int
    seed: int
    unbalanced: bool
    distinct_content: bool
    dataset: str
    split: str
    classifier: str
    transductive: bool
    kept: str
    seconds: float
    data_fingerprint: str
    weights_fingerprint: str
    episodes_fingerprint: str
    class_names: tuple[str, ...] = field(default=(), repr=False)
    confusion: NDArray[np.int64] | None = field(default=None, repr=False)  # (true class, predicted class)
    dirichlet: float = 1.0  # of unbalanced queries
    assumes_balanced_queries: bool = False
    classes: NDArray[np.int64] | None = field(default=None, repr=False)
    """The classes of each episode ``(episodes, way)``, as indices of ``class_names``; None if the ways differ."""
    crops: int = 1  # as for `AtTestTime`, like the next three
    crop_side: float = 0.875
    centre: bool = False
    power: float = 1.0

    @property
    def test_time(self) -> AtTestTime:
        """What was made of each image besides the usual."""
        return AtTestTime(self.crops, self.crop_side, self.centre, self.power)

    @property
    def mean(self) -> float:
        """The mean accuracy, in percent."""
        return float(self.accuracies.mean())

    @property
    def ci95(self) -> float:
        """Half the width of the usual 95 % interval of the mean, over episodes of these classes."""
        return usual_interval(self.accuracies)

    @property
    def ci95_classes(self) -> float | None:
        """Half the width of the 95 % interval that regards the classes as a sample of all such classes.

        None if it cannot be had: see `class_interval`. Results of earlier versions do not say their classes.
        """
        return None if self.classes is None else class_interval(self.accuracies, self.classes)

    @property
    def class_accuracies(self) -> dict[str, float]:
        """The share of right answers for each class that was queried, in percent; needs ``confusion=True``."""
        if self.confusion is None:
            raise UserError("this result has no confusion matrix: evaluate(..., confusion=True) makes one")
        right, total = self.confusion.diagonal(), self.confusion.sum(axis=1)
        rows = zip(self.class_names, right, total, strict=True)
        return {name: 100 * float(hits / asked) for name, hits, asked in rows if asked}

    def compare(self, other: "EvaluationResult") -> "Comparison":
        """How much better this result is than another on the same episodes.

        If one of them has more episodes, its first ones count: an episode depends on the seed and its number alone.
        """
        if not self._has_episodes_of(other):
            raise UserError("the two results are of different episodes: a paired comparison needs the same ones")
        from scipy.stats import ttest_rel

        count = min(len(self.accuracies), len(other.accuracies))
        own, others = self.accuracies[:count], other.accuracies[:count]
        differences = own - others
        p_value = 1.0 if not differences.any() else float(ttest_rel(own, others).pvalue)
        classes = other.classes if self.classes is None else self.classes  # those of the same episodes
        over_classes = None if classes is None else class_interval(differences, classes[:count])
        fewer = count if len(self.accuracies) != len(other.accuracies) else None
        return Comparison(float(differences.mean()), usual_interval(differences), p_value, over_classes, fewer)

    def _has_episodes_of(self, other: "EvaluationResult") -> bool:
        """Whether the episodes of both are the same, or those of one are the first ones of the other."""
        if len(self.accuracies) == len(other.accuracies):
            return self.episodes_fingerprint == other.episodes_fingerprint
        names = ("way", "shot", "query", "seed", "unbalanced", "dirichlet", "distinct_content", "data_fingerprint")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def save(self, path: str | Path) -> None:
        """Write the result as JSON."""
        write_json(path, self.as_json())

    def as_json(self) -> dict[str, Any]:
        """The result in plain values, with mean and intervals."""
        content = asdict(self) | {name: getattr(self, name) for name in _DERIVED}
        return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in content.items()}

    @staticmethod
    def load(path: str | Path) -> "EvaluationResult":
        """Read what `save` wrote."""
        return EvaluationResult.from_json(json.loads(Path(path).read_text(encoding="utf-8")))

    @staticmethod
    def from_json(values: dict[str, Any]) -> "EvaluationResult":
        """The result of the plain values that `as_json` gave."""
        content = {key: value for key, value in values.items() if key not in _DERIVED}
        for name in ("way", "shot", "class_names"):
            content[name] = tuple(content[name]) if isinstance(content[name], list) else content[name]
        content["accuracies"] = np.array(content["accuracies"], dtype=np.float64)
        for name in ("confusion", "classes"):
            table = content.get(name)
            content[name] = None if table is None else np.array(table, dtype=np.int64)
        return EvaluationResult(**content)

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.ci95:.2f}"


_DERIVED = ("mean", "ci95", "ci95_classes")
"""What `EvaluationResult.as_json` adds to the fields."""


@dataclass(frozen=True)
class Comparison:
    """A paired difference of accuracies in percent, with its 95 % intervals and the p-value of a paired t-test.

    ``ci95`` is for other episodes of the same classes, ``ci95_classes`` for other classes (see `class_interval`).
    ``episodes`` is the number of episodes that were compared, if one of the two results has more; else None.
    """

    difference: float
    ci95: float
    p_value: float
    ci95_classes: float | None = None
    episodes: int | None = None


def evaluate(
    method: Method,
    dataset: Dataset,
    way: Range = 5,
    shot: Range = 1,
    query: int = 15,
    episodes: int | Episodes = 2000,
    seed: int = 0,
    *,
    unbalanced: bool = False,
    dirichlet: float = 1.0,
    bank: Source | None = None,
    batch_size: int = 64,
    device: str | torch.device = "cpu",
    budget: int | None = None,
    cache: str | Path | None = None,
    progress: bool = False,
    confusion: bool = False,
    workers: int = 0,
    shard: Shard | None = None,
    crops: int = 1,
    crop_side: float = AtTestTime.crop_side,
    power: float = 1.0,
    base: Dataset | None = None,
) -> EvaluationResult:
    """Evaluate a method on episodes of a data set.

    Args:
        method: An embedding and a classifier.
        dataset: The split to draw episodes from.
        way: Classes per episode.
        shot: Support images per class.
        query: Query images per class.
        episodes: How many, or episodes drawn before (then way, shot, query, seed, unbalanced and dirichlet are theirs).
        seed: Of the episodes: the same seed gives the same ones to every method.
        unbalanced, dirichlet: As for `sample_episodes`.
        bank: What an earlier ``method.source(dataset)`` gave; otherwise it is made now.
        device: Where to embed images and to score episodes, if ``bank`` is not given; else the method's own device.
        batch_size, budget, cache, progress, workers, shard: As for `build_bank`.
        confusion: Also count which class was taken for which.
        crops, crop_side: How many views of each image are embedded and fused, as for `AtTestTime`; with ``bank``, those
            of the bank.
        power: Exponent, see `AtTestTime`; with ``bank``, that of the bank.
        base: The training images. Their mean representation is then subtracted from each representation.
    """
    start = time.perf_counter()
    if not isinstance(episodes, Episodes):
        episodes = sample_episodes(
            dataset, way, shot, query, episodes, seed, unbalanced=unbalanced, dirichlet=dirichlet
        )
    episodes.check(dataset)
    if method.assumes_balanced_queries and episodes.settings.unbalanced:
        warnings.warn(
            f"{name_of(method)} assumes that all classes of a task have equally many queries, but the queries of these "
            "episodes are unbalanced: its accuracy is lower than where the assumption is true",
            stacklevel=2,
        )
    if bank is None:
        options: dict[str, Any] = {"batch_size": batch_size, "device": device, "budget": budget, "cache": cache}
        options |= {"progress": progress, "workers": workers, "shard": shard}
        chosen = AtTestTime(crops, crop_side, centre=base is not None, power=power)
        training = None if base is None else TrainingClasses(base)
        bank = prepare_source(method.to(device), dataset, chosen, training, **options)
    bank.check(method.embedding, dataset)
    accuracies, counts = _score(method, bank, episodes, len(dataset.class_names), progress)
    settings = episodes.settings
    return EvaluationResult(
        accuracies=accuracies,
        way=settings.way,
        shot=settings.shot,
        query=settings.query,
        seed=settings.seed,
        unbalanced=settings.unbalanced,
        distinct_content=settings.distinct_content,
        dataset=dataset.name,
        split=dataset.split,
        classifier=_classifiers_used(method, episodes),
        transductive=method.transductive,
        kept=bank.kept,
        seconds=time.perf_counter() - start,
        data_fingerprint=bank.data_fingerprint,
        weights_fingerprint=weights_fingerprint(method),
        episodes_fingerprint=episodes_fingerprint(episodes),
        class_names=dataset.class_names,
        confusion=counts if confusion else None,
        dirichlet=settings.dirichlet,
        assumes_balanced_queries=method.assumes_balanced_queries,
        classes=classes_of(episodes),
        **asdict(bank.test_time),
    )


def _classifiers_used(method: Method, episodes: Episodes) -> str:
    """The classifiers for the numbers of shots that there are, as text."""
    shots = {shots_of(torch.from_numpy(episode.support_labels)) for episode in episodes}
    return " / ".join(dict.fromkeys(repr(method.classifier_for(shot)) for shot in sorted(shots)))


def _score(
    method: Method, source: Source, episodes: Episodes, classes: int, progress: bool
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Accuracy of each episode in percent ``(episodes,)``, and counts of (true, predicted) classes."""
    accuracies, counts = np.zeros(len(episodes)), np.zeros((classes, classes), dtype=np.int64)
    device = device_of(method)
    row = source.rows(episodes[0].support[:1])
    for places in _shown(list(_batches(method, episodes, tuple(row.shape[1:]))), len(episodes), progress):
        batch = [episodes[place] for place in places]
        support, query = (
            source.rows(indices.reshape(-1)).unflatten(0, indices.shape).to(device)
            for indices in (_stack(batch, "support"), _stack(batch, "query"))
        )
        labels = torch.from_numpy(_stack(batch, "support_labels")).to(device)
        with evaluating(method), torch.no_grad():
            scores = method.classify(support, labels, query)
        predicted, true = scores.argmax(dim=-1).cpu().numpy(), _stack(batch, "query_labels")
        accuracies[places] = 100 * (predicted == true).mean(axis=1)
        named = _stack(batch, "classes")
        pairs = (np.take_along_axis(named, true, 1), np.take_along_axis(named, predicted, 1))
        np.add.at(counts, pairs, 1)
    return accuracies, counts


def _shown(batches: list[list[int]], total: int, show: bool) -> Iterator[list[int]]:
    """The batches, with a progress bar that counts episodes."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("Scoring episodes"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True, disable=not show) as bar:
        task = bar.add_task("", total=total)
        for places in batches:
            yield places
            bar.update(task, advance=len(places))


def _batches(method: Method, episodes: Episodes, row: tuple[int, ...]) -> Iterator[list[int]]:
    """The places of episodes of one shape, as many at a time as fit the memory; ``row`` is the shape of one image's."""
    by_shape: dict[tuple[int, int, int], list[int]] = {}
    for place, episode in enumerate(episodes):
        by_shape.setdefault(episode.shape, []).append(place)
    for (_, support, query), places in by_shape.items():
        inputs = 4 * (support + query) * math.prod(row)
        size = inputs + method.working_memory((support, *row), (query, *row))
        most = max(1, _BYTES_AT_A_TIME // size)
        for start in range(0, len(places), most):
            yield places[start : start + most]


def _stack(batch: Sequence[Episode], name: str) -> NDArray[np.int64]:
    return np.stack([getattr(episode, name) for episode in batch])


def episodes_of(result: EvaluationResult, dataset: Dataset) -> Episodes:
    """Draw the episodes of a result again, from the data set that it is of."""
    return sample_episodes(
        dataset,
        result.way,
        result.shot,
        result.query,
        len(result.accuracies),
        result.seed,
        unbalanced=result.unbalanced,
        dirichlet=result.dirichlet,
        distinct_content=result.distinct_content,
    )


def classes_of(episodes: Episodes) -> NDArray[np.int64] | None:
    """The classes of each episode ``(episodes, way)``; None if episodes have different ways."""
    one_way = len({len(episode.classes) for episode in episodes}) == 1
    return np.stack([episode.classes for episode in episodes]) if one_way else None


def episodes_fingerprint(episodes: Episodes) -> str:
    """A short text that is equal for the same episodes of the same images."""
    digest = hashlib.blake2b(episodes.data_fingerprint.encode(), digest_size=12)
    for episode in episodes:
        digest.update(episode.support.tobytes() + episode.query.tobytes())
    return digest.hexdigest()
