"""The answers of a classifier for many pictures: as rows, as CSV and JSON, counted, and compared with the truth."""

import csv
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepbdc._files import temporary

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from deepbdc.own_images.explanation import Prediction

NONE_OF_THESE = "none of these"
"""As in `deepbdc.estimator`, but without torch."""
LONGEST_LABEL = 24
"""Columns of a label in a row; a longer one is cut."""


@dataclass(frozen=True)
class Answer:
    """What is said of one picture: a label, or why it could not be read."""

    file: Path
    label: str = ""
    probability: float | None = None
    """None if the picture looks like none of the classes."""
    runner_up: str | None = None
    runner_up_probability: float | None = None
    probabilities: tuple[float, ...] = ()
    strange: bool = False
    """Whether the picture looks like none of the classes, also if that may not be the answer."""
    place: Path | None = None
    """Where the file was or would be moved or copied."""
    problem: str | None = None
    """Why it could not be read, or not be moved."""

    @property
    def readable(self) -> bool:
        """Whether there is a label."""
        return bool(self.probabilities)

    def record(self, classes: Sequence[str]) -> dict[str, Any]:
        """All there is to know, under names."""
        return {
            "file": str(self.file),
            "label": self.label or None,
            "probability": self.probability,
            "runner_up": self.runner_up,
            "runner_up_probability": self.runner_up_probability,
            "looks_like_none": self.strange if self.readable else None,
            "place": None if self.place is None else str(self.place),
            "problem": self.problem,
            "probabilities": dict(zip(classes, self.probabilities, strict=True)) if self.readable else None,
        }


def answer_of(file: Path, prediction: "Prediction", reject: bool) -> Answer:
    """The answer in a prediction. One that is rejected has no probability, and its nearest class is the runner-up."""
    first = str(prediction.label), _rounded(prediction.probability)
    if reject and prediction.rejected:
        answer = Answer(file, NONE_OF_THESE, None, *first)
    elif prediction.runner_up is None:
        answer = Answer(file, *first)
    else:
        answer = Answer(file, *first, str(prediction.runner_up), _rounded(prediction.runner_up_probability))
    probabilities = tuple(map(_rounded, prediction.probabilities))
    return replace(answer, probabilities=probabilities, strange=prediction.rejected)


def _rounded(probability: float) -> float:
    """Six digits, however small it is: more mean nothing, but two small ones can still be told apart."""
    return float(f"{probability:.6g}")


@contextmanager
def write_csv(path: Path, classes: Sequence[str]) -> Iterator[Callable[[Answer], None]]:
    """A function that adds a row for each answer; the file takes its name when the block ends well."""
    named = list(Answer(Path()).record(classes))[:-1]
    # File names that are no valid text go out byte for byte as they came in.
    with temporary(path) as part, part.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*named, *(f"probability of {name}" for name in classes)])

        def add(answer: Answer) -> None:
            record = answer.record(classes)
            cells = (defused(record[name]) for name in named)
            writer.writerow([*cells, *(answer.probabilities or [""] * len(classes))])

        yield add


def defused(cell: Any) -> Any:
    """A cell that a spreadsheet shows and never computes: names of files come from anywhere."""
    dangerous = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{cell}" if dangerous else cell


@contextmanager
def write_json(path: Path, classes: Sequence[str]) -> Iterator[Callable[[Answer], None]]:
    """The same as JSON, ``{"classes": [...], "results": [...]}``: one line an answer, and none is kept in memory."""
    with temporary(path) as part, part.open("w", encoding="utf-8") as file:
        file.write(f'{{"classes": {json.dumps(list(classes))},\n"results": [')
        separator = "\n"

        def add(answer: Answer) -> None:
            nonlocal separator
            file.write(separator + json.dumps(answer.record(classes)))
            separator = ",\n"

        yield add
        file.write("\n]}\n")


def visible(text: object) -> str:
    """A name of a file or class as it may be shown: nothing in it moves the cursor or breaks the line."""
    return "".join(sign if sign.isprintable() else "�" for sign in str(text))


def percent(probability: float | None) -> str:
    """A probability for people."""
    return "" if probability is None else f"{100 * probability:.1f} %"


class Rows:
    """The answers as lines of a table, each printed when it comes, so that a thousand need no memory."""

    def __init__(self, files: Sequence[Path], classes: Sequence[str], width: int | None, place: str | None) -> None:
        """``width`` of the screen, None if there is none; ``place`` heads the column of where files go, if any."""
        from rich.cells import cell_len

        longest = max(map(cell_len, map(visible, [*classes, NONE_OF_THESE])))
        self.label = longest if width is None else min(longest, LONGEST_LABEL)
        rest = 2 * self.label + 2 * len("100.0 %") + 4 * len("  ")
        self.file = max(cell_len(visible(file)) for file in [*files, "file"])
        if width is not None:
            self.file = min(self.file, max(width - rest, 20))
        self.place = place

    def head(self) -> "Text":
        """The line above the table."""
        return self._line("file", "label", "prob.", "runner-up", "prob.", self.place or "", styles=("bold",) * 6)

    def row(self, answer: Answer) -> "Text":
        """One line."""
        colour = "yellow" if answer.label == NONE_OF_THESE and answer.probability is None else "green"
        place = visible("" if answer.place is None else answer.place)
        first = percent(answer.probability) or "-"
        second = (answer.runner_up or "", percent(answer.runner_up_probability))
        styles = ("", colour, "", "dim", "dim", "")
        return self._line(str(answer.file), answer.label, first, *second, place, styles=styles)

    def _line(self, *cells: str, styles: Sequence[str]) -> "Text":
        from rich.text import Text

        file, label, first, runner_up, second, place = map(visible, cells)
        texts = (
            _cut_left(file, self.file),
            _cut_right(label, self.label),
            f"{first:>7}",
            _cut_right(runner_up, self.label),
            f"{second:>7}",
            place,
        )
        line = Text("  ").join(Text(text, style) for text, style in zip(texts, styles, strict=True))
        line.rstrip()
        return line


def _cut_left(text: str, width: int) -> str:
    """Of a path the end says most."""
    from rich.cells import cell_len, set_cell_size

    while cell_len(text) > width:
        text = "…" + text[2:]
    return set_cell_size(text, width)


def _cut_right(text: str, width: int) -> str:
    from rich.cells import cell_len, set_cell_size

    return set_cell_size(text, width) if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


@dataclass
class Tally:
    """What is said at the end: how many of each class, what went wrong, and how much of it is true."""

    classes: Sequence[str]
    reject: bool
    labels: Counter[str] = field(default_factory=Counter)
    strange: int = 0
    """Pictures that look like none of the classes, but got a label as `reject` is False."""
    unreadable: list[str] = field(default_factory=list)
    unmoved: list[str] = field(default_factory=list)
    placed: int = 0
    interrupted: bool = False
    truth: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often (folder, label) came, for pictures in folders named like a class."""

    @cached_property
    def _sorted(self) -> dict[str, str]:
        """The class of each folder that --move-to makes: not every name can be that of a folder."""
        from deepbdc.sorting import folder_names

        return dict(zip(folder_names(self.classes), self.classes, strict=True))

    def add(self, answer: Answer) -> None:
        """Count one more answer."""
        if not answer.readable:
            self.unreadable.append(answer.problem or str(answer.file))
            return
        self.labels[answer.label] += 1
        self.strange += answer.strange and not self.reject
        self.placed += answer.place is not None
        if answer.problem is not None:
            self.unmoved.append(answer.problem)
        folder = Path(os.path.abspath(answer.file)).parent.name
        true = folder if folder in self.classes else self._sorted.get(folder)
        if true is None and self.reject and folder == NONE_OF_THESE:
            true = NONE_OF_THESE
        if true is not None:
            self.truth[true, answer.label] += 1

    @property
    def classified(self) -> int:
        """Pictures that got an answer."""
        return self.labels.total()

    @property
    def seen(self) -> int:
        """Pictures with and without an answer."""
        return self.classified + len(self.unreadable)

    def print(self, console: "Console") -> None:
        """How many pictures each class has, and which could not be read."""
        from rich.table import Table
        from rich.text import Text

        table = Table("label", "pictures", title="Summary", title_justify="left")
        table.columns[1].justify = "right"
        known = [name for name in self.classes if len(self.classes) <= 20 or self.labels[name]]
        for name in [*known, *([NONE_OF_THESE] if self.reject and NONE_OF_THESE not in known else [])]:
            table.add_row(Text(visible(name)), f"{self.labels[name]:,}")
        if self.unreadable:
            table.add_row("not readable", f"{len(self.unreadable):,}", style="red")
        console.print()
        console.print(table)
        if self.strange:
            many = "picture looks" if self.strange == 1 else "pictures look"
            console.print(f"{self.strange:,} {many} like none of the classes: with --reject that is the answer.")
        _print_list(console, "Not readable, and left where they are", self.unreadable)
        _print_list(console, "Not put into a folder, and left where they are", self.unmoved)

    def print_truth(self, console: "Console", most: int = 5) -> None:
        """The accuracy on pictures that lie in folders named like classes, and the most frequent mistakes."""
        from rich.table import Table
        from rich.text import Text

        counted = self.truth.total()
        if not counted:
            say(console, "Accuracy: not known, as no picture lies in a folder that is named like a class.")
            return
        right = sum(number for (folder, label), number in self.truth.items() if folder == label)
        text = f"Accuracy: {100 * right / counted:.1f} % ({right:,} of {counted:,} pictures)"
        left_out = self.classified - counted
        say(console, text + (f", without {left_out:,} in folders not named like a class" if left_out else ""))
        mistakes = [(pair, number) for pair, number in self.truth.most_common() if pair[0] != pair[1]]
        if mistakes:
            table = Table("folder", "label", "pictures", title="Most frequent mistakes", title_justify="left")
            table.columns[2].justify = "right"
            for (folder, label), number in mistakes[:most]:
                table.add_row(Text(visible(folder)), Text(visible(label)), f"{number:,}")
            console.print(table)


def say(console: "Console", text: str) -> None:
    """A line as it is, of any length."""
    console.print(visible(text), markup=False, highlight=False, soft_wrap=True)


def _print_list(console: "Console", heading: str, lines: Sequence[str], most: int = 10) -> None:
    """Name what went wrong, but not a thousand times."""
    if lines:
        say(console, f"{heading} ({len(lines):,}):")
    for line in lines[:most]:
        say(console, f"  {line}")
    if len(lines) > most:
        say(console, f"  ... and {len(lines) - most:,} more (--csv and --json name all)")
