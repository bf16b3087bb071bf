"""The curve of a training as a picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepbdc._files import temporary
from deepbdc.training.log import read_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#1d4ed8", "#c2410c", "#15803d", "#7e22ce", "#0e7490", "#a16207", "#be185d", "#475569")


@dataclass(frozen=True)
class _Curve:
    """A stage in the picture: its epochs, its steps as (epochs done, loss), and the epoch that is marked."""

    stage: str
    epochs: list[dict[str, Any]]
    steps: list[tuple[float, float]]
    selected: int | None

    @property
    def length(self) -> int:
        """Epochs that were begun."""
        return max([math.ceil(done) for done, _ in self.steps] + [line["epoch"] for line in self.epochs], default=0)


def draw_curve(log: Path, picture: Path) -> None:
    """Draw the validation accuracy with its 95 % interval, and below it the training loss, epoch by epoch.

    The stages follow each other, each in its own colour. A star marks the selected epoch; in a stage that still runs,
    the best epoch so far. Without validation only the loss is drawn.

    Args:
        log: The file ``log.jsonl`` of a run, which may still be running.
        picture: A ``.png``, ``.svg`` or ``.pdf`` file, written completely or not at all.
    """
    from matplotlib.figure import Figure

    if not log.is_file():
        raise FileNotFoundError(f"there is no log {log} to draw")
    curves = _curves(log)
    validated = any(line["val_accuracy"] is not None for curve in curves for line in curve.epochs)
    figure = Figure(figsize=(9, 6 if validated else 3.6), layout="constrained")
    heights = (3, 2) if validated else (1,)
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    start = 0
    for index, curve in enumerate(curves):
        colour = _COLOURS[index % len(_COLOURS)]
        _draw_loss(axes[-1], curve, start, colour)
        if validated:
            _draw_validation(axes[0], curve, start, colour)
        start += curve.length
    _furnish(list(axes), curves, validated)
    figure.suptitle(f"Training of {log.absolute().parent.name}", fontsize=13)
    with temporary(picture) as part:
        figure.savefig(part, format=picture.suffix.lstrip(".") or "png", dpi=110)


def _curves(log: Path) -> list[_Curve]:
    """The content of the log, by stage in the order of the run."""
    lines = list(read_lines(log))
    curves = []
    for stage in dict.fromkeys(line["stage"] for line in lines):
        mine = [line for line in lines if line["stage"] == stage]
        epochs = [line for line in mine if line["kind"] == "epoch"]
        steps = [
            (line["epoch"] - 1 + line["step"] / line["steps"], line["loss"])
            for line in mine
            if line["kind"] == "step" and line["loss"] is not None
        ]
        complete = [line["epoch"] for line in mine if line["kind"] == "stage"]
        best = [line["best_epoch"] for line in epochs]
        curves.append(_Curve(stage, epochs, steps, next(reversed([*best, *complete]), None)))
    return curves


def _draw_validation(axis: "Axes", curve: _Curve, start: int, colour: str) -> None:
    measured = [line for line in curve.epochs if line["val_accuracy"] is not None]
    places = [start + line["epoch"] for line in measured]
    values = [line["val_accuracy"] for line in measured]
    widths = [line["val_ci95"] or 0.0 for line in measured]
    low, high = ([v + sign * w for v, w in zip(values, widths, strict=True)] for sign in (-1, 1))
    axis.plot(places, values, color=colour, marker="o", markersize=3, label=curve.stage)
    axis.fill_between(places, low, high, color=colour, alpha=0.18, linewidth=0)
    if len(measured) == 1:  # a single point has no band
        axis.errorbar(places, values, widths, color=colour, capsize=4)
    for place, line in zip(places, measured, strict=True):
        if line["epoch"] == curve.selected:
            value = line["val_accuracy"]
            axis.plot([place], [value], marker="*", markersize=15, color=colour, markeredgecolor="white", zorder=5)
            shift, side = ((0, 9), "center") if len(measured) > 1 else ((-12, -3), "right")  # clear of the error bar
            style: Any = {"textcoords": "offset points", "ha": side, "color": colour, "fontsize": 9}
            axis.annotate(f"{value:.2f}", (place, value), shift, **style)


def _draw_loss(axis: "Axes", curve: _Curve, start: int, colour: str) -> None:
    """Draw the loss of steps pale, and the mean of each epoch in front; before the first epoch ends, only the steps."""
    places, losses = [start + done for done, _ in curve.steps], [loss for _, loss in curve.steps]
    axis.plot(places, losses, color=colour, alpha=0.35 if curve.epochs else 1, linewidth=0.8)
    means = [(start + line["epoch"] - 0.5, line["loss"]) for line in curve.epochs if line["loss"] is not None]
    axis.plot([place for place, _ in means], [loss for _, loss in means], color=colour, marker="o", markersize=3)
    axis.plot([], [], color=colour, label=curve.stage)  # one legend entry for both


def _furnish(axes: "list[Axes]", curves: Sequence[_Curve], validated: bool) -> None:
    """Add titles, scales, borders between stages and a legend."""
    from matplotlib.ticker import MaxNLocator

    axes[-1].set_ylabel("training loss")
    axes[-1].set_xlabel("epochs, of all stages together" if len(curves) > 1 else "epochs")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[-1].set_xlim(0, max(1, sum(curve.length for curve in curves)) * 1.03)
    if validated:
        transductive = any(line.get("transductive") for curve in curves for line in curve.epochs)
        axes[0].set_ylabel(f"validation accuracy, %{', transductive' * transductive}")
        axes[0].margins(y=0.15)
        axes[0].plot([], [], "*", color="#64748b", markersize=11, label="selected epoch")
    for axis in axes:
        axis.grid(color="#e2e8f0", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        for index in range(1, len(curves)):
            place = sum(curve.length for curve in curves[:index])
            axis.axvline(place, color="#94a3b8", linewidth=0.8, linestyle=":")
    if curves:
        axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=6, frameon=False, fontsize=9)
    else:
        axes[0].text(0.5, 0.5, "nothing was logged yet", ha="center", transform=axes[0].transAxes)
