"""Evaluate the networks behind tables again, and compare with the stored results, episode by episode."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepbdc.paper.cells import Bench, evaluate_run
from deepbdc.paper.experiments import Experiment


@dataclass(frozen=True)
class Verified:
    """A stored result and the same evaluation now."""

    run: Path
    shot: int
    classifier: str | None
    """What classified the queries, in place of the method's own classifier."""
    stored: str
    now: str
    same: bool
    """Whether the accuracies of all episodes are equal."""


def verify(bench: Bench, chosen: Iterable[Experiment]) -> Iterator[Verified]:
    """Evaluate again what stands in the cells of experiments; what several cells share, once."""
    seen: set[tuple[Path, str | None, str]] = set()
    for experiment in chosen:
        for row, shot, training in bench.cells(experiment):
            if not training.finished:
                continue
            dataset, episodes = bench.task(experiment, training, shot)
            stored = bench.stored(experiment, row, training, episodes)
            if stored is None or (key := (training.folder, row.classifier, stored.episodes_fingerprint)) in seen:
                continue
            seen.add(key)
            now = evaluate_run(training.folder, dataset, episodes, row.classifier)
            same = now.weights_fingerprint == stored.weights_fingerprint
            same = same and bool(np.array_equal(now.accuracies, stored.accuracies))
            yield Verified(training.folder, shot, row.classifier, str(stored), str(now), same)
