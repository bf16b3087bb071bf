"""All methods as one table: what each does, what it needs, and which recipes train it."""

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepbdc.backbones import create_backbone
from deepbdc.methods import Method, create_method
from deepbdc.methods.base import methods
from deepbdc.recipes import list_recipes, read_recipe
from deepbdc.report.evaluation import ASSUMES_BALANCE, TRANSDUCTIVE, mark
from deepbdc.report.published import Published, on_miniimagenet

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class MethodRow:
    """What the table says of a method."""

    name: str
    title: str
    """The name as its paper writes it."""
    idea: str
    """One line."""
    paper: str
    representation: str
    classifier: str
    stages: tuple[str, ...]
    transductive: bool
    assumes_balanced_queries: bool
    adapts_network: bool
    """Whether the network itself sees the task, so that the representation of an image is not the same in all tasks."""
    recipes: tuple[str, ...]
    published: Published | None
    """Its accuracy on miniImageNet."""

    @property
    def data_sets(self) -> tuple[str, ...]:
        """The data sets for which there are recipes."""
        return tuple(dict.fromkeys(recipe.partition("/")[0] for recipe in self.recipes))


def method_rows() -> list[MethodRow]:
    """One row for each registered method, by name."""
    recipes: dict[str, list[str]] = {}
    for recipe in list_recipes():
        recipes.setdefault(read_recipe(recipe)["method"], []).append(recipe)
    return [_row(name, tuple(recipes.get(name, ()))) for name in methods.names()]


def _row(name: str, recipes: tuple[str, ...]) -> MethodRow:
    method = create_method(name, create_backbone("conv4", width=0.125))
    kind = type(method)
    title, _, idea = _first_line(inspect.getmodule(kind)).partition(": ")
    return MethodRow(
        name=name,
        title=title,
        idea=idea.rstrip("."),
        paper=_citation(kind),
        representation=_words(type(method.embedding.pool).__name__),
        classifier=_words(type(method.classifier).__name__.removesuffix("Classifier")),
        stages=tuple(method.objectives),
        transductive=method.transductive,
        assumes_balanced_queries=method.assumes_balanced_queries,
        adapts_network=kind.source is not Method.source,
        recipes=recipes,
        published=on_miniimagenet(name),
    )


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _citation(kind: type) -> str:
    """The first paragraph of the docstring."""
    return " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split()).rstrip(".")


def _words(name: str) -> str:
    """A class name in words.

    >>> _words("CovarianceRootPool"), _words("BDCPool"), _words("MulticlassSVM"), _words("KeepMap")
    ('covariance root', 'BDC', 'multiclass SVM', 'feature map')
    """
    if name == "KeepMap":
        return "feature map"
    if name == "Flatten":
        return "flattened map"
    parts = re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", name.removesuffix("Pool"))
    return " ".join(part if part.isupper() else part.lower() for part in parts)


_LETTERS = {
    "glyphs": "g",
    "cifar_fs": "c",
    "miniimagenet": "m",
    "miniimagenet_cpu": "m",
    "tieredimagenet": "t",
    "cub": "u",
    "cub_cpu": "u",
}


def table(rows: Sequence[MethodRow]) -> "Table":
    """The table for a terminal."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="bold", caption_justify="left")
    shown.add_column("method", no_wrap=True)
    shown.add_column("idea", ratio=1)
    shown.add_column("trained by", no_wrap=True)
    shown.add_column("recipes", no_wrap=True)
    for row in rows:
        letters = dict.fromkeys(_LETTERS.get(data, "x") for data in row.data_sets)
        marks = mark(row.transductive, row.assumes_balanced_queries) + (" §" if row.adapts_network else "")
        shown.add_row(row.name + marks, row.idea, ", ".join(row.stages), "".join(sorted(letters, key="gcmtux".index)))
    shown.caption = (
        f"{TRANSDUCTIVE}\n"
        f"{ASSUMES_BALANCE}\n"
        "§ = the network itself sees the task: slower, because features cannot be computed once for all tasks\n"
        "recipes: g glyphs, c cifar_fs, m miniimagenet, t tieredimagenet, u cub, x miniimagenet to other domains"
    )
    return shown


def description(name: str) -> str:
    """The docstring of a method, with each paragraph and each option on one line, to be wrapped by a terminal."""
    text = inspect.getdoc(methods.find(name)) or ""
    prose, _, options = text.partition("\nArgs:\n")
    paragraphs = [" ".join(paragraph.split()) for paragraph in prose.split("\n\n")]
    entries: list[str] = []
    for line in options.splitlines():
        if line.startswith("     "):  # the continuation of an entry
            entries[-1] += f" {line.strip()}"
        elif line.strip():
            entries.append(f"  {line.strip()}")
    own = [entry for entry in entries if not entry.startswith(("  backbone:", "  shot:", "  preprocessing:"))]
    listed = ["Options (in a recipe: options: {NAME: VALUE}):", *own] if own else []
    return "\n\n".join(part for part in (*paragraphs, "\n".join(listed)) if part).replace("``", "")
