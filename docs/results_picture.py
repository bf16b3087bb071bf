"""The picture of one section of docs/results.md: the accuracies of all methods, with both intervals."""

from pathlib import Path
from typing import Any

from deepbdc._files import temporary
from deepbdc.report.evaluation import transductive_mark
from results import Section, is_bdc, title, with_shots

BDC, OTHER = "#1d4ed8", "#64748b"


def draw(section: Section, path: Path) -> None:
    """One panel for each number of shots, with a dot for each method; those of the paper are blue.

    The digest of the numbers is kept in the file, so that a test can tell whether it is up to date.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count, shots = len(section.rows), section.shots
    figure = Figure(figsize=(2.2 + 3.6 * len(shots), 1.4 + 0.27 * count), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(shots), sharey=True, squeeze=False)[0]
    for panel, shot in zip(panels, shots, strict=True):
        _draw_panel(panel, section, shot)
    panels[0].set_yticks(range(count), [row.name + transductive_mark(row.results) for row in section.rows])
    panels[0].set_ylim(count - 0.4, -0.6)  # the best on top
    for label, row in zip(panels[0].get_yticklabels(), section.rows, strict=True):
        label.set(color=BDC if is_bdc(row) else "black", fontweight="bold" if is_bdc(row) else "normal")
    figure.suptitle(title(section), fontsize=11)
    caption = "bars: 95 % intervals over episodes; pale: over classes. Blue: methods of the paper. Hollow: transductive"
    figure.supxlabel(caption, fontsize=8, color="#475569")
    with temporary(path) as part:
        figure.savefig(part, dpi=110, format="png", metadata={"Source": section.digest, "Software": None})


def _draw_panel(panel: Any, section: Section, shot: int) -> None:
    for height, row in enumerate(section.rows):
        result = with_shots(row, shot)
        if result is None:
            continue
        colour = BDC if is_bdc(row) else OTHER
        if result.ci95_classes is not None:
            panel.errorbar(result.mean, height, xerr=result.ci95_classes, color=colour, alpha=0.2, elinewidth=4)
        face = "white" if result.transductive else colour
        marker = {"fmt": "o", "markerfacecolor": face, "markersize": 4.5}
        panel.errorbar(result.mean, height, xerr=result.ci95, color=colour, capsize=2, **marker)
    panel.set_title(f"{shot} shot{'s' * (shot > 1)}", fontsize=10)
    panel.set_xlabel("accuracy, %", fontsize=9)
    panel.grid(axis="x", color="#e2e8f0", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(axis="y", length=0, labelsize=8.5)
