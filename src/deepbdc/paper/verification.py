"""Evaluate the networks behind tables again, and compare with the stored results, episode by episode."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepbdc.gallery import load_result
from deepbdc.paper.cells import Bench, draw, evaluate_run
from deepbdc.paper.experiments import Experiment


@dataclass(frozen=True)
class Verified:
    """A stored result and the same evaluation now."""

    run: Path
    shot: int
    stored: str
    now: str
    same: bool
    """Whether the accuracies of all episodes are equal."""


def verify(bench: Bench, chosen: Iterable[Experiment]) -> Iterator[Verified]:
    """Evaluate every finished run behind the experiments once for each of its stored results on the test classes."""
    dataset = bench.splits["test"]
    for training in bench.trainings(experiment for experiment in chosen if experiment.is_trained):
        if not training.finished:
            continue
        for stored in load_result(training.folder).results:
            assert isinstance(stored.shot, int)
            episodes = draw(dataset, training.recipe.evaluation_settings, stored.shot)
            now = evaluate_run(training.folder, dataset, episodes, None)
            same = (
                now.episodes_fingerprint == stored.episodes_fingerprint
                and now.weights_fingerprint == stored.weights_fingerprint
                and bool(np.array_equal(now.accuracies, stored.accuracies))
            )
            yield Verified(training.folder, stored.shot, str(stored), str(now), same)
