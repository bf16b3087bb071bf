"""Reports on many classified pictures: table rows, CSV and JSON files, counts for each class, and the accuracy."""

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
from deepbdc.errors import UserError
from deepbdc.own_images.rejection import USUAL_RATE, reject_rate

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from deepbdc.own_images.explanation import Prediction

NONE_OF_THESE = "none of these"
"""The same label as in `deepbdc.estimator`, repeated here because that module imports torch."""
LONGEST_LABEL = 24
"""Width of a label column on a terminal. Longer labels are truncated."""
SHORTEST_FILE = 20
"""Width of the file column on a narrow terminal, before the label columns are made smaller."""


@dataclass(frozen=True)
class ClassifiedPicture:
    """The result for one picture: its label and probabilities, or the reason why the file could not be read."""

    file: Path
    label: str = ""
    probability: float | None = None
    """Of `label`; None if the picture was rejected, so that its label is `NONE_OF_THESE`."""
    runner_up: str | None = None
    runner_up_probability: float | None = None
    probabilities: tuple[float, ...] = ()
    """Of all classes. Empty if the file could not be read."""
    familiarity: float | None = None
    """The share of the pictures of the known classes that look even less like the examples. Low: none of these."""
    looks_like_none: bool = False
    """Whether the picture looks like none of the classes, even if it got a label because rejection is off."""
    place: Path | None = None
    """The path to which the file was moved or copied, or would be in a dry run."""
    problem: str | None = None
    """Why the file could not be read, moved or copied."""

    @property
    def readable(self) -> bool:
        """Whether the file could be read and therefore has a label."""
        return bool(self.probabilities)

    def record(self, classes: Sequence[str]) -> dict[str, Any]:
        """The result as a JSON object. Its keys are the columns of the CSV file, too."""
        return {
            "file": str(self.file),
            "label": self.label or None,
            "probability": self.probability,
            "runner_up": self.runner_up,
            "runner_up_probability": self.runner_up_probability,
            "familiarity": self.familiarity,
            "looks_like_none": self.looks_like_none if self.readable else None,
            "place": None if self.place is None else str(self.place),
            "problem": self.problem,
            "probabilities": dict(zip(classes, self.probabilities, strict=True)) if self.readable else None,
        }


def from_prediction(file: Path, prediction: "Prediction", reject: bool | float | None) -> ClassifiedPicture:
    """Return the result for ``file``.

    If a share ``reject`` of the known pictures may be lost and the prediction is rejected, the label is `NONE_OF_THESE`
    without a probability, and the most likely class is the runner-up. It has no probability either: probabilities tell
    the classes apart, provided that the picture shows one of them.
    """
    rate = reject_rate(reject)
    none = prediction.rejected_at(USUAL_RATE if rate is None else rate)
    first = str(prediction.label), _rounded(prediction.probability)
    if rate is not None and none:
        result = ClassifiedPicture(file, NONE_OF_THESE, None, first[0])
    elif prediction.runner_up is None:
        result = ClassifiedPicture(file, *first)
    else:
        result = ClassifiedPicture(file, *first, str(prediction.runner_up), _rounded(prediction.runner_up_probability))
    probabilities = tuple(map(_rounded, prediction.probabilities))
    familiarity = _rounded(prediction.familiarity)
    return replace(result, probabilities=probabilities, familiarity=familiarity, looks_like_none=none)


def _rounded(probability: float) -> float:
    """Round to six significant digits, so that very small probabilities can still be told apart."""
    return float(f"{probability:.6g}")


@contextmanager
def write_csv(path: Path, classes: Sequence[str]) -> Iterator[Callable[[ClassifiedPicture], None]]:
    """Yield a function that writes a result as a row. The file appears at ``path`` if the block ends without error."""
    # File names that are not valid UTF-8 are written byte for byte as they are.
    with temporary(path) as part, part.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        csv.writer(file).writerow(csv_columns(classes))
        yield lambda result: csv.writer(file).writerow(_csv_row(result, classes))


@contextmanager
def append_csv(path: Path, classes: Sequence[str]) -> Iterator[Callable[[ClassifiedPicture], None]]:
    """Like `write_csv`, but add the rows to the end of the file, each at once.

    Raises:
        UserError: The file has other columns, so that it was not written with these classes.
    """
    columns = csv_columns(classes)
    if path.exists() and path.stat().st_size:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            if next(csv.reader(file), None) != columns:
                raise UserError(f"{path} has other columns than these results: give another name")
        columns = []
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", errors="surrogateescape", newline="") as file:

        def add(row: Sequence[Any]) -> None:
            csv.writer(file).writerow(row)
            file.flush()

        if columns:
            add(columns)
        yield lambda result: add(_csv_row(result, classes))


def csv_columns(classes: Sequence[str]) -> list[str]:
    """The headings of the columns."""
    return [*_named_columns(classes), *(f"probability of {name}" for name in classes)]


def _named_columns(classes: Sequence[str]) -> list[str]:
    return list(ClassifiedPicture(Path()).record(classes))[:-1]


def _csv_row(result: ClassifiedPicture, classes: Sequence[str]) -> list[Any]:
    record = result.record(classes)
    cells = (defused(record[name]) for name in _named_columns(classes))
    return [*cells, *(result.probabilities or [""] * len(classes))]


def defused(cell: Any) -> Any:
    """Put a quote before text that a spreadsheet would run as a formula: file names may come from anybody."""
    dangerous = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{cell}" if dangerous else cell


@contextmanager
def write_json(path: Path, classes: Sequence[str]) -> Iterator[Callable[[ClassifiedPicture], None]]:
    """Like `write_csv`, as JSON: ``{"classes": [...], "results": [...]}`` with one line for each result.

    Each result is written at once, so that none is kept in memory.
    """
    with temporary(path) as part, part.open("w", encoding="utf-8") as file:
        file.write(f'{{"classes": {json.dumps(list(classes))},\n"results": [')
        separator = "\n"

        def add(result: ClassifiedPicture) -> None:
            nonlocal separator
            file.write(separator + json.dumps(result.record(classes)))
            separator = ",\n"

        yield add
        file.write("\n]}\n")


def visible(text: object) -> str:
    """Replace control characters in the name of a file or class: they could move the cursor or break the line."""
    return "".join(character if character.isprintable() else "�" for character in str(text))


def percent(probability: float | None) -> str:
    """Format a probability as a percentage; None becomes an empty string."""
    return "" if probability is None else f"{100 * probability:.1f} %"


class Rows:
    """Formats results as rows of a table with fixed column widths, so that each can be printed at once."""

    def __init__(self, files: Sequence[Path], classes: Sequence[str], width: int | None, place: str | None) -> None:
        """Choose the column widths.

        Args:
            files: All files that get a row.
            classes: All labels.
            width: Width of the terminal; None if the output is not a terminal, so that nothing is truncated.
            place: Heading of the column with the new paths; None if files are not moved or copied.
        """
        from rich.cells import cell_len

        longest = max(map(cell_len, map(visible, [*classes, NONE_OF_THESE])))
        self.label, self.file = longest, max(cell_len(visible(file)) for file in [*files, "file"])
        self.place, self.runner_up, self.place_width = place, True, None if width is None else 0
        if width is not None:
            self._fit(width)

    def _fit(self, width: int) -> None:
        """Shrink the columns until a row fits the terminal. If files are sorted, the runner-up gives way to the place.

        The place of a file has its name in it, so that its column needs no more than that of the file.
        """
        numbers = len("  100.0 %")
        self.label = min(self.label, LONGEST_LABEL)
        if self.place is not None:
            self.runner_up = False
            rest = width - self.label - numbers - 2 * len("  ")
            self.file = min(self.file, max(rest // 2, 10))
            self.place_width = max(rest - self.file, 10)
            return
        if 2 * (self.label + numbers) + len("  ") + SHORTEST_FILE > width:
            self.label = max((width - SHORTEST_FILE - len("  ") - 2 * numbers) // 2, 8)
        self.file = min(self.file, max(width - 2 * (self.label + numbers) - 2 * len("  "), 10))

    def head(self) -> "Text":
        """The row of headings."""
        return self._line("file", "label", "prob.", "runner-up", "prob.", self.place or "", styles=("bold",) * 6)

    def row(self, result: ClassifiedPicture) -> "Text":
        """The row of one result."""
        colour = "yellow" if result.label == NONE_OF_THESE and result.probability is None else "green"
        place = visible("" if result.place is None else result.place)
        first = percent(result.probability) or "-"
        second = (result.runner_up or "", percent(result.runner_up_probability))
        styles = ("", colour, "", "dim", "dim", "")
        return self._line(str(result.file), result.label, first, *second, place, styles=styles)

    def _line(self, *cells: str, styles: Sequence[str]) -> "Text":
        from rich.text import Text

        file, label, first, runner_up, second, place = map(visible, cells)
        texts = (
            _cut_left(file, self.file),
            _cut_right(label, self.label),
            f"{first:>7}",
            _cut_right(runner_up, self.label) if self.runner_up else None,
            f"{second:>7}" if self.runner_up else None,
            _cut_left(place, self.place_width) if self.place_width else place,
        )
        shown = [Text(text, style) for text, style in zip(texts, styles, strict=True) if text is not None]
        line = Text("  ").join(shown)
        line.rstrip()
        return line


def _cut_left(text: str, width: int) -> str:
    """Truncate a path at its start, because its end says more, and pad it to ``width``."""
    from rich.cells import cell_len, set_cell_size

    while cell_len(text) > width:
        text = "…" + text[2:]
    return set_cell_size(text, width)


def _cut_right(text: str, width: int) -> str:
    """Truncate text at its end and pad it to ``width``."""
    from rich.cells import cell_len, set_cell_size

    return set_cell_size(text, width) if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


@dataclass
class Tally:
    """Counts for the summary: pictures of each class, problems, and correct labels where the folder tells the class."""

    classes: Sequence[str]
    reject: bool | float | None
    labels: Counter[str] = field(default_factory=Counter)
    looks_like_none: int = 0
    """Number of pictures that look like none of the classes but got a label, because `reject` is False."""
    unreadable: list[str] = field(default_factory=list)
    """A message for each file that could not be read."""
    unmoved: list[str] = field(default_factory=list)
    """A message for each file that could not be moved or copied."""
    placed: int = 0
    """Number of files that were moved or copied."""
    interrupted: bool = False
    truth: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Counts of (class of the folder, label), for pictures in folders that are named after a class."""

    @cached_property
    def _sorted(self) -> dict[str, str]:
        """The class of each folder that --move-to makes. Not every class name is a valid folder name."""
        from deepbdc.sorting import folder_names

        return dict(zip(folder_names(self.classes), self.classes, strict=True))

    def add(self, result: ClassifiedPicture) -> None:
        """Count one more result."""
        if not result.readable:
            self.unreadable.append(result.problem or str(result.file))
            return
        self.labels[result.label] += 1
        self.looks_like_none += result.looks_like_none and not self.reject
        self.placed += result.place is not None
        if result.problem is not None:
            self.unmoved.append(result.problem)
        folder = Path(os.path.abspath(result.file)).parent.name
        true = folder if folder in self.classes else self._sorted.get(folder)
        if true is None and self.reject and folder == NONE_OF_THESE:
            true = NONE_OF_THESE
        if true is not None:
            self.truth[true, result.label] += 1

    @property
    def classified(self) -> int:
        """Number of pictures that got a label."""
        return self.labels.total()

    @property
    def seen(self) -> int:
        """Number of pictures so far, including those that could not be read."""
        return self.classified + len(self.unreadable)

    def print(self, console: "Console") -> None:
        """Print the number of pictures of each class, and name the files that could not be read or moved."""
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
        if self.looks_like_none:
            many = "picture looks" if self.looks_like_none == 1 else "pictures look"
            which = "it" if self.looks_like_none == 1 else "them"
            say(console, f"{self.looks_like_none:,} {many} like none of the classes. --reject labels {which} so.")
        print_list(console, "Could not be read; left where they are", self.unreadable)
        print_list(console, "Could not be moved or copied; left where they are", self.unmoved)

    def print_truth(self, console: "Console", most: int = 5) -> None:
        """Print the accuracy on pictures in folders that are named after a class, and the most frequent mistakes."""
        from rich.table import Table
        from rich.text import Text

        counted = self.truth.total()
        if not counted:
            say(console, "Accuracy: unknown, because no picture is in a folder that is named after a class.")
            return
        right = sum(number for (folder, label), number in self.truth.items() if folder == label)
        text = f"Accuracy: {100 * right / counted:.1f} % ({right:,} of {counted:,} pictures)"
        left_out = self.classified - counted
        say(console, text + (f", without {left_out:,} in other folders" if left_out else ""))
        mistakes = [(pair, number) for pair, number in self.truth.most_common() if pair[0] != pair[1]]
        if mistakes:
            table = Table("folder", "label", "pictures", title="Most frequent mistakes", title_justify="left")
            table.columns[2].justify = "right"
            for (folder, label), number in mistakes[:most]:
                table.add_row(Text(visible(folder)), Text(visible(label)), f"{number:,}")
            console.print(table)


def say(console: "Console", text: str) -> None:
    """Print text without markup or colour: wrapped between words on a terminal, otherwise as one line."""
    console.print(visible(text), markup=False, highlight=False, soft_wrap=not console.is_terminal)


def print_list(console: "Console", heading: str, lines: Sequence[str], most: int = 10) -> None:
    """Print a heading with the number of lines, and the first ``most`` of them."""
    if lines:
        say(console, f"{heading} ({len(lines):,}):")
    for line in lines[:most]:
        say(console, f"  {line}")
    if len(lines) > most:
        say(console, f"  ... and {len(lines) - most:,} more (--csv and --json list all)")
