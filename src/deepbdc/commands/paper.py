"""``deepbdc paper``: reproduce tables and figures of the paper."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from deepbdc.commands.options import OUTPUT
from deepbdc.errors import UserError


def paper(
    figure: Literal["relations"],
    /,
    *,
    output: Annotated[Path, Parameter(alias="-o", metavar="FILE", group=OUTPUT)] = Path("relations.png"),
    points: Annotated[int, Parameter(metavar="COUNT")] = 1500,
    seed: Annotated[int, Parameter(metavar="NUMBER")] = 0,
) -> None:
    """Reproduce a table or figure of the paper.

    For example:

        deepbdc paper relations -o relations.pdf

    - relations: supplement S4. Seven non-linear and seven linear relations between two variables, as a picture
      and a table. Classical correlation misses the non-linear ones, Brownian distance correlation does not.

    Args:
        figure: Which table or figure to reproduce.
        output: The picture to write, as .png, .pdf or .svg.
        points: Number of points in each sample, 10 to 5000.
        seed: Seed of the random samples.
    """
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    from deepbdc.report import relations

    if not 10 <= points <= 5000 or seed < 0:
        raise UserError(f"--points must be 10 to 5000 and --seed at least 0, got {points} and {seed}")
    if output.suffix not in (".png", ".pdf", ".svg"):
        raise UserError(f"--output must end in .png, .pdf or .svg, got {str(output)!r}")
    output.parent.mkdir(parents=True, exist_ok=True)
    count = len(relations.NONLINEAR) + len(relations.LINEAR)
    console = Console()
    steps = relations.relations(points=points, seed=seed)
    found = list(track(steps, "Measuring", total=count, console=console, transient=True))
    table = Table(title="Correlation and Brownian distance correlation (S4)")
    for heading in ("relation", "Corr", "BDCorr", "shuffled: mean, largest", "p"):
        table.add_column(heading, justify="left" if heading == "relation" else "right")
    for relation in found:
        spread = f"{relation.shuffled.mean():.3f}, {relation.shuffled.max():.3f}"
        row = (
            relation.name,
            f"{relation.corr:+.3f}",
            f"{relation.bdcorr:.3f}",
            spread,
            f"{relation.p_value:.3f}",
        )
        table.add_row(*row, end_section=relation is found[len(relations.NONLINEAR) - 1])
    console.print(table)
    console.print(
        f"shuffled: BDCorr of {len(found[0].shuffled)} random pairings of the same values; "
        "p: fraction of the pairings with a BDCorr at least as high (permutation test)."
    )
    relations.draw(found, output)
    console.print(f"Picture: {output}", markup=False)
