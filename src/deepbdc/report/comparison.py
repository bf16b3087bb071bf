"""Compare trained runs and kept results on the same episodes: accuracies, and paired differences to one of them.

``comparison_output.py`` shows the result.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepbdc.data.dataset import Dataset
from deepbdc.episodes import Episodes
from deepbdc.errors import UserError
from deepbdc.evaluation import Comparison, EvaluationResult, episodes_fingerprint, evaluate
from deepbdc.gallery import KeptResult
from deepbdc.provenance import origin, record_look

if TYPE_CHECKING:
    import torch

    from deepbdc.recipes import Recipe
    from deepbdc.runs import Run

    Compared = Run | KeptResult


@dataclass(frozen=True)
class Row:
    """One run or kept result, with a result for each number of shots."""

    name: str
    method: str
    folder: str
    """The folder of the run, or the file of the kept result."""
    results: tuple[EvaluationResult, ...]
    recipe: "Recipe | None" = None
    """The recipe of the run; None for a kept result."""
    training_seed: int | None = None
    looks: int | None = None
    """How often the run has looked at these test classes, if that is known; see `record_look`."""


@dataclass(frozen=True)
class Seeds:
    """Several trainings of one recipe that differ only in their seed."""

    name: str
    rows: tuple[Row, ...]

    @property
    def means(self) -> tuple[float, ...]:
        """The mean over the trainings of their mean accuracies, for each number of shots."""
        return tuple(float(column.mean()) for column in self._accuracies)

    @property
    def deviations(self) -> tuple[float, ...]:
        """The standard deviation over the trainings of their mean accuracies, for each number of shots."""
        return tuple(float(column.std(ddof=1)) for column in self._accuracies)

    @property
    def _accuracies(self) -> list[Any]:
        return list(np.array([[result.mean for result in row.results] for row in self.rows]).T)


@dataclass(frozen=True)
class SeedDifference:
    """The differences of several trainings to the baseline."""

    mean: float
    deviation: float
    """The standard deviation over the trainings."""
    by_seed: bool
    """Whether each training was compared with the baseline's training of the same seed; else all with one."""


@dataclass(frozen=True)
class ComparisonTable:
    """The results of several runs on the same episodes. The first run is the baseline of the comparison."""

    rows: tuple[Row, ...]
    shots: tuple[int, ...]

    @property
    def baseline(self) -> Row:
        """The run with which the others are compared."""
        return self.rows[0]

    def differences(self, row: Row) -> tuple[Comparison, ...]:
        """The accuracy of a run minus that of the baseline, for each number of shots."""
        pairs = zip(row.results, self.baseline.results, strict=True)
        return tuple(result.compare(other) for result, other in pairs)

    def seed_differences(self, group: Seeds) -> tuple["SeedDifference", ...] | None:
        """The accuracies of a group minus those of the baseline, for each number of shots; None for its own group.

        A training is paired with the training of the baseline's recipe that has the same seed, if all of the group's
        seeds have one; otherwise all are compared with the baseline itself. In both cases on the same episodes.
        """
        if any(row is self.baseline for row in group.rows):
            return None
        partners = self._with_seeds_of(group)
        apart = np.array(
            [
                [result.mean - other.mean for result, other in zip(row.results, partner.results, strict=True)]
                for row, partner in zip(group.rows, partners, strict=True)
            ]
        )
        by_seed = len(set(map(id, partners))) > 1
        return tuple(SeedDifference(float(one.mean()), float(one.std(ddof=1)), by_seed) for one in apart.T)

    def _with_seeds_of(self, group: Seeds) -> list[Row]:
        """For each training of a group, the one that it is compared with."""
        own = next((other for other in self.seeds if any(row is self.baseline for row in other.rows)), None)
        trained = {} if own is None else {row.training_seed: row for row in own.rows}
        if all(row.training_seed in trained for row in group.rows):
            return [trained[row.training_seed] for row in group.rows]
        return [self.baseline] * len(group.rows)

    @property
    def seeds(self) -> tuple[Seeds, ...]:
        """The recipes that were trained with several seeds."""
        groups: dict[str, dict[int, Row]] = {}
        for row in self.rows:
            if row.recipe is not None:
                groups.setdefault(_all_but_the_seed(row.recipe), {}).setdefault(row.recipe.seed, row)
        several = [tuple(group.values()) for group in groups.values() if len(group) > 1]
        methods = [rows[0].method for rows in several]
        names = [rows[0].name if methods.count(rows[0].method) > 1 else rows[0].method for rows in several]
        return tuple(Seeds(f"{name} ({len(rows)} seeds)", rows) for name, rows in zip(names, several, strict=True))

    def as_json(self) -> dict[str, Any]:
        """The comparison as plain values, with the accuracy of every episode."""
        rows = [
            {
                "name": row.name,
                "method": row.method,
                "folder": row.folder,
                "training_seed": row.training_seed,
                "looks": row.looks,
                "transductive": any(result.transductive for result in row.results),
                "results": [result.as_json() for result in row.results],
                "differences": [_difference_as_json(difference) for difference in self.differences(row)],
            }
            for row in self.rows
        ]
        seeds = [
            {
                "name": group.name,
                "rows": [row.name for row in group.rows],
                "means": list(group.means),
                "deviations": list(group.deviations),
                "differences": [asdict(difference) for difference in self.seed_differences(group) or ()],
            }
            for group in self.seeds
        ]
        content = {"baseline": self.baseline.name, "shots": list(self.shots), "rows": rows, "seeds": seeds}
        return {**origin(), **content}


def _all_but_the_seed(recipe: "Recipe") -> str:
    """What two recipes share that differ only in the seed of training, or in what does not change the model."""
    content = {key: value for key, value in recipe.as_dict().items() if key not in ("seed", "evaluation", "workers")}
    return json.dumps(content, sort_keys=True, default=str)


def excludes_zero(difference: Comparison) -> bool:
    """Whether the usual 95 % interval of a difference excludes 0."""
    return abs(difference.difference) > difference.ci95


def excludes_zero_for_classes(difference: Comparison) -> bool:
    """Whether the 95 % interval of a difference over classes excludes 0."""
    return difference.ci95_classes is not None and abs(difference.difference) > difference.ci95_classes


def _difference_as_json(difference: Comparison) -> dict[str, Any]:
    also = {
        "excludes_zero": excludes_zero(difference),
        "excludes_zero_for_classes": excludes_zero_for_classes(difference),
    }
    return asdict(difference) | also


def compare_runs(
    runs: Sequence["Compared"],
    *,
    names: Sequence[str] | None = None,
    shots: Sequence[int] = (1, 5),
    episodes: int = 2000,
    way: int = 5,
    query: int = 15,
    seed: int = 0,
    unbalanced: bool = False,
    dirichlet: float = 1.0,
    split: str = "test",
    data: str | Path | Dataset | None = None,
    baseline: str | None = None,
    cache: str | Path | None = None,
    progress: bool = False,
    device: "str | torch.device" = "cpu",
    known: Mapping[Path, Sequence[EvaluationResult]] | None = None,
) -> ComparisonTable:
    """Evaluate runs on the same episodes, and pair them with kept results of these episodes.

    A look at test classes is added to the ledger in the folder of each run, see `record_look`.

    Args:
        runs: The runs, from `load_run`, and kept results, from `load_result`. The latter need no network, and no data
            if there are no runs among them.
        names: Names for the table (default: the names of the runs; for runs of the same name, their folders).
        shots: Numbers of shots, one column each.
        episodes, way, query, seed, unbalanced, dirichlet: As for `evaluate`.
        split: The split whose classes are used.
        data: The data set for all runs, or its name or path, or a folder that contains the benchmark of the runs
            (default: the data of the runs, which must be the same).
        baseline: The name or folder of the run with which the others are compared (default: the first).
        device: The device that embeds images and scores episodes.
        cache, progress: As for `build_bank`.
        known: Results of runs, by their folder, that need not be computed again if they belong to the same episodes.
    """
    from deepbdc.data.shrunk import shrunk
    from deepbdc.episodes import sample_episodes
    from deepbdc.runs import source_of_run

    ordered = _baseline_first(list(zip(names or _names(runs), runs, strict=True)), baseline)
    trained = [run for run in runs if not isinstance(run, KeptResult)]
    kind: dict[str, Any] = {"unbalanced": unbalanced, "dirichlet": dirichlet}
    chosen = {"way": way, "query": query, "seed": seed, **kind}
    kept = {run.path: kept_results(run, shots, episodes, split, chosen) for run in runs if isinstance(run, KeptResult)}
    drawn: list[Episodes] = []
    if trained:
        dataset = data if isinstance(data, Dataset) else _data_of(trained, data, split)
        drawn = [sample_episodes(dataset, way, shot, query, episodes, seed, **kind) for shot in shots]
        check_same_episodes(kept, drawn)
    rows = []
    for name, run in ordered:
        if isinstance(run, KeptResult):
            method_name, results = run.method or run.name, kept[run.path]
            rows.append(Row(name, method_name, str(run.path), results, None, run.training_seed, run.looks))
            continue
        found = _of_episodes((known or {}).get(run.folder, ()), drawn)
        if found is None:
            method, images = run.method.to(device), shrunk(dataset, run.recipe.shrink_to, progress=progress)
            source = source_of_run(run, images, device=device, cache=cache, progress=progress)
            found = tuple(evaluate(method, images, episodes=those, bank=source, progress=progress) for those in drawn)
        looks = record_look(run.folder, "compare", found)
        rows.append(Row(name, run.recipe.method, str(run.folder), found, run.recipe, run.recipe.seed, looks))
    return ComparisonTable(tuple(rows), tuple(shots))


def kept_results(
    kept: KeptResult, shots: Sequence[int], episodes: int, split: str, chosen: Mapping[str, Any]
) -> tuple[EvaluationResult, ...]:
    """The kept results for these numbers of shots. It is an error if they are of other episodes than are asked for.

    Args:
        kept: The kept results.
        shots: Numbers of shots.
        episodes: The number of episodes that is asked for.
        split: The split that is asked for.
        chosen: Other settings of the episodes, by their names in `EvaluationResult`.
    """
    by_shot = {result.shot: result for result in kept.results}
    missing = [str(shot) for shot in shots if shot not in by_shot]
    if missing:
        has = " and ".join(str(shot) for shot in by_shot)
        raise UserError(f"{kept.path} has results with {has} shots, but none with {', '.join(missing)}: give --shot")
    found = tuple(by_shot[shot] for shot in shots)
    for result in found:
        have = {"episodes": len(result.accuracies), "split": result.split} | {
            key: getattr(result, key) for key in chosen
        }
        wanted = {"episodes": episodes, "split": split, **chosen}
        differing = [f"{key}={have[key]}, not {wanted[key]}" for key in wanted if have[key] != wanted[key]]
        if differing:
            raise UserError(
                f"{kept.path} is of episodes with {'; '.join(differing)}. A paired comparison needs the same episodes: "
                "omit the options that change them"
            )
    return found


def check_same_episodes(kept: Mapping[Path, Sequence[EvaluationResult]], drawn: Sequence[Episodes]) -> None:
    """Raise `UserError` if kept results, by their file, are not of the episodes that were drawn from the data here."""
    for path, results in kept.items():
        for result, those in zip(results, drawn, strict=True):
            if result.data_fingerprint != those.data_fingerprint:
                raise UserError(
                    f"{path} is of other images ({result.dataset} {result.split} with the fingerprint "
                    f"{result.data_fingerprint}; the data here has {those.data_fingerprint}). A paired comparison "
                    "needs the same images: choose them with --data"
                )
            if result.episodes_fingerprint != episodes_fingerprint(those):
                raise UserError(
                    f"{path} is of other {result.shot}-shot episodes than those drawn here with the same settings, "
                    "perhaps by another version of deepbdc: evaluate its network again"
                )


def _of_episodes(known: Sequence[EvaluationResult], drawn: Sequence[Episodes]) -> tuple[EvaluationResult, ...] | None:
    """The results that belong to the episodes, in their order; None if one of them is missing."""
    by_episodes = {result.episodes_fingerprint: result for result in known}
    found = [by_episodes.get(episodes_fingerprint(those)) for those in drawn]
    return None if None in found else tuple(result for result in found if result is not None)


def _baseline_first(named: list[tuple[str, "Compared"]], baseline: str | None) -> list[tuple[str, "Compared"]]:
    if not named:
        raise UserError("there is nothing to compare: give at least one run")
    if baseline is None:
        return named
    found = [entry for entry in named if baseline == entry[0] or Path(baseline) == _place(entry[1])]
    if not found:
        known = ", ".join(name for name, _ in named)
        raise UserError(f"the baseline {baseline!r} is not one of the compared runs: {known}")
    return [found[0], *(entry for entry in named if entry is not found[0])]


def _place(run: "Compared") -> Path:
    """The folder of a run, or the file of a kept result."""
    return run.path if isinstance(run, KeptResult) else run.folder


def _names(runs: Sequence["Compared"]) -> list[str]:
    """The names of the runs; for runs of the same name, their folders."""
    names = [run.name for run in runs]
    return [str(_place(run)) if names.count(run.name) > 1 else run.name for run in runs]


def _data_of(runs: Sequence["Run"], data: str | Path | None, split: str) -> Dataset:
    return common_data({str(run.folder): (run.recipe.data, data or run.data) for run in runs}, split)


def common_data(wanted: Mapping[str, tuple[str, str | Path | None]], split: str = "test") -> Dataset:
    """The data set that all runs use.

    If the runs use different images, this is an error: a comparison would then not be one of the methods alone.

    Args:
        wanted: For each run, by its name: the data of its recipe, and what replaces it, if anything.
        split: The split to load.
    """
    from deepbdc.data.loading import find_data, load_dataset

    places = {who: find_data(data, given) for who, (data, given) in wanted.items()}
    loaded = {place: load_dataset(place[0], split, root=place[1]) for place in set(places.values())}
    if len({dataset.fingerprint for dataset in loaded.values()}) > 1:
        uses = ", ".join(f"{who} uses {place[0]}" for who, place in places.items())
        raise UserError(f"a comparison needs the same images for all runs, but {uses}: choose one with --data")
    return next(iter(loaded.values()))
