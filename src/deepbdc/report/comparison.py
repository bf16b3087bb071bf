"""Compare trained runs on the same episodes: their accuracies, and their paired differences to one of them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepbdc._files import temporary, write_text
from deepbdc.data.dataset import Dataset
from deepbdc.episodes import Episodes
from deepbdc.errors import UserError
from deepbdc.evaluation import Comparison, EvaluationResult, episodes_fingerprint, evaluate
from deepbdc.report.evaluation import footnotes, queries_in_words, transductive_mark

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from deepbdc.runs import Run


@dataclass(frozen=True)
class Row:
    """One run, with a result for each number of shots."""

    name: str
    method: str
    folder: str
    results: tuple[EvaluationResult, ...]


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

    def as_json(self) -> dict[str, Any]:
        """The comparison as plain values, with the accuracy of every episode."""
        rows = [
            {
                "name": row.name,
                "method": row.method,
                "folder": row.folder,
                "transductive": any(result.transductive for result in row.results),
                "results": [result.as_json() for result in row.results],
                "differences": [_difference_as_json(difference) for difference in self.differences(row)],
            }
            for row in self.rows
        ]
        return {"baseline": self.baseline.name, "shots": list(self.shots), "rows": rows}


def excludes_zero(difference: Comparison) -> bool:
    """Whether the 95 % interval of a difference excludes 0."""
    return abs(difference.difference) > difference.ci95


def compare_runs(
    runs: Sequence["Run"],
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
    """Evaluate runs on the same episodes.

    Args:
        runs: The runs, from `load_run`.
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
    from deepbdc.episodes import sample_episodes

    ordered = _baseline_first(list(zip(names or _names(runs), runs, strict=True)), baseline)
    dataset = data if isinstance(data, Dataset) else _data_of(runs, data, split)
    kind: dict[str, Any] = {"unbalanced": unbalanced, "dirichlet": dirichlet}
    drawn = [sample_episodes(dataset, way, shot, query, episodes, seed, **kind) for shot in shots]
    rows = []
    for name, run in ordered:
        results = _of_episodes((known or {}).get(run.folder, ()), drawn)
        if results is None:
            method, options = run.method.to(device), {"device": device, "cache": cache, "progress": progress}
            source = method.source(dataset, **options, workers=run.recipe.workers)
            found = [evaluate(method, dataset, episodes=those, bank=source, progress=progress) for those in drawn]
            results = tuple(found)
        rows.append(Row(name, run.recipe.method, str(run.folder), results))
    return ComparisonTable(tuple(rows), tuple(shots))


def _of_episodes(known: Sequence[EvaluationResult], drawn: Sequence[Episodes]) -> tuple[EvaluationResult, ...] | None:
    """The results that belong to the episodes, in their order; None if one of them is missing."""
    by_episodes = {result.episodes_fingerprint: result for result in known}
    found = [by_episodes.get(episodes_fingerprint(those)) for those in drawn]
    return None if None in found else tuple(result for result in found if result is not None)


def _baseline_first(named: list[tuple[str, "Run"]], baseline: str | None) -> list[tuple[str, "Run"]]:
    if not named:
        raise UserError("there is nothing to compare: give at least one run")
    if baseline is None:
        return named
    found = [entry for entry in named if baseline == entry[0] or Path(baseline) == entry[1].folder]
    if not found:
        known = ", ".join(name for name, _ in named)
        raise UserError(f"the baseline {baseline!r} is not one of the compared runs: {known}")
    return [found[0], *(entry for entry in named if entry is not found[0])]


def _names(runs: Sequence["Run"]) -> list[str]:
    """The names of the runs; for runs of the same name, their folders."""
    names = [run.name for run in runs]
    return [str(run.folder) if names.count(run.name) > 1 else run.name for run in runs]


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


def table(comparison: ComparisonTable) -> "Table":
    """A table with one row per run: accuracies, and differences to the baseline.

    A difference whose interval excludes 0 is green or red.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    narrow: dict[str, Any] = {"box": box.SIMPLE_HEAD, "show_edge": False, "padding": (0, 1, 0, 0)}  # fits 80 columns
    laid_out = Table(title=_title(comparison), caption=_caption(comparison), **narrow)
    laid_out.add_column("recipe", overflow="fold")
    for shot in comparison.shots:
        laid_out.add_column(f"{shot}-shot", justify="right", no_wrap=True)
        laid_out.add_column("difference", justify="right", no_wrap=True)
    for row, name in zip(comparison.rows, _short_names(comparison), strict=True):
        cells = [Text(name)]
        for result, difference in zip(row.results, comparison.differences(row), strict=True):
            cells.append(Text(str(result)))
            style = ("green" if difference.difference > 0 else "red") if excludes_zero(difference) else ""
            cells.append(Text("" if row is comparison.baseline else difference_in_words(difference), style))
        laid_out.add_row(*cells)
    return laid_out


def _short_names(comparison: ComparisonTable) -> list[str]:
    """The names of the rows, without the folder if all of them share it; transductive ones are marked."""
    names = [row.name for row in comparison.rows]
    if len({name.rpartition("/")[0] for name in names}) == 1:
        names = [name.rpartition("/")[2] for name in names]
    return [name + transductive_mark(row.results) for name, row in zip(names, comparison.rows, strict=True)]


def difference_in_words(difference: Comparison) -> str:
    """Text like ``+1.20 ± 0.31 *``; the star means that the interval excludes 0."""
    text = f"{difference.difference:+.2f} ± {difference.ci95:.2f}".replace("-", "−")
    return text + (" *" if excludes_zero(difference) else "  ")


def _title(comparison: ComparisonTable) -> str:
    result = comparison.baseline.results[0]
    tasks = f"{len(result.accuracies):,} episodes, {result.way}-way, {queries_in_words(result)}"
    return f"{result.dataset} {result.split}: {tasks}"


def _caption(comparison: ComparisonTable) -> str:
    lines = [f"accuracy in % ± 95 % interval; the same episodes for all (seed {comparison.baseline.results[0].seed})"]
    if len(comparison.rows) > 1:
        lines.append(f"difference: paired, to {comparison.baseline.name}; * = its interval excludes 0")
    return "\n".join([*lines, *footnotes([result for row in comparison.rows for result in row.results])])


def save(comparison: ComparisonTable, path: str | Path) -> None:
    """Write the comparison as JSON, with the accuracy of every episode."""
    write_text(path, json.dumps(comparison.as_json(), indent=1) + "\n")


def _difference_as_json(difference: Comparison) -> dict[str, Any]:
    return asdict(difference) | {"excludes_zero": excludes_zero(difference)}


def draw(comparison: ComparisonTable, path: str | Path) -> None:
    """Draw one panel per number of shots, with a dot and its 95 % interval for each run."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = Path(path)
    count = len(comparison.shots)
    figure = Figure(figsize=(2.4 + 4.2 * count, 1.5 + 0.55 * len(comparison.rows)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    for position, panel in enumerate(panels):
        _draw_panel(panel, comparison, position)
    labels = [row.name + transductive_mark(row.results) for row in comparison.rows]
    panels[0].set_yticks(range(len(comparison.rows)), labels)
    panels[0].set_ylim(len(comparison.rows) - 0.4, -0.7)  # the baseline on top, room for numbers above each dot
    figure.suptitle(_title(comparison), fontsize=12)
    figure.supxlabel(_caption(comparison), fontsize=8.5, color="#475569")
    with temporary(path) as part:
        figure.savefig(part, dpi=130, format=path.suffix.removeprefix(".") or "png")


def _draw_panel(panel: Any, comparison: ComparisonTable, position: int) -> None:
    """Draw the accuracies of the runs for one number of shots, with the numbers above the dots."""
    colours = {0: "#64748b", 1: "#15803d", -1: "#b91c1c"}
    for height, row in enumerate(comparison.rows):
        result, difference = row.results[position], comparison.differences(row)[position]
        colour = colours[int(excludes_zero(difference)) * (1 if difference.difference > 0 else -1)]
        colour = "#1d4ed8" if row is comparison.baseline else colour
        panel.errorbar(result.mean, height, xerr=result.ci95, fmt="o", color=colour, capsize=4, markersize=6)
        words = f"{result.mean:.1f}"
        if row is not comparison.baseline:
            words += f"   ({difference_in_words(difference).strip()})"
        note = panel.annotate(words, (result.mean, height), (0, 7), textcoords="offset points", color=colour)
        note.set(ha="center", fontsize=9, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    panel.axvline(comparison.baseline.results[position].mean, color="#1d4ed8", linewidth=0.8, linestyle=":", zorder=0)
    panel.set_title(f"{comparison.shots[position]}-shot", fontsize=11)
    panel.set_xlabel("accuracy, %", fontsize=9)
    panel.margins(x=0.35)
    panel.grid(axis="x", color="#e2e8f0", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(axis="y", length=0)
