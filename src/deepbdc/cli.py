"""The command line: it parses, calls the library, and prints."""

import inspect
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from typing import Literal


def paper(figure: Literal["relations"], output: str = "relations.png", points: int = 1000, seed: int = 0) -> None:
    """Make a table or figure of the paper again.

    relations   Supplement S4: seven non-linear and seven linear relations between two variables,
                as a picture and a table. Classical correlation misses the non-linear ones,
                Brownian distance correlation does not.

    Args:
        figure: Which one.
        output: The picture to write.
        points: Points in each sample.
        seed: Of the random samples.
    """
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    from deepbdc.report import relations

    if points < 10:
        raise SystemExit(f"deepbdc paper: --points must be at least 10, got {points}.")
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
        f"shuffled: the BDCorr of {len(found[0].shuffled)} random pairings of the same values; "
        "p: the share of pairings with a BDCorr as high (permutation test)."
    )
    relations.draw(found, Path(output))
    console.print(f"Picture: {output}")


COMMANDS: dict[str, Callable[..., None]] = {"paper": paper}


def main(arguments: list[str] | None = None) -> None:
    """The ``deepbdc`` command: its sub-commands are the functions of this module, their options its arguments."""
    from jsonargparse import ArgumentParser, DefaultHelpFormatter

    from deepbdc import __version__

    class Help(RawDescriptionHelpFormatter, DefaultHelpFormatter):
        """Keeps the lines of descriptions as they are."""

    parser = ArgumentParser(
        prog="deepbdc",
        version=__version__,
        description="Few-shot image classification with Deep Brownian Distance Covariance.",
        formatter_class=Help,
    )
    subcommands = parser.add_subcommands(dest="command", title="commands", metavar="COMMAND")
    for name, function in COMMANDS.items():
        text = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:")[0]
        command = ArgumentParser(description=text, formatter_class=Help)
        command.add_function_arguments(function, as_group=False, as_positional=True)
        subcommands.add_subcommand(name, command, help=text.partition("\n")[0])
    parsed = parser.parse_args(arguments)
    COMMANDS[parsed.command](**parsed[parsed.command].as_dict())
