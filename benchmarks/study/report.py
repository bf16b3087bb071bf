"""The table and the figure, of the files that the runs left."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepbdc._files import temporary, write_text
from study import frozen
from study.scratch import SHOTS, Run, Setting, finished
from study.settings import SETTINGS

Counts = dict[str, NDArray[np.uint16]]


@dataclass(frozen=True)
class Difference:
    """BDC minus its baseline, paired over episodes, in percent."""

    baseline: float
    bdc: float
    mean: float
    interval: float

    @property
    def clear(self) -> bool:
        """Whether 0 is outside the interval."""
        return abs(self.mean) > self.interval

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ± {self.interval:.2f}"


def difference(baseline: NDArray[np.uint16], bdc: NDArray[np.uint16], queries: int) -> Difference:
    """Of right answers in the same episodes."""
    first, second = (100 * counts.astype(float) / queries for counts in (baseline, bdc))
    change = second - first
    interval = 1.96 * change.std() / np.sqrt(len(change))
    return Difference(float(first.mean()), float(second.mean()), float(change.mean()), float(interval))


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    group: str
    title: str
    differences: dict[int, Difference]
    cost: str
    command: str


# ---- from scratch


def read_counts(path: Path) -> Counts:
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def best_title(percent: dict[str, float], scoring: str, shot: int) -> str:
    """The title with the C that is best on the validation classes, where there is a C."""
    titles = [title for title in percent if _matches(title, scoring) and title.endswith(f", {shot}-shot")]
    return max(titles, key=lambda title: percent[title])


def _matches(title: str, scoring: str) -> bool:
    return title.rpartition(", ")[0].partition(" C=")[0] == scoring


def scratch_rows(results: Path, split: str = "val") -> Iterator[Row]:
    """A row for each setting of which both runs are there."""
    for setting in SETTINGS:
        runs = setting.runs()
        if not all(finished(run, results / "runs") for run in runs):
            continue
        if split == "test" and not all((results / "test" / f"{run.name}.npz").is_file() for run in runs):
            continue
        yield scratch_row(setting, results, split)


def scratch_row(setting: Setting, results: Path, split: str) -> Row:
    runs = setting.runs()
    contents = [_content(run, results) for run in runs]
    folder = results / ("runs" if split == "val" else "test")
    counts = [read_counts(folder / f"{run.name}.npz") for run in runs]
    found = {}
    for shot in SHOTS:
        chosen = [
            count[best_title(content["percent"], scoring, shot)]
            for content, count, scoring in zip(contents, counts, setting.scoring, strict=True)
        ]
        found[shot] = difference(chosen[0], chosen[1], contents[0]["queries"])
    numbers = contents[1]["numbers"]
    longer = contents[1]["seconds"] / contents[0]["seconds"]
    command = f"python benchmarks/bdc_study.py scratch {setting.name} --again --data FOLDER"
    return Row(setting.factor, setting.value, found, f"{4 * numbers:,} B; training ×{longer:.2f}", command)


def _content(run: Run, results: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((results / "runs" / f"{run.name}.json").read_text(encoding="utf-8"))
    return content


# ---- on the frozen backbone


def frozen_difference(unit: frozen.Unit, results: Path, cell: str, representation: str, base: str = "average") -> Any:
    """A `Difference` of two representations in a cell like ``last, {}, logistic, 5-way 1-shot``."""
    counts = read_counts(results / "frozen" / f"{unit.name}.npz")
    way = int(cell.rpartition(", ")[2].partition("-")[0])
    first, second = (counts[cell.format(name)] for name in (base, representation))
    return difference(first, second, way * frozen.QUERIES)


def frozen_units(results: Path) -> list[frozen.Unit]:
    return [unit for unit in frozen.units() if unit.split == "test" and frozen.finished(unit, results / "frozen")]


def frozen_rows(results: Path, units: Sequence[frozen.Unit]) -> Iterator[list[str]]:
    """All cells: the accuracy of each representation, and BDC minus average, paired."""
    for unit in units:
        counts = read_counts(results / "frozen" / f"{unit.name}.npz")
        cells = dict.fromkeys(_cell(title) for title in counts)
        for cell in cells:
            stage, _, classifier, task = cell.split(", ")
            way = int(task.partition("-")[0])
            percent = [
                f"{100 * counts[cell.format(name)].mean() / (way * frozen.QUERIES):.2f}"
                for name in frozen.REPRESENTATIONS
            ]
            found = difference(counts[cell.format("average")], counts[cell.format("bdc")], way * frozen.QUERIES)
            yield [unit.dataset, str(unit.size), stage, classifier, task, *percent, str(found)]


def _cell(title: str) -> str:
    stage, _, classifier, task = title.split(", ")
    return f"{stage}, {{}}, {classifier}, {task}"


# ---- what people read


def scratch_table(rows: Sequence[Row]) -> str:
    """Markdown."""
    heads = ["", "", "baseline 1 / 5 shots", "BDC 1 / 5 shots", "difference, 1 shot", "difference, 5 shots", "cost"]
    lines = [_line([*heads, "command"]), _line(["---"] * (len(heads) + 1))]
    before = ""
    for row in rows:
        one, five = (row.differences[shot] for shot in SHOTS)
        lines.append(
            _line(
                [
                    row.group if row.group != before else "",
                    row.title,
                    f"{one.baseline:.2f} / {five.baseline:.2f}",
                    f"{one.bdc:.2f} / {five.bdc:.2f}",
                    _bold(one),
                    _bold(five),
                    row.cost,
                    f"`{row.command}`",
                ]
            )
        )
        before = row.group
    return "\n".join(lines)


def frozen_table(rows: Sequence[list[str]]) -> str:
    """Markdown, every cell."""
    heads = ["data", "px", "map", "classifier", "task", *frozen.REPRESENTATIONS, "bdc minus average"]
    return "\n".join([_line(heads), _line(["---"] * len(heads)), *map(_line, rows)])


def _bold(found: Difference) -> str:
    """Bold where BDC is clearly better."""
    return f"**{found}**" if found.clear and found.mean > 0 else str(found)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def fill(page: Path, parts: dict[str, str]) -> None:
    """Put what was generated between its two marks in a page."""
    text = page.read_text(encoding="utf-8")
    for name, content in parts.items():
        start, end = f"<!-- generated: {name} -->\n", f"\n<!-- end: {name} -->"
        if text.count(start) != 1 or text.count(end) != 1:
            raise ValueError(f"{page} must have the marks of {name!r} once")
        before, rest = text.split(start)
        text = before + start + content + end + rest.split(end)[1]
    write_text(page, text)


def draw(rows: Sequence[Row], results: Path, units: Sequence[frozen.Unit], path: Path) -> None:
    """BDC minus its baseline: trained from scratch on the left, on the frozen backbone on the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    colours = {1: "#0072b2", 5: "#d55e00"}
    cells = [
        (f"{_NAMES[unit.dataset]}, {unit.size} px, {_MAPS[stage]}", unit, stage)
        for stage in frozen.STAGES
        for unit in units
    ]
    height = 1.2 + 0.3 * max(len(rows), len(cells))
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, height), layout="constrained")
    for place, row in enumerate(rows):
        for shot, shift in ((1, -0.14), (5, 0.14)):
            _mark(left, row.differences[shot], place + shift, colours[shot], f"{shot}-shot" if place == 0 else None)
    left.set_yticks(range(len(rows)), [f"{row.group}: {row.title}" for row in rows])
    left.set_title("Trained from scratch, validation classes", fontsize=10)
    for place, (_, unit, stage) in enumerate(cells):
        for shot, shift in ((1, -0.14), (5, 0.14)):
            cell = f"{stage}, {{}}, logistic, 5-way {shot}-shot"
            _mark(right, frozen_difference(unit, results, cell, "bdc"), place + shift, colours[shot], None)
    right.set_yticks(range(len(cells)), [title for title, _, _ in cells])
    right.set_title("Frozen EfficientNet-Lite0, test classes, logistic regression", fontsize=10)
    for axes in (left, right):
        axes.axvline(0, color="black", linewidth=0.8)
        axes.invert_yaxis()
        axes.grid(axis="x", alpha=0.3)
        axes.set_xlabel("BDC minus average pooling, points (95 % interval, paired)")
    left.legend(loc="best")
    with temporary(path) as part:
        figure.savefig(part, format="png", dpi=130)
    plt.close(figure)


_NAMES = {"cifar_fs": "CIFAR-FS", "omniglot": "Omniglot"}
_MAPS = {"last": "last map", "before": "map before it"}


def _mark(axes: Any, found: Difference, place: float, colour: str, label: str | None) -> None:
    axes.errorbar(found.mean, place, xerr=found.interval, fmt="o", markersize=4, color=colour, label=label)
