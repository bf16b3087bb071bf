"""The tables and the figure, made from the result files of the runs."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepbdc._files import temporary, write_text
from study import cost, frozen
from study.scratch import SHOTS, Run, Setting, finished
from study.settings import SETTINGS

Counts = dict[str, NDArray[np.uint16]]
CORES = 2  # of the machine on which the study was run


@dataclass(frozen=True)
class Difference:
    """Accuracies of the baseline and of BDC in percent, and their paired difference over episodes."""

    baseline: float
    bdc: float
    mean: float
    interval: float

    @property
    def clear(self) -> bool:
        """Whether the interval excludes 0."""
        return abs(self.mean) > self.interval

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ± {self.interval:.2f}"


def difference(baseline: NDArray[np.uint16], bdc: NDArray[np.uint16], queries: int) -> Difference:
    """The difference of two numbers of correct answers in each of the same episodes."""
    first, second = (100 * counts.astype(float) / queries for counts in (baseline, bdc))
    change = second - first
    interval = 1.96 * change.std() / np.sqrt(len(change))
    return Difference(float(first.mean()), float(second.mean()), float(change.mean()), float(interval))


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    name: str
    group: str
    title: str
    dropout: str
    differences: dict[int, Difference]
    cost: str
    minutes: float
    command: str


# ---- from scratch


def read_counts(path: Path) -> Counts:
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def best_title(percent: dict[str, float], scoring: str, shot: int) -> str:
    """The title of a way of scoring; if it has a C, the one that is best on the validation classes."""
    titles = [title for title in percent if _matches(title, scoring) and title.endswith(f", {shot}-shot")]
    return max(titles, key=lambda title: percent[title])


def _matches(title: str, scoring: str) -> bool:
    return title.rpartition(", ")[0].partition(" C=")[0] == scoring


def scratch_rows(results: Path, split: str = "val") -> Iterator[Row]:
    """A row for each setting with the results of both runs; rows of the same factor come together."""
    factors = list(dict.fromkeys(setting.factor for setting in SETTINGS))
    for setting in sorted(SETTINGS, key=lambda setting: factors.index(setting.factor)):
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
    part = "scratch" if split == "val" else "test"
    command = f"python benchmarks/bdc_study.py {part} {setting.name} --again --threads 1 --data FOLDER"
    spent, minutes = scratch_cost(setting, results), training_minutes(runs, results)
    dropout = " → ".join(f"{run.recipe().dropout:g}" for run in runs)
    return Row(setting.name, setting.factor, setting.value, dropout, found, spent, minutes, command)


def scratch_cost(setting: Setting, results: Path) -> str:
    """Bytes per representation, and the factors by which BDC increases the time for embedding and for training."""
    path = results / "cost.json"
    costs = json.loads(path.read_text(encoding="utf-8"))["scratch"] if path.is_file() else {}
    own = costs.get(cost.signature(setting))
    if own is None:
        return "not measured"
    before, after = own["bytes"]
    after += before if setting.scoring[1].startswith("both") else 0
    embed, training = (own[kind][1] / own[kind][0] for kind in ("embed_ms", "train_ms"))
    baseline, bdc = setting.runs()
    return f"{before:,} → {after:,} B, ×{embed:.2f}, ×{training if bdc != baseline else 1:.2f}"


def _content(run: Run, results: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((results / "runs" / f"{run.name}.json").read_text(encoding="utf-8"))
    return content


def training_minutes(runs: Sequence[Run], results: Path) -> float:
    """Minutes of one core to train these runs from scratch, including the stages that they copy from their parents."""
    needed: set[Run] = set()
    for run in runs:
        while run not in needed:
            needed.add(run)
            run = run.parent or run
    return sum(_core_seconds(_content(run, results)) for run in needed) / 60


def training_hours(results: Path) -> float:
    """Hours of all cores of the machine to train all runs; stages that a run copied from its parent count once."""
    contents = [json.loads(path.read_text(encoding="utf-8")) for path in (results / "runs").glob("*.json")]
    return sum(_core_seconds(content) for content in contents) / CORES / 3600


def _core_seconds(content: dict[str, Any]) -> float:
    return float(content["seconds"]) * int(content["threads"])


# ---- on the frozen backbone


class Frozen:
    """The stored results of the frozen backbone."""

    def __init__(self, results: Path) -> None:
        done = [unit for unit in frozen.units() if unit.split == "test" and frozen.finished(unit, results / "frozen")]
        self.counts = {unit: read_counts(results / "frozen" / f"{unit.name}.npz") for unit in done}
        path = results / "cost.json"
        self.costs = json.loads(path.read_text(encoding="utf-8"))["frozen"] if path.is_file() else None

    def difference(
        self, unit: frozen.Unit, name: str, classifier: str, way: int, shot: int, baseline: str = "average"
    ) -> Difference:
        """A representation compared with average pooling, or with another representation, of the same map."""
        cell = f"{{}}, {classifier}, {way}-way {shot}-shot"
        counts = self.counts[unit]
        return difference(counts[cell.format(baseline)], counts[cell.format(name)], way * frozen.QUERIES)

    def units(self, size: int | None = None, maps: str | None = None) -> list[frozen.Unit]:
        """The units with results, optionally only those of a size or of a map."""
        return [unit for unit in self.counts if size in (None, unit.size) and maps in (None, unit.maps)]

    def tasks_table(self, units: Sequence[frozen.Unit]) -> str:
        """A column for each number of shots, and a row for each way and classifier with results."""
        lines = [["", "classifier", *(f"{shot} shot{'s' if shot > 1 else ''}" for shot in frozen.SHOTS), "command"]]
        for unit in units:
            for way, classifier in product(frozen.WAYS, ("prototypes", "logistic", "svm")):
                if f"bdc, {classifier}, {way}-way {frozen.SHOTS[0]}-shot" in self.counts[unit]:
                    found = [self.difference(unit, "bdc", classifier, way, shot) for shot in frozen.SHOTS]
                    cells = [f"{one.baseline:.2f}, {_bold(one)}" for one in found]
                    lines.append([f"{_NAMES[unit.dataset]}, {way}-way", classifier, *cells, _command(unit)])
        return table(lines)

    def representations_table(self, units: Sequence[frozen.Unit]) -> str:
        """A column for each representation."""
        heads = [name.replace("bdc", "BDC") for name in frozen.REPRESENTATIONS]
        lines = [["5-way", "classifier", *heads, "BDC against second moment", "command"]]
        for unit in sorted(units, key=_map_order):
            for shot in SHOTS:
                for classifier in ("prototypes", "logistic"):
                    found = [self.difference(unit, name, classifier, 5, shot) for name in frozen.REPRESENTATIONS]
                    found.append(self.difference(unit, "bdc", classifier, 5, shot, baseline="second moment"))
                    cells = [f"{found[0].baseline:.2f}", *map(_bold, found[1:])]
                    lines.append([f"{_title(unit)}, {shot}-shot", classifier, *cells, _command(unit)])
        return table(lines)

    def maps_table(self, units: Sequence[frozen.Unit]) -> str:
        """A row for each map and size, with their cost."""
        lines = [["", "map", "input", "1 shot", "5 shots", "network", "BDC adds", "bytes", "command"]]
        for unit in sorted(units, key=lambda unit: (unit.dataset, unit.size)):
            found = [self.difference(unit, "bdc", "logistic", 5, shot) for shot in SHOTS]
            cells = [f"{one.baseline:.2f}, {_bold(one)}" for one in found]
            shown = [_NAMES[unit.dataset], _MAPS[unit.maps], f"{unit.size} px", *cells]
            lines.append([*shown, *self._cost(unit), _command(unit)])
        return table(lines)

    def _cost(self, unit: frozen.Unit) -> list[str]:
        if self.costs is None:
            return ["not measured"] * 3
        own = self.costs[str(unit.size)]
        stages = [unit.maps] if unit.maps in frozen.STAGES else list(frozen.STAGES)
        added = sum(own["ms"][f"{stage}, bdc"] - own["ms"][f"{stage}, average"] for stage in stages)
        sizes = [sum(own["bytes"][f"{stage}, {name}"] for stage in stages) for name in ("average", "bdc")]
        return [f"{own['ms']['network']:.1f} ms", f"{added:.2f} ms", f"{sizes[0]:,} → {sizes[1]:,}"]

    def all_cells(self) -> str:
        """Every cell: the accuracy of each representation, and BDC minus average."""
        lines = [["data", "px", "map", "classifier", "task", *frozen.REPRESENTATIONS, "bdc minus average"]]
        for unit, counts in self.counts.items():
            for cell in dict.fromkeys(_cell(title) for title in counts):
                _, classifier, task = cell.split(", ")
                asked = int(task.partition("-")[0]) * frozen.QUERIES
                percent = [f"{100 * counts[cell.format(name)].mean() / asked:.2f}" for name in frozen.REPRESENTATIONS]
                found = difference(counts[cell.format("average")], counts[cell.format("bdc")], asked)
                lines.append([unit.dataset, str(unit.size), unit.maps, classifier, task, *percent, str(found)])
        return table(lines)


def _cell(title: str) -> str:
    _, classifier, task = title.split(", ")
    return f"{{}}, {classifier}, {task}"


# ---- the page


def scratch_table(rows: Sequence[Row]) -> str:
    """The table of settings as Markdown."""
    heads = ["", "", "dropout", "baseline 1 / 5 shots", "BDC 1 / 5 shots", "difference, 1 shot", "difference, 5 shots"]
    lines = [[*heads, "bytes; embedding time; training time", "minutes", "command"]]
    for before, row in zip([None, *rows], rows, strict=False):
        one, five = (row.differences[shot] for shot in SHOTS)
        group = "" if before is not None and before.group == row.group else row.group
        accuracies = [f"{one.baseline:.2f} / {five.baseline:.2f}", f"{one.bdc:.2f} / {five.bdc:.2f}"]
        spent = [row.cost, f"{row.minutes:.0f}", f"`{row.command}`"]
        lines.append([group, row.title, row.dropout, *accuracies, _bold(one), _bold(five), *spent])
    return table(lines)


def _bold(found: Difference) -> str:
    """The difference as text, bold if BDC is better and the interval excludes 0."""
    return f"**{found}**" if found.clear and found.mean > 0 else str(found)


def table(lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose first line is the header."""
    ruled = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in ruled)


def fill(page: Path, parts: dict[str, str]) -> None:
    """Put each generated part between its two marks in a page."""
    text = page.read_text(encoding="utf-8")
    for name, content in parts.items():
        start, end = f"<!-- generated: {name} -->\n", f"<!-- end: {name} -->"
        if text.count(start) != 1 or text.count(end) != 1:
            raise ValueError(f"{page} must contain the start and end marks of {name!r} exactly once")
        before, rest = text.split(start)
        text = f"{before}{start}{content}\n{end}{rest.split(end)[1]}"
    write_text(page, text)


def draw(rows: Sequence[Row], tests: Sequence[Row], measured: Frozen, path: Path) -> None:
    """Draw BDC minus its baseline: from scratch on the left (test classes at the bottom), frozen on the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    colours = {1: "#0072b2", 5: "#d55e00"}
    units = sorted(measured.counts, key=_map_order)
    names = [row.name for row in rows] + [f"{row.name}, test classes" for row in tests]
    height = 1.2 + 0.24 * max(len(names), len(units))
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, height), layout="constrained")
    for place, row in enumerate([*rows, *tests]):
        for shot, shift in ((1, -0.14), (5, 0.14)):
            _mark(left, row.differences[shot], place + shift, colours[shot], f"{shot}-shot" if place == 0 else None)
    left.set_yticks(range(len(names)), names)
    left.axhspan(len(rows) - 0.5, len(names) - 0.5, color="#eeeeee", zorder=0)
    left.set_title("Trained from scratch (validation classes; grey: test classes)", fontsize=10)
    for place, unit in enumerate(units):
        for shot, shift in ((1, -0.14), (5, 0.14)):
            found = measured.difference(unit, "bdc", "logistic", 5, shot)
            _mark(right, found, place + shift, colours[shot], None)
    right.set_yticks(range(len(units)), [_title(unit) for unit in units])
    right.set_title("Frozen EfficientNet-Lite0 (test classes)", fontsize=10)
    for axes in (left, right):
        axes.axvline(0, color="black", linewidth=0.8)
        axes.invert_yaxis()
        axes.grid(axis="x", alpha=0.3)
        axes.set_xlabel("BDC minus baseline, points, with 95 % intervals")
    left.legend(loc="best")
    with temporary(path) as part:
        figure.savefig(part, format="png", dpi=130)
    plt.close(figure)


_NAMES = {"cifar_fs": "CIFAR-FS", "omniglot": "Omniglot"}
_MAPS = {"last": "last map", "before": "map before it", "both": "both maps"}


def _title(unit: frozen.Unit) -> str:
    return f"{_NAMES[unit.dataset]}, {unit.size} px, {_MAPS[unit.maps]}"


def _command(unit: frozen.Unit) -> str:
    return f"`python benchmarks/bdc_study.py frozen {unit.name} --again --data FOLDER`"


def _map_order(unit: frozen.Unit) -> tuple[int, str, int]:
    return frozen.MAPS.index(unit.maps), unit.dataset, unit.size


def _mark(axes: Any, found: Difference, place: float, colour: str, label: str | None) -> None:
    axes.errorbar(found.mean, place, xerr=found.interval, fmt="o", markersize=4, color=colour, label=label)
