"""A filled table as texts: the paper's value beside ours, told apart."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepbdc.paper.cells import Cell, FilledRow, baseline_of
from deepbdc.paper.experiments import Experiment, Row
from deepbdc.recipes import build_method
from deepbdc.report.comparison_output import difference_in_words
from deepbdc.report.evaluation import (
    class_interval_in_words,
    explain_intervals,
    footnotes,
    queries_in_words,
    transductive_mark,
)
from deepbdc.report.grid import Grid
from deepbdc.report.latency import WAY, Latency
from deepbdc.report.published import Published

NONE = "–"
_NOT_TIMED = "not timed: it cannot be built here, or needs its training images for every task"
_NO_TASKS = "it is not trained with tasks"
_WORDS = ("model", "measure", "joint", "dependency", "speed")
_HEADINGS = {"joint": "joint distribution", "speed": "latency, paper"}


def grid(
    experiment: Experiment, rows: Sequence[FilledRow], latencies: dict[int, dict[str, Latency]], data: str
) -> Grid:
    """The texts of an experiment's table.

    Args:
        experiment: The table.
        rows: Its rows with their results.
        latencies: By shots and name of the row; empty if the table has none.
        data: The data set of ours.
    """
    writer = _Writer(experiment, rows, latencies, data)
    made = Grid(writer.header())
    group = ""
    for row in rows:
        if row.row.group and row.row.group != group:
            made.lines.append([row.row.group])
            group = row.row.group
        made.lines.append(writer.line(row))
    made.notes = writer.notes()
    return made


class _Writer:
    """Writes the cells of one table, and collects the reasons why some are empty."""

    def __init__(
        self, experiment: Experiment, rows: Sequence[FilledRow], latencies: dict[int, dict[str, Latency]], data: str
    ) -> None:
        self.experiment, self.rows, self.latencies, self.data = experiment, rows, latencies, data
        self.baseline = baseline_of(experiment, rows)
        self.reasons: list[str] = []
        self.networks = len({self._network_in_paper(row) for row in rows}) > 1

    def header(self) -> list[str]:
        """The headings of the columns."""
        titles = ["", *(["network in the paper"] if self.networks else [])]
        for column in self.experiment.columns:
            if column in _WORDS:
                titles.append(_HEADINGS.get(column, column))
            elif column == "map":
                titles += ["map, ours"]
            elif column == "parameters":
                titles += ["M parameters, paper"] if self._in_paper(column) else []
                titles += ["M parameters, ours"]
            elif column == "accuracy":
                titles += [title for panel in self._panels for title in self._accuracy_titles(panel)]
            else:
                kind = "training task" if column == "training_latency" else "test task"
                for shot in self.experiment.shots:
                    titles += [f"{kind} {shot}-shot, paper (ms, ratio)"] if self._in_paper(column) else []
                    titles += [f"{kind} {shot}-shot, ours (ms, ratio)"]
        return [*titles, "run"]

    def line(self, filled: FilledRow) -> list[str]:
        """The texts of one row."""
        row, paper = filled.row, filled.row.published
        texts = [self._name(filled)]
        if self.networks:
            texts.append(self._network_in_paper(filled))
        for column in self.experiment.columns:
            if column in _WORDS:
                texts.append(_word(paper.values.get(column)) if paper else NONE)
            elif column == "map":
                texts.append(_map(filled))
            elif column == "parameters":
                published = paper.values.get("parameters") if paper else None
                texts += [NONE if published is None else f"*{published:.2f}*"] if self._in_paper(column) else []
                texts += [self._parameters(filled)]
            elif column == "accuracy":
                texts += [text for panel in self._panels for text in self._accuracies(filled, panel)]
            else:
                for shot in self.experiment.shots:
                    texts += [self._published_latency(paper, column, shot)] if self._in_paper(column) else []
                    texts += [self._latency(row, column, shot)]
        runs = dict.fromkeys(str(cell.run) for cell in filled.cells.values() if cell.run is not None)
        return [*texts, ", ".join(f"`{run}`" for run in runs) or NONE]

    @property
    def _panels(self) -> tuple[str, ...]:
        """The paper's data sets whose accuracies the table has."""
        return self.experiment.data

    def _is_ours(self, panel: str) -> bool:
        """Whether our accuracies stand beside those of this data set: it is ours, or the first if none is."""
        return panel == (self.data if self.data in self._panels else self._panels[0])

    def _accuracy_titles(self, panel: str) -> list[str]:
        several, ours = len(self._panels) > 1, self._is_ours(panel)
        titles: list[str] = []
        for shot in self.experiment.shots:
            where = f" ({Path(self.data).name if ours else panel})" if several else ""
            titles += [f"{shot}-shot, paper{f' ({panel})' if several else ''}", f"{shot}-shot, ours{where}"]
            titles += [f"{shot}-shot, difference"] if self.baseline is not None and ours else []
        return titles

    def _accuracies(self, filled: FilledRow, panel: str) -> list[str]:
        paper = filled.row.published if panel == self._panels[0] else filled.row.beside.get(panel)
        texts: list[str] = []
        for shot in self.experiment.shots:
            texts.append(published_accuracy(paper, shot))
            if not self._is_ours(panel):
                texts.append(self._reason(not_ours(self.experiment, panel)))
                continue
            texts.append(self._ours(filled.cells[shot]))
            texts += [self._difference(filled, shot)] if self.baseline is not None else []
        return texts

    def _network_in_paper(self, filled: FilledRow) -> str:
        """The network of a row in the paper, and those that it has on other data sets."""
        row = filled.row
        main = row.published.backbone if row.published is not None else None
        others = [f"{data}: {other.backbone}" for data, other in row.beside.items() if other.backbone != main]
        return (main or NONE) + (f" ({', '.join(others)})" if others else "")

    def _name(self, filled: FilledRow) -> str:
        here = sorted(
            {
                str(recipe.options["reduce_to"])
                for recipe in filled.recipes.values()
                if any(isinstance(value, dict) for value in filled.row.set.values())
            }
        )
        if filled.row.larger or "backbone" in filled.row.identity:
            here = sorted({_network(recipe.backbone) for recipe in filled.recipes.values()})
        results = [cell.result for cell in filled.cells.values() if cell.result is not None]
        return filled.row.name + (f" (ours: {', '.join(here)})" if here else "") + transductive_mark(results)

    def _ours(self, cell: Cell) -> str:
        if cell.result is None:
            return self._reason(cell.reason)
        text = f"{cell.result} {class_interval_in_words(cell.result.ci95_classes)}".strip()
        if not cell.other_seeds:
            return text
        means = [cell.result.mean, *(result.mean for result in cell.other_seeds)]
        return f"{text}; {len(means)} seeds: {statistics.mean(means):.2f}, σ {statistics.stdev(means):.2f}"

    def _reason(self, reason: str) -> str:
        if reason not in self.reasons:
            self.reasons.append(reason)
        return f"{NONE} [{self.reasons.index(reason) + 1}]"

    def _difference(self, filled: FilledRow, shot: int) -> str:
        assert self.baseline is not None
        own, other = filled.cells[shot].result, self.baseline.cells[shot].result
        if filled is self.baseline or own is None or other is None:
            return ""
        if own.weights_fingerprint == other.weights_fingerprint:  # rows that differ in the paper, but not here
            return "the same run"
        return difference_in_words(own.compare(other)).strip()

    def _parameters(self, filled: FilledRow) -> str:
        counts = {self._count(recipe) for recipe in filled.recipes.values()}
        return (
            ", ".join(f"{count / 1e6:.3g}" if count < 1e7 else f"{count / 1e6:.2f}" for count in sorted(counts)) or NONE
        )

    def _count(self, recipe: Any) -> int:
        method = build_method(recipe)
        own = sum(value.numel() for value in method.parameters())
        if not self.experiment.count_task_classifier:
            return own
        import torch

        size = method.embedding.preprocessing.input_size
        with torch.no_grad():
            features = method.eval().embed(torch.zeros(1, 3, size, size))[0].numel()
        return own + WAY * (features + 1)

    def _published_latency(self, paper: Published | None, column: str, shot: int) -> str:
        value = _published_value(paper, column, shot)
        if paper is None or value is None:
            return NONE
        base = _published_value(self.baseline.row.published, column, shot) if self.baseline else None
        more = ">" if column in paper.lower_bounds else ""
        return f"*{more}{value:,.0f}*" + (f" (*{more}{value / base:.2f}*)" if base else "")

    def _in_paper(self, column: str) -> bool:
        """Whether the paper gives the numbers of a column."""
        return any(row.row.published is not None and column in row.row.published.values for row in self.rows)

    def _latency(self, row: Row, column: str, shot: int) -> str:
        timed = self.latencies.get(shot, {}).get(row.name)
        value = _latency(timed, column)
        base = None
        if self.baseline is not None:
            base = _latency(self.latencies.get(shot, {}).get(self.baseline.row.name), column)
        if value is None:
            return self._reason(_NOT_TIMED if timed is None else _NO_TASKS)
        return f"{value:,.1f}" + (f" ({value / base:.2f})" if base else "")

    def notes(self) -> list[str]:
        """What to read with the table."""
        results = [cell.result for row in self.rows for cell in row.cells.values() if cell.result is not None]
        notes = ["Published values are in italics; the others are ours."]
        notes += [f"ours: {line}." for line in explain_intervals(results)] if results else []
        if self.baseline is not None and results:
            name = self.baseline.row.name
            notes.append(f"difference: ours, paired episode by episode, to {name}; * = the interval excludes 0.")
        paper = f"paper: {' and '.join(self._panels)}."
        if results:
            first = results[0]
            paper += (
                f" ours: {first.dataset}, {first.split} classes, {len(first.accuracies):,} episodes, {first.way}-way, "
                f"{queries_in_words(first)}, seed {first.seed}."
            )
        notes.append(paper)
        if any(cell.other_seeds for row in self.rows for cell in row.cells.values()):
            notes.append("seeds: mean and standard deviation over trainings; all else is of the first seed.")
        if self.latencies:
            ratio = f" Ratios are to {self.baseline.row.name}." if self.baseline is not None else ""
            notes.append(
                "Latency: one 5-way task with 15 queries per class, the median of rounds in which all rows take "
                f"turns; the paper's on a GPU, ours on this CPU.{ratio}"
            )
        notes += [f"{line}." for line in footnotes(results)]
        return notes + [f"[{place}] {reason}." for place, reason in enumerate(self.reasons, start=1)]


def not_ours(experiment: Experiment, data: str) -> str:
    """Why there is no value of ours on one of the paper's data sets, which was not chosen."""
    return f"'deepbdc paper {experiment.name} --data {data}' makes ours on {data}"


def published_accuracy(paper: Published | None, shot: int) -> str:
    """The paper's accuracy in italics, with its interval if there is one."""
    if paper is None or shot not in paper.accuracies:
        return NONE
    mean, interval = paper.accuracies[shot]
    return f"*{mean:.2f}*" if interval is None else f"*{mean:.2f} ± {interval:.2f}*"


def _published_value(paper: Published | None, column: str, shot: int) -> float | None:
    return None if paper is None else paper.values.get(column, {}).get(shot)


def _latency(timed: Latency | None, column: str) -> float | None:
    if timed is None:
        return None
    return timed.training if column == "training_latency" else timed.test


def _word(value: Any) -> str:
    return {True: "yes", False: "no", None: NONE}.get(value, str(value)) if not isinstance(value, str) else value


def _map(filled: FilledRow) -> str:
    sizes = {build_method(recipe).embedding.map_size for recipe in filled.recipes.values()}
    return ", ".join(f"{height}×{width}" for height, width in sorted(sizes)) or NONE


def _network(backbone: Any) -> str:
    width = backbone.get("width", 1)
    return str(backbone["name"]) + ("" if width == 1 else f" ×{width:g}")
