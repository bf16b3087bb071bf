"""``deepbdc methods``: what there is to train and compare."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from deepbdc.report.methods import MethodRow


def list_methods(name: Annotated[str | None, Parameter(metavar="METHOD")] = None, /) -> None:
    """List all methods with one line each, or explain one.

    For example:

        deepbdc methods
        deepbdc methods dn4

    The second command prints the paper, the formula, what differs from the original, the options that a recipe can
    set, the recipes, and the accuracy that was published for miniImageNet.

    Args:
        name: The method to explain (default: list all).
    """
    from rich.console import Console

    from deepbdc.report.methods import description, method_rows, table

    console = Console()
    rows = {row.name: row for row in method_rows()}
    if name is None:
        console.print(table(list(rows.values())))
        console.print(
            "\n'deepbdc methods METHOD' explains one; 'deepbdc train glyphs/METHOD' trains it on drawn letters."
        )
        return
    text = description(name)
    row = rows[name]
    facts = {
        "Representation": row.representation,
        "Classifier": row.classifier,
        "Trained by": ", ".join(row.stages),
        "Transductive": _transductive(row),
        "Recipes": ", ".join(row.recipes) or "none",
    }
    if row.published is not None:
        found = row.published
        place = f"{found.backbone}, {found.source}{', its own rerun' if found.rerun else ''}"
        facts["Published for miniImageNet"] = f"{found.as_text()} with 1 / 5 shots ({place})"
    console.print(f"{row.title}: {row.idea}\n\n{text}\n", markup=False, highlight=False)
    for key, value in facts.items():
        console.print(f"{key}: {value}", markup=False, highlight=False)


def _transductive(row: "MethodRow") -> str:
    """Whether a method with its default options is transductive, in words."""
    if not row.transductive:
        return "no"
    return "yes" + ", and it assumes that all classes have equally many queries" * row.assumes_balanced_queries
