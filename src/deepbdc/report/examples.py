"""The report of a check of examples, as tables for a person and as JSON for programs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deepbdc._words import counted
from deepbdc.report.classification import percent, say, visible

if TYPE_CHECKING:
    from rich.console import Console

    from deepbdc.own_images.checking import ExampleReport, Twins

MOST = 20
"""The most rows of a table on the screen; the JSON file has all."""


@dataclass(frozen=True)
class Section:
    """One kind of finding: a table with what to do about it."""

    key: str
    title: str
    advice: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def sections(report: "ExampleReport", names: Sequence[str]) -> Iterator[Section]:
    """The findings of each kind, without empty kinds. ``names`` are the names of the examples."""
    every = (
        Section(
            "wrong_labels",
            "Labels that are probably wrong",
            "Look at these first. Move a wrong one into the right folder.",
            ("example", "label", "looks like", "sure"),
            [
                (names[one.index], str(one.label), str(one.suggestion), percent(one.sureness))
                for one in report.wrong_labels
            ],
        ),
        Section(
            "twins",
            "Pictures that occur twice",
            "Copies teach nothing new, and make the estimate of the accuracy too good: keep one of each. Of two with "
            "different labels, one is wrong.",
            ("example", "the same as", "how"),
            [(names[pair.first], names[pair.second], _how(pair)) for pair in report.twins],
        ),
        Section(
            "outliers",
            "Pictures unlike the rest of their class",
            "Is the subject large enough, and is it the right one? Unusual but right pictures are worth keeping.",
            ("example", "label", "similarity", "usual"),
            [
                (names[one.index], str(one.label), f"{one.similarity:.2f}", f"{one.usual:.2f}")
                for one in report.outliers
            ],
        ),
        Section(
            "alike",
            "Classes that are hard to tell apart",
            "Add examples that show the difference, or join the two classes.",
            ("class", "and", "confused"),
            [(str(one.first), str(one.second), f"{one.confused} of {one.examples}") for one in report.alike],
        ),
        Section(
            "few",
            "Classes with very few examples",
            "Five examples are much better than one; with fewer than three, a wrong label cannot be found.",
            ("class", "examples"),
            [(str(one.label), str(one.examples)) for one in report.few],
        ),
    )
    return (section for section in every if section.rows)


def _how(pair: "Twins") -> str:
    """How alike two pictures are, and whether their labels contradict each other."""
    how = "identical" if pair.identical else f"{pair.similarity:.2f} alike"
    return how if pair.same_label else f"{how}, TWO LABELS"


def print_report(console: "Console", report: "ExampleReport", names: Sequence[str], broken: Sequence[str]) -> None:
    """Print a table for each kind of finding, with what to do about it, and a summary."""
    from rich.table import Table
    from rich.text import Text

    if broken:
        say(console, f"Cannot be read ({len(broken):,}): mend or remove these files.")
        for line in broken:
            say(console, f"  {line}")
    for section in sections(report, names):
        table = Table(*section.columns, title=section.title, title_justify="left")
        table.columns[-1].no_wrap = True
        for row in section.rows[:MOST]:
            table.add_row(*(Text(visible(cell), overflow="fold") for cell in row))
        console.print()
        console.print(table)
        if len(section.rows) > MOST:
            say(console, f"... and {len(section.rows) - MOST:,} more (--json lists all)")
        say(console, section.advice)
    console.print()
    say(console, summary(report, len(names), len(broken)))


def summary(report: "ExampleReport", examples: int, broken: int) -> str:
    """One sentence with all numbers."""
    checked = f"{counted(examples, 'example')} of {counted(len(report.classes), 'class', 'classes')} checked"
    found = {
        "unreadable": broken,
        "probably wrong": len(report.wrong_labels),
        "twice": len(report.twins),
        "unlike their class": len(report.outliers),
    }
    parts = [f"{number:,} {what}" for what, number in found.items() if number]
    if report.alike:
        parts.append(f"{counted(len(report.alike), 'pair')} of classes hard to tell apart")
    if report.few:
        parts.append(f"{counted(len(report.few), 'class', 'classes')} with very few examples")
    return f"{checked}: {', '.join(parts) if parts else 'nothing to complain about'}."


def as_json(report: "ExampleReport", names: Sequence[str], broken: Sequence[str]) -> dict[str, Any]:
    """All findings as an object for programs."""
    return {
        "examples": len(names),
        "classes": [str(name) for name in report.classes],
        "broken": list(broken),
        "wrong_labels": [
            {
                "example": names[one.index],
                "label": str(one.label),
                "suggestion": str(one.suggestion),
                "sureness": round(one.sureness, 6),
            }
            for one in report.wrong_labels
        ],
        "twins": [
            {
                "first": names[pair.first],
                "second": names[pair.second],
                "identical": pair.identical,
                "similarity": round(pair.similarity, 6),
                "same_label": pair.same_label,
            }
            for pair in report.twins
        ],
        "outliers": [
            {
                "example": names[one.index],
                "label": str(one.label),
                "similarity": round(one.similarity, 6),
                "usual": round(one.usual, 6),
            }
            for one in report.outliers
        ],
        "alike": [
            {"first": str(one.first), "second": str(one.second), "confused": one.confused, "examples": one.examples}
            for one in report.alike
        ],
        "few": [{"label": str(one.label), "examples": one.examples} for one in report.few],
    }
