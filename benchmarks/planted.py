"""Draw docs/images/planted.png: which methods see what in a feature map. It also prints all accuracies.

python benchmarks/planted.py            about three minutes on one core
python benchmarks/planted.py --help
"""

import argparse
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepbdc._files import temporary, write_text
from deepbdc.report.methods import method_rows
from planted_maps import (
    CHANCE,
    KINDS,
    SHOT,
    SIDE,
    SIGHTS,
    WAY,
    Entry,
    Sight,
    dependence,
    entries,
    place,
    sight_of,
    why_not,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent
TITLES = {
    "mean": "mean\nof the channels",
    "covariance": "covariance\nof the channels",
    "descriptors": "which local\ndescriptors occur",
    "place": "where a\ndescriptor is",
    "dependence": "which positions\nlook alike",
}
NAMES = {row.name: row.title for row in method_rows()}
COLOURS = ("#0072b2", "#e69f00")
"""Of two classes."""
TURN = torch.tensor([[1.0, 1.0], [-1.0, 1.0]]) / 2**0.5
"""A rotation by 45 degrees."""

Row = tuple[Entry, Sight, dict[str, float]]


def title_of(entry: Entry) -> str:
    """The name of a method in the figure."""
    observations = entry.options.get("observations")
    return NAMES.get(entry.name, entry.name) + (f", {observations}" if observations else "")


def measure(episodes: int, query: int) -> tuple[list[Row], dict[str, str]]:
    """The accuracies of all methods that need no training, and why the others do."""
    rows, left_out = [], {}
    for entry in entries():
        reason = why_not(entry)
        if reason is not None:
            left_out[entry.name] = reason
            continue
        accuracies = {kind: entry.accuracy(kind, episodes, query) for kind in KINDS}
        print(f"{entry!s:40}", *(f"{accuracies[kind]:6.1f}" for kind in KINDS), flush=True)
        rows.append((entry, sight_of(entry), accuracies))
    rows.sort(key=lambda row: (SIGHTS.index(row[1]), title_of(row[0]).lower()))
    return rows, left_out


def table(rows: list[Row], left_out: dict[str, str], episodes: int, query: int) -> str:
    """The accuracies as text."""
    lines = [
        f"Accuracy in percent, {WAY}-way {SHOT}-shot, {episodes} episodes with {query} queries per class; chance is "
        f"{CHANCE:g}. No training.",
        f"{'':28}{'':32}" + "".join(f"{kind:>13}" for kind in KINDS),
    ]
    for entry, sight, found in rows:
        lines.append(f"{title_of(entry):28}{sight.title:32}" + "".join(f"{found[kind]:13.1f}" for kind in KINDS))
    lines += [f"{NAMES.get(name, name)} is left out: {reason}." for name, reason in left_out.items()]
    return "\n".join(lines) + "\n"


# ---- the small pictures above the columns


def draw_mean(axes: "Axes", generator: torch.Generator) -> None:
    noise = 0.5 * torch.randn(2, 60, 2, generator=generator)
    draw_points(axes, noise + torch.tensor([[[-1.0, 0.7]], [[1.0, -0.7]]]))


def draw_covariance(axes: "Axes", generator: torch.Generator) -> None:
    points = torch.randn(2, 60, 2, generator=generator) * torch.tensor([1.2, 0.25])
    points = points - points.mean(dim=1, keepdim=True)
    draw_points(axes, torch.stack([points[0] @ TURN, points[1] @ TURN.T]))


def draw_descriptors(axes: "Axes", generator: torch.Generator) -> None:
    cross = 1.6 * torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]).repeat(15, 1)
    draw_points(axes, torch.stack([cross, cross @ TURN]) + 0.16 * torch.randn(2, 60, 2, generator=generator))


def draw_points(axes: "Axes", points: Tensor) -> None:
    """The descriptors of one image of each of two classes, as points in the plane of two channels."""
    for label, colour in enumerate(COLOURS):
        x, y = points[label].T.numpy()
        axes.scatter(x, y, s=6, color=colour, alpha=0.8, linewidths=0)
    axes.axhline(0, color="#cccccc", linewidth=0.6, zorder=0)
    axes.axvline(0, color="#cccccc", linewidth=0.6, zorder=0)
    axes.set(xlim=(-2.4, 2.4), ylim=(-2.4, 2.4))


def draw_place(axes: "Axes", generator: torch.Generator) -> None:
    draw_maps(axes, place(2, generator)[:2], generator)


def draw_dependence(axes: "Axes", generator: torch.Generator) -> None:
    draw_maps(axes, dependence(2, generator)[:2], generator)


def draw_maps(axes: "Axes", maps: Tensor, generator: torch.Generator) -> None:
    """Two images (columns) of each of two classes (rows), ``(2, 2, positions, channels)``, as colours."""
    from matplotlib.patches import Rectangle

    colours = 0.25 + 0.65 * torch.sigmoid(0.6 * maps @ torch.randn(maps.shape[-1], 3, generator=generator))
    for label, images in enumerate(colours):
        for number, image in enumerate(images):
            left, top = number * (SIDE + 1), label * (SIDE + 1)
            axes.imshow(image.unflatten(0, (SIDE, SIDE)).numpy(), extent=(left, left + SIDE, top + SIDE, top))
            frame = Rectangle((left, top), SIDE, SIDE, fill=False, edgecolor=COLOURS[label], linewidth=2)
            axes.add_patch(frame)
    axes.set(xlim=(-0.6, 2 * SIDE + 1.6), ylim=(2 * SIDE + 1.6, -0.6))


PICTURES: dict[str, Callable[["Axes", torch.Generator], None]] = {
    "mean": draw_mean,
    "covariance": draw_covariance,
    "descriptors": draw_descriptors,
    "place": draw_place,
    "dependence": draw_dependence,
}


# ---- the table below them


def draw(rows: list[Row], left_out: dict[str, str]) -> "Figure":
    """Methods × kinds, the accuracy in each cell, grouped by what the methods see."""
    from matplotlib.figure import Figure

    heights = heights_of(rows)
    cell, label, picture, row = 1.3, 3.3, 1.22, 0.28  # widths of cells and labels, heights of pictures and rows, inches
    width, below = label + cell * len(KINDS) + 0.1, 0.35 + row * heights[-1]
    height = below + picture + 0.95
    figure = Figure(figsize=(width, height))

    def inches(left: float, bottom: float, wide: float, high: float) -> "Axes":
        return figure.add_axes((left / width, bottom / height, wide / width, high / height))

    for column, kind in enumerate(KINDS):
        axes = inches(label + cell * column + (cell - picture) / 2, below + 0.08, picture, picture)
        PICTURES[kind](axes, torch.Generator().manual_seed(7))
        axes.set(xticks=[], yticks=[])
        axes.set_title(TITLES[kind], fontsize=9.5)
        for spine in axes.spines.values():
            spine.set_color("#bbbbbb")
    notes = inches(0, below + 0.08, label, picture)
    notes.axis("off")
    notes.text(0.95, 0.62, "two classes, blue and orange;", ha="right", va="center", fontsize=9)
    notes.text(0.95, 0.47, "points: descriptors of an image,", ha="right", va="center", fontsize=9)
    notes.text(0.95, 0.32, "in two channels; squares: two maps", ha="right", va="center", fontsize=9)
    middle = (label + cell * len(KINDS) / 2) / width
    top = (height - 0.2) / height
    figure.text(middle, top, "Only this tells the classes apart:", ha="center", fontsize=11, fontweight="bold")
    table_axes = inches(0, 0.35, label + cell * len(KINDS), row * heights[-1])
    table_axes.set(xlim=(-label / cell, len(KINDS)), ylim=(heights[-1], 0))
    draw_table(table_axes, rows, heights)
    note = f"Accuracy in percent; chance is {CHANCE:g}. {len(left_out)} methods that need training are left out."
    figure.text(middle, 0.12 / height, note, ha="center", fontsize=8.5, color="#555555")
    return figure


def heights_of(rows: list[Row]) -> list[float]:
    """The top of each row, with a gap between groups; and the bottom of the last."""
    tops = [0.0]
    for before, after in zip(rows, [*rows[1:], rows[-1]], strict=True):
        tops.append(tops[-1] + (1.0 if before[1] == after[1] else 1.45))
    return tops


def draw_table(axes: "Axes", rows: list[Row], heights: list[float]) -> None:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    colour_of = LinearSegmentedColormap.from_list("accuracy", ["#f3f3f1", "#bcd7ea", "#0b5a94"])
    for (entry, _, found), top in zip(rows, heights, strict=False):
        axes.text(-0.08, top + 0.5, title_of(entry), ha="right", va="center", fontsize=9.5)
        for column, kind in enumerate(KINDS):
            share = max(0.0, (found[kind] - CHANCE) / (100 - CHANCE))
            axes.add_patch(Rectangle((column + 0.02, top + 0.04), 0.96, 0.92, facecolor=colour_of(share)))
            colour = "white" if share > 0.5 else "#333333"
            axes.text(column + 0.5, top + 0.5, f"{found[kind]:.0f}", ha="center", va="center", color=colour, fontsize=9)
    for sight in SIGHTS:
        own = [top for (_, seen, _), top in zip(rows, heights, strict=False) if seen is sight]
        if own:
            axes.plot([-1.44, -1.44], [own[0] + 0.1, own[-1] + 0.9], color="#999999", linewidth=1.2)
            title = "\n".join(["sees", *textwrap.wrap(sight.title, 18)])
            axes.text(-1.5, (own[0] + own[-1] + 1) / 2, title, ha="right", va="center", fontsize=9.5, linespacing=1.1)
    axes.axis("off")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--query", type=int, default=5, help="query images per class")
    parser.add_argument("--figure", type=Path, default=ROOT / "docs" / "images" / "planted.png")
    parser.add_argument("--table", type=Path, default=ROOT / "benchmarks" / "results" / "planted.txt")
    options = parser.parse_args()
    rows, left_out = measure(options.episodes, options.query)
    write_text(options.table, table(rows, left_out, options.episodes, options.query))
    with temporary(options.figure) as path:
        draw(rows, left_out).savefig(path, format="png", dpi=130)


if __name__ == "__main__":
    main()
