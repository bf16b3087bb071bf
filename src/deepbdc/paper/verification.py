"""Evaluate the networks behind tables again, and compare with the stored results, episode by episode."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepbdc.data.loading import find_data, load_dataset
from deepbdc.data.shrunk import shrunk
from deepbdc.evaluation import EvaluationResult, episodes_of, evaluate
from deepbdc.feature_bank import Source
from deepbdc.gallery import find_result, load_result
from deepbdc.paper.cells import Bench, evaluate_run
from deepbdc.paper.experiments import Experiment
from deepbdc.preprocessing import AtTestTime
from deepbdc.runs import Run, load_run, source_of_run
from deepbdc.zoo import network_folder


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
    reason: str = ""
    """Why they are not, if that is known."""


def verify_network(name_or_path: str | Path, data: str | Path | None, root: Path | None = None) -> Iterator[Verified]:
    """Evaluate a network of the zoo, or a run, on the episodes of its stored results.

    If ``data`` is another data set than that of the run, they are those that the gallery has for this pair.

    Args:
        name_or_path: A name in the zoo, or the folder of a finished run.
        data: The folder that contains the prepared benchmark, or the data set itself (default: that of the run).
        root: The folder of prepared benchmarks, where ``data`` does not say it.
    """
    folder = network_folder(name_or_path)
    run = load_run(folder)
    name, found = find_data(run.recipe.data, run.data if data is None else data)
    sources: dict[tuple[str, AtTestTime], Source] = {}
    for stored in _stored_results(run, Path(name).name if name != run.recipe.data else None):
        assert isinstance(stored.shot, int)
        dataset = shrunk(load_dataset(name, stored.split, root=root or found), run.recipe.shrink_to)
        if dataset.fingerprint != stored.data_fingerprint:
            words = (
                f"the images are not those of the stored result: their fingerprint is {dataset.fingerprint}, "
                f"that of the result is {stored.data_fingerprint}"
            )
            yield Verified(folder, stored.shot, None, str(stored), "not evaluated", False, words)
            continue
        key = stored.split, stored.test_time
        if key not in sources:
            sources[key] = source_of_run(run, dataset, stored.test_time, data)
        now = evaluate(run.method, dataset, episodes=episodes_of(stored, dataset), bank=sources[key])
        yield _compared(folder, None, stored, now)


def _stored_results(run: Run, other: str | None) -> tuple[EvaluationResult, ...]:
    """The stored results of a run: its own, or those on another data set, if the gallery has them."""
    data, backbone = (part.replace("->", "_to_") for part in (run.recipe.data, str(run.recipe.backbone["name"])))
    across = None if other is None else find_result(f"gallery/{data}_to_{other}/{backbone}/{run.name}")
    return load_result(run.folder if across is None else across).results


def _compared(folder: Path, classifier: str | None, stored: EvaluationResult, now: EvaluationResult) -> Verified:
    """Compare two results episode by episode. Kept accuracies are rounded to four decimals."""
    assert isinstance(stored.shot, int)
    pairs = ("weights_fingerprint", "the weights"), ("episodes_fingerprint", "the episodes")
    other = [words for key, words in pairs if getattr(now, key) != getattr(stored, key)]
    reason = f"{' and '.join(other)} are not those of the stored result" if other else ""
    if not other:
        differing = np.flatnonzero(np.round(now.accuracies, 4) != np.round(stored.accuracies, 4))
        if len(differing):
            largest = np.abs(now.accuracies - stored.accuracies).max()
            reason = f"{len(differing)} of {len(now.accuracies)} episodes differ, by {largest:.2f} points at most"
    return Verified(folder, stored.shot, classifier, str(stored), str(now), not reason, reason)


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
            now = evaluate_run(training.folder, dataset, episodes, row.classifier, stored.test_time)
            yield _compared(training.folder, row.classifier, stored, now)
