"""The paper's figure of accuracy against the number of channels, ours beside the points that the paper gives."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepbdc._files import temporary
from deepbdc.paper.cells import FilledRow
from deepbdc.paper.experiments import Experiment, name_in_paper
from deepbdc.report.published import published

_CHANNELS = 640
"""Of the paper's ResNet-12."""


def draw_channels(experiment: Experiment, rows: Sequence[FilledRow], path: Path) -> None:
    """Draw accuracy against d, as a share of the channels of the network; left ours, right the paper's."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    (shot,) = experiment.shots
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for method, colour in dict.fromkeys((row.row.method, row.row.colour) for row in rows):
        results = {row.row.identity.get("d"): row.cells[shot].result for row in rows if row.row.method == method}
        ours = {d: (result.mean, result.ci95) for d, result in results.items() if result is not None}
        _curve(left, ours, colour, name_in_paper(method), filled=True)
        theirs = {
            row.identity["d"]: (row.accuracies[shot][0], row.accuracies[shot][1] or 0.0)
            for table in experiment.published
            for row in published()[table].rows
            if row.method == method
        }
        _curve(right, theirs, colour, name_in_paper(method), filled=False)
    datasets = [cell.result.dataset for row in rows for cell in row.cells.values() if cell.result is not None]
    left.set_title(f"ours: {datasets[0]}" if datasets else "ours: not trained yet", fontsize=11)
    right.set_title(f"paper: {experiment.data[0]}, ResNet-12\n(the points it gives as numbers)", fontsize=11)
    left.set_ylabel(f"{shot}-shot accuracy in %, 95 % interval over episodes")
    for panel in (left, right):
        panel.set_xlabel("channels d, as a share of the network's")
        panel.grid(color="#e2e8f0")
        panel.spines[["top", "right"]].set_visible(False)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize=8.5, frameon=False)
    with temporary(path) as part:
        figure.savefig(part, dpi=130, format=path.suffix.removeprefix("."))


def _curve(
    panel: Any, accuracies: dict[int | None, tuple[float, float]], colour: str, name: str, *, filled: bool
) -> None:
    """Draw accuracies with their intervals by d; one without d is a line."""
    if None in accuracies:
        panel.axhline(accuracies[None][0], color=colour, linestyle="--", label=name)
    points = sorted((d / _CHANNELS, *values) for d, values in accuracies.items() if d is not None)
    if points:
        x, y, interval = zip(*points, strict=True)
        face = colour if filled else "white"
        panel.errorbar(x, y, yerr=interval, color=colour, marker="o", markersize=4, mfc=face, capsize=2, label=name)
