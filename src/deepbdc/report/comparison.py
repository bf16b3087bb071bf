"""Several trained runs on the same episodes: their accuracies, and paired differences to one of them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepbdc._files import temporary, write_text
from deepbdc.data.dataset import Dataset
from deepbdc.errors import UserError
from deepbdc.evaluation import Comparison, EvaluationResult, evaluate

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
    """Runs on the same episodes; the first is the baseline, to which the others are compared."""

    rows: tuple[Row, ...]
    shots: tuple[int, ...]

    @property
    def baseline(self) -> Row:
        """The run that differences are taken to."""
        return self.rows[0]

    def differences(self, row: Row) -> tuple[Comparison, ...]:
        """How much better a run is than the baseline, for each number of shots."""
        pairs = zip(row.results, self.baseline.results, strict=True)
        return tuple(result.compare(other) for result, other in pairs)

    def as_json(self) -> dict[str, Any]:
        """All of it in plain values, with the accuracy of every episode."""
        rows = [
            {
                "name": row.name,
                "method": row.method,
                "folder": row.folder,
                "results": [result.as_json() for result in row.results],
                "differences": [_difference_as_json(difference) for difference in self.differences(row)],
            }
            for row in self.rows
        ]
        return {"baseline": self.baseline.name, "shots": list(self.shots), "rows": rows}


def excludes_zero(difference: Comparison) -> bool:
    """Whether 0 lies outside of the 95 % interval of a difference."""
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
    split: str = "test",
    data: str | Path | Dataset | None = None,
    baseline: str | None = None,
    cache: str | Path | None = None,
    progress: bool = False,
    device: "str | torch.device" = "cpu",
) -> ComparisonTable:
    """Evaluate runs on the same episodes.

    Args:
        runs: What `load_run` gives.
        names: What to call them (default: their own names, or their folders where two have the same).
        shots: Numbers of shots, each a column.
        episodes, way, query, seed: Of the episodes, as for `evaluate`.
        split: Which classes.
        data: A data set to evaluate all of them on; or its name or path; or a folder that holds their benchmark
            (default: the data of the runs, which must be the same).
        baseline: The name or folder of the run that the others are compared to (default: the first).
        device: Where to embed images and to score episodes.
        cache, progress: As for `build_bank`.
    """
    from deepbdc.episodes import sample_episodes

    ordered = _baseline_first(list(zip(names or _names(runs), runs, strict=True)), baseline)
    dataset = data if isinstance(data, Dataset) else _data_of(runs, data, split)
    drawn = [sample_episodes(dataset, way, shot, query, episodes, seed) for shot in shots]
    rows = []
    for name, run in ordered:
        method, options = run.method.to(device), {"device": device, "cache": cache, "progress": progress}
        source = method.source(dataset, **options, workers=run.recipe.workers)
        results = tuple(evaluate(method, dataset, episodes=those, bank=source, progress=progress) for those in drawn)
        rows.append(Row(name, run.recipe.method, str(run.folder), results))
    return ComparisonTable(tuple(rows), tuple(shots))


def _baseline_first(named: list[tuple[str, "Run"]], baseline: str | None) -> list[tuple[str, "Run"]]:
    if not named:
        raise UserError("there is nothing to compare: give one run or more")
    if baseline is None:
        return named
    found = [entry for entry in named if baseline == entry[0] or Path(baseline) == entry[1].folder]
    if not found:
        known = ", ".join(name for name, _ in named)
        raise UserError(f"the baseline {baseline!r} is not among what is compared: {known}")
    return [found[0], *(entry for entry in named if entry is not found[0])]


def _names(runs: Sequence["Run"]) -> list[str]:
    """Names that tell the runs apart: where two have the same, their folders."""
    names = [run.name for run in runs]
    return [str(run.folder) if names.count(run.name) > 1 else run.name for run in runs]


def _data_of(runs: Sequence["Run"], data: str | Path | None, split: str) -> Dataset:
    return common_data({str(run.folder): (run.recipe.data, data or run.data) for run in runs}, split)


def common_data(wanted: Mapping[str, tuple[str, str | Path | None]], split: str = "test") -> Dataset:
    """The data set that all use, from the recipe's data and what was given in its place, for each.

    Different ones are an error: what differs then would be the images, not only the methods.
    """
    from deepbdc.data.loading import find_data, load_dataset

    places = {who: find_data(data, given) for who, (data, given) in wanted.items()}
    loaded = {place: load_dataset(place[0], split, root=place[1]) for place in set(places.values())}
    if len({dataset.fingerprint for dataset in loaded.values()}) > 1:
        uses = ", ".join(f"{who} uses {place[0]}" for who, place in places.items())
        raise UserError(f"a comparison needs the same images for all, but {uses}: say which with --data")
    return next(iter(loaded.values()))


def table(comparison: ComparisonTable) -> "Table":
    """A line for each run: accuracies, and differences to the baseline; green or red where the interval excludes 0."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    narrow: dict[str, Any] = {"box": box.SIMPLE_HEAD, "show_edge": False, "padding": (0, 1, 0, 0)}  # for 80 columns
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
    """The names of the rows without the folder that all of them share."""
    names = [row.name for row in comparison.rows]
    folders = {name.rpartition("/")[0] for name in names}
    return [name.rpartition("/")[2] for name in names] if len(folders) == 1 else names


def difference_in_words(difference: Comparison) -> str:
    """Like ``+1.20 ± 0.31 *``, the star for an interval that excludes 0."""
    text = f"{difference.difference:+.2f} ± {difference.ci95:.2f}".replace("-", "−")
    return text + (" *" if excludes_zero(difference) else "  ")


def _title(comparison: ComparisonTable) -> str:
    result = comparison.baseline.results[0]
    tasks = f"{len(result.accuracies):,} episodes, {result.way}-way, {result.query} queries a class"
    return f"{result.dataset} {result.split}: {tasks}"


def _caption(comparison: ComparisonTable) -> str:
    text = f"accuracy in % ± 95 % interval; the same episodes for all (seed {comparison.baseline.results[0].seed})"
    if len(comparison.rows) == 1:
        return text
    return f"{text}\ndifference: paired, to {comparison.baseline.name}; * its interval excludes 0"


def save(comparison: ComparisonTable, path: str | Path) -> None:
    """Write everything as JSON, with the accuracy of every episode."""
    write_text(path, json.dumps(comparison.as_json(), indent=1) + "\n")


def _difference_as_json(difference: Comparison) -> dict[str, Any]:
    return asdict(difference) | {"excludes_zero": excludes_zero(difference)}


def draw(comparison: ComparisonTable, path: str | Path) -> None:
    """Draw a dot with its 95 % interval for each run, a panel for each number of shots."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = Path(path)
    count = len(comparison.shots)
    figure = Figure(figsize=(2.4 + 4.2 * count, 1.5 + 0.55 * len(comparison.rows)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    for position, panel in enumerate(panels):
        _draw_panel(panel, comparison, position)
    panels[0].set_yticks(range(len(comparison.rows)), [row.name for row in comparison.rows])
    panels[0].set_ylim(len(comparison.rows) - 0.4, -0.7)  # the baseline on top, room for numbers over each dot
    figure.suptitle(_title(comparison), fontsize=12)
    figure.supxlabel(_caption(comparison), fontsize=8.5, color="#475569")
    with temporary(path) as part:
        figure.savefig(part, dpi=130, format=path.suffix.removeprefix(".") or "png")


def _draw_panel(panel: Any, comparison: ComparisonTable, position: int) -> None:
    """One number of shots: the accuracy of each run, and over it in words what it is."""
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
