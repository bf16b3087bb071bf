"""A comparison as a table for a terminal, as a picture, and as a file of numbers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepbdc._files import temporary, write_json
from deepbdc.evaluation import Comparison
from deepbdc.report.comparison import ComparisonTable, excludes_zero, excludes_zero_for_classes
from deepbdc.report.evaluation import (
    class_interval_in_words,
    explain_intervals,
    footnotes,
    queries_in_words,
    transductive_mark,
)

if TYPE_CHECKING:
    from rich.table import Table


def table(comparison: ComparisonTable) -> "Table":
    """A table with one row per run: accuracies, and differences to the baseline.

    The second line of a row has the intervals over classes. A difference whose usual interval excludes 0 is green or
    red. Recipes that were trained with several seeds have another row each, below.
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
            cells.append(Text(_lines(str(result), class_interval_in_words(result.ci95_classes))))
            style = ("green" if difference.difference > 0 else "red") if excludes_zero(difference) else ""
            words = "" if row is comparison.baseline else _lines(*_difference_parts(difference))
            cells.append(Text(words, style))
        laid_out.add_row(*cells)
    for group in comparison.seeds:
        cells = [Text(group.name)]
        differences = comparison.seed_differences(group) or (None,) * len(comparison.shots)
        for mean, deviation, apart in zip(group.means, group.deviations, differences, strict=True):
            words = "" if apart is None else f"{apart.mean:+.2f} σ {apart.deviation:.2f}  ".replace("-", "−")
            cells += [Text(f"{mean:.2f} σ {deviation:.2f}"), Text(words)]
        laid_out.add_row(*cells)
    return laid_out


def _lines(*parts: str) -> str:
    return "\n".join(part for part in parts if part)


def _short_names(comparison: ComparisonTable) -> list[str]:
    """The names of the rows, without the folder if all of them share it; transductive ones are marked."""
    names = [row.name for row in comparison.rows]
    if len({name.rpartition("/")[0] for name in names}) == 1:
        names = [name.rpartition("/")[2] for name in names]
    return [name + transductive_mark(row.results) for name, row in zip(names, comparison.rows, strict=True)]


def difference_in_words(difference: Comparison) -> str:
    """Text like ``+1.20 ± 0.31 * (± 0.83) *``; a star means that the interval before it excludes 0."""
    return " ".join(part.strip() for part in _difference_parts(difference)).strip()


def _difference_parts(difference: Comparison) -> tuple[str, str, str]:
    """A difference with its usual interval, its interval over classes, and on how many episodes, if not on all.

    Each interval is followed by a star, or by blanks for it.
    """
    usual = f"{difference.difference:+.2f} ± {difference.ci95:.2f}".replace("-", "−")
    usual += " *" if excludes_zero(difference) else "  "
    over_classes = class_interval_in_words(difference.ci95_classes)
    star = " *" if excludes_zero_for_classes(difference) else "  "
    fewer = f"({difference.episodes:,} episodes)" if difference.episodes is not None else ""
    return usual, over_classes + star if over_classes else "", fewer


def _title(comparison: ComparisonTable) -> str:
    result = comparison.baseline.results[0]
    tasks = f"{len(result.accuracies):,} episodes, {result.way}-way, {queries_in_words(result)}"
    return f"{result.dataset} {result.split}: {tasks}"


def _caption(comparison: ComparisonTable) -> str:
    results = [result for row in comparison.rows for result in row.results]
    lines = explain_intervals(results)
    if len(comparison.rows) > 1:
        lines.append(f"difference: paired, to {comparison.baseline.name}; * = the interval excludes 0")
    if comparison.seeds:
        lines.append("σ = standard deviation over trainings with different seeds")
        found = [apart for group in comparison.seeds for apart in comparison.seed_differences(group) or ()]
        if any(apart.by_seed for apart in found):
            lines.append("difference of seeds: each to the baseline's training of the same seed")
        elif found:
            lines.append(f"difference of seeds: each to {comparison.baseline.name}")
    return "\n".join([*lines, *footnotes(results)])


def save(comparison: ComparisonTable, path: str | Path) -> None:
    """Write the comparison as JSON, with the accuracy of every episode."""
    write_json(path, comparison.as_json())


def draw(comparison: ComparisonTable, path: str | Path) -> None:
    """Draw one panel per number of shots, with a dot and both of its 95 % intervals for each run."""
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
    pale = any(result.ci95_classes is not None for row in comparison.rows for result in row.results)
    caption = _caption(comparison) + "\npale bars: the interval over classes" * pale
    figure.supxlabel(caption, fontsize=8.5, color="#475569")
    with temporary(path) as part:
        figure.savefig(part, dpi=130, format=path.suffix.removeprefix(".") or "png")


def _draw_panel(panel: Any, comparison: ComparisonTable, position: int) -> None:
    """Draw the accuracies of the runs for one number of shots, with the numbers above the dots."""
    colours = {0: "#64748b", 1: "#15803d", -1: "#b91c1c"}
    for height, row in enumerate(comparison.rows):
        result, difference = row.results[position], comparison.differences(row)[position]
        colour = colours[int(excludes_zero(difference)) * (1 if difference.difference > 0 else -1)]
        colour = "#1d4ed8" if row is comparison.baseline else colour
        if result.ci95_classes is not None:
            panel.errorbar(result.mean, height, xerr=result.ci95_classes, color=colour, alpha=0.25, elinewidth=4)
        panel.errorbar(result.mean, height, xerr=result.ci95, fmt="o", color=colour, capsize=4, markersize=6)
        words = f"{result.mean:.1f}"
        if row is not comparison.baseline:
            words += f"   ({_difference_parts(difference)[0].strip()})"
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
