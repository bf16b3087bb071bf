"""The table of all methods, for docs/methods.md.

    python docs/methods.py            print it
    python docs/methods.py --write    write it into docs/methods.md

The rows come from the registry of methods and their docstrings, our numbers from the results kept in the
gallery, the published ones from the paper's tables. A test checks that the page is up to date.
"""

import json
from pathlib import Path
from typing import Any

from page_table import PageTable

from deepbdc.report.methods import MethodRow, method_rows

PAGE = PageTable("methods", Path(__file__).parent / "methods.md")
GALLERY = Path(__file__).parent.parent / "gallery"
HEADER = (
    "method",
    "idea and paper",
    "representation",
    "classifier",
    "trained by",
    "transductive",
    "recipes for",
    "ours: glyphs",
    "ours: CIFAR-FS, Conv4-64",
    "published: miniImageNet",
)


def accuracy(results: list[dict[str, Any]]) -> str:
    """The mean accuracies of a kept result, with their 95 % intervals, by shots."""
    ordered = sorted(results, key=lambda result: result["shot"])
    return " / ".join(f"{result['mean']:.2f} ± {result['ci95']:.2f}" for result in ordered)


def kept(method: str, data: str) -> str:
    """Our numbers for a method on a data set with Conv4, or a dash."""
    file = GALLERY / data / "conv4" / f"{method}.json"
    return accuracy(json.loads(file.read_text(encoding="utf-8"))["results"]) if file.is_file() else "–"


def cells(row: MethodRow) -> list[str]:
    """One line of the table."""
    published = "–"
    if row.published is not None:
        mark = "ᴿ" if row.published.rerun else ""
        origin = "" if row.published.source == "DeepBDC paper" else f"; {row.published.source}"
        published = f"*{row.published.as_text()}*{mark} ({row.published.backbone}{origin})"
    return [
        f"`{row.name}`",
        f"**{row.title}**: {row.idea}. {row.paper}",
        row.representation,
        row.classifier + (" (the network adapts to the task)" if row.adapts_network else ""),
        ", ".join(row.stages),
        "**yes**" + ", assumes balanced queries" * row.assumes_balanced_queries if row.transductive else "no",
        ", ".join(row.data_sets) or "–",
        kept(row.name, "glyphs"),
        kept(row.name, "cifar_fs"),
        published,
    ]


def page_table() -> str:
    """The table as Markdown."""
    lines = [HEADER, ["---"] * len(HEADER), *(cells(row) for row in method_rows())]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    PAGE.main(__doc__, page_table)
