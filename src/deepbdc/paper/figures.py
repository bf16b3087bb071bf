"""The paper's figure of accuracy against the number of channels, ours beside the points that the paper gives."""

from collections.abc import Sequence
from pathlib import Path

from deepbdc._files import temporary
from deepbdc.paper.cells import FilledRow
from deepbdc.paper.experiments import Experiment, name_in_paper
from deepbdc.report.published import published

_COLOURS = {
    "protonet": "#64748b",
    "adm": "#b45309",
    "covnet": "#15803d",
    "meta_deepbdc": "#1d4ed8",
    "stl_deepbdc": "#be123c",
}
_CHANNELS = 640
"""Of the paper's ResNet-12."""


def draw_channels(experiment: Experiment, rows: Sequence[FilledRow], path: Path) -> None:
    """Draw accuracy with 5 shots against d, as a share of the channels of the network; left ours, right the paper's."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for method in dict.fromkeys(row.row.method for row in rows):
        colour = _COLOURS[method]
        points = [
            (row.row.identity["d"] / _CHANNELS if row.row.identity.get("d") else None, cell.result)
            for row in rows
            for cell in row.cells.values()
            if row.row.method == method and cell.result is not None
        ]
        lines = [result for share, result in points if share is None]
        for result in lines:
            left.axhline(result.mean, color=colour, linestyle="--", label=name_in_paper(method))
        curve = sorted((share, result.mean, result.ci95) for share, result in points if share is not None)
        if curve:
            x, y, e = zip(*curve, strict=True)
            left.errorbar(x, y, yerr=e, color=colour, marker="o", markersize=4, capsize=2, label=name_in_paper(method))
        theirs = [row for row in published()["s3-5_dimension"].rows if row.method == method]
        dots = sorted((row.identity["d"] / _CHANNELS, row.accuracies[5][0]) for row in theirs if row.identity["d"])
        for row in theirs:
            if not row.identity["d"]:
                right.axhline(row.accuracies[5][0], color=colour, linestyle="--", label=row.name)
        if dots:
            right.plot(
                *zip(*dots, strict=True),
                color=colour,
                marker="o",
                markersize=4,
                mfc="white",
                label=name_in_paper(method),
            )
    results = [cell.result for row in rows for cell in row.cells.values() if cell.result is not None]
    left.set_title(f"ours: {results[0].dataset}" if results else "ours: not trained yet", fontsize=11)
    right.set_title("paper: miniImageNet, ResNet-12 (the points it gives as numbers)", fontsize=11)
    left.set_ylabel("5-shot accuracy in %")
    for panel in (left, right):
        panel.set_xlabel("channels d, as a share of the network's")
        panel.grid(color="#e2e8f0")
        panel.spines[["top", "right"]].set_visible(False)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize=8.5, frameon=False)
    with temporary(path) as part:
        figure.savefig(part, dpi=130, format=path.suffix.removeprefix("."))
