"""The command line: it parses, calls the library, and prints."""

import inspect
import sys
import warnings
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console

    from deepbdc.data.check import Report


def paper(figure: Literal["relations"], output: str = "relations.png", points: int = 1500, seed: int = 0) -> None:
    """Make a table or figure of the paper again.

    relations   Supplement S4: seven non-linear and seven linear relations between two variables,
                as a picture and a table. Classical correlation misses the non-linear ones,
                Brownian distance correlation does not.

    Args:
        figure: Which one.
        output: The picture to write, as .png, .pdf or .svg.
        points: Points in each sample, 10 to 5000.
        seed: Of the random samples.
    """
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    from deepbdc.report import relations

    with _errors_in_words("paper"):
        if not 10 <= points <= 5000 or seed < 0:
            raise ValueError(f"--points must be 10 to 5000 and --seed at least 0, got {points} and {seed}")
        if Path(output).suffix not in (".png", ".pdf", ".svg"):
            raise ValueError(f"--output must end in .png, .pdf or .svg, got {output!r}")
        Path(output).parent.mkdir(parents=True, exist_ok=True)
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
    with _errors_in_words("paper"):
        relations.draw(found, Path(output))
    console.print(f"Picture: {output}", markup=False)


def evaluate_model(
    model: str,
    data: str = "glyphs",
    shot: list[int] | None = None,
    classifier: str = "prototype",
    pool: Literal["bdc", "average"] = "bdc",
    reduce_to: int | None = None,
    width: float = 1.0,
    removed_downsamplings: int | None = None,
    size: int | None = None,
    split: Literal["train", "val", "test"] = "test",
    way: int = 5,
    query: int = 15,
    episodes: int = 2000,
    seed: int = 0,
    cache: str | None = None,
    root: str | None = None,
    output: str | None = None,
    skip_bad: bool = False,
) -> None:
    """Evaluate a few-shot model on episodes of a data set.

    Every image is embedded once; then thousands of episodes are scored, the same ones for every
    model with the same --seed. For example:

        deepbdc evaluate conv4 --data glyphs --size 32 --shot 1 --shot 5 --classifier logistic

    Args:
        model: 'pixels' for raw pixels, or a backbone with random weights (conv4, resnet12, ..., timm/NAME).
        data: A name of 'deepbdc data list', a folder train|val|test/CLASS/IMAGE, or an .npz file.
        shot: Labelled images a class; give it several times for several columns (default: 1 and 5).
        classifier: How queries are classified: prototype, logistic, svm or softmax.
        pool: How feature maps become representations.
        reduce_to: Channels before BDC pooling (default: those of the backbone).
        width: Multiplier of the backbone's channels.
        removed_downsamplings: Of the backbone, from its end; fewer pixels are lost (default: as the backbone says).
        size: Side of the images given to the model, in pixels (default: the backbone's own; 32 for pixels).
        split: Which classes.
        way: Classes an episode.
        query: Query images a class.
        episodes: How many episodes.
        seed: Of the episodes, and of random weights.
        cache: A folder for features, so that a second evaluation of the same model starts at once.
        root: Where prepared benchmarks lie (default: $DEEPBDC_DATA, else ~/.cache/deepbdc).
        output: Also write the results as JSON to this file.
        skip_bad: Leave out files that are no readable images, with a note, instead of stopping at the first.
    """
    from rich.console import Console

    from deepbdc.report.evaluation import EvaluationRequest, run, table

    console = Console()
    with _errors_in_words("evaluate"):
        request = EvaluationRequest(
            model=model,
            pool=pool,
            classifier=classifier,
            data=data,
            split=split,
            shots=tuple(shot or (1, 5)),
            way=way,
            query=query,
            episodes=episodes,
            seed=seed,
            reduce_to=reduce_to,
            width=width,
            removed_downsamplings=removed_downsamplings,
            size=size,
        )
        results = run(request, cache=cache, root=root, output=output, skip_bad=skip_bad, progress=console.is_terminal)
    console.print(table(request, results))
    if output is not None:
        console.print(f"Results: {output}", markup=False)


def data_list(root: str | None = None) -> None:
    """Say of each benchmark what it is, its split, its licence, where to get it, and whether it is here.

    Args:
        root: Where prepared benchmarks lie (default: $DEEPBDC_DATA, else ~/.cache/deepbdc).
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from deepbdc.data import benchmarks

    console = Console()
    table = Table(title=f"Benchmarks in {benchmarks.data_root(root)}: classes (images)", box=box.SIMPLE, pad_edge=False)
    for heading in ("name", *benchmarks.SPLITS, "here"):
        table.add_column(heading, justify="left" if heading in ("name", "here") else "right", no_wrap=True)
    for name in benchmarks.names():
        sizes = [_size(benchmarks.sources(name, split)) for split in benchmarks.SPLITS]
        table.add_row(name, *sizes, "[green]yes[/]" if benchmarks.is_prepared(name, root) else "no")
    console.print(table)
    for name in benchmarks.names():
        console.print(f"\n[bold]{name}[/]")
        details = Table.grid(padding=(0, 1))
        for heading, text in _describe(name).items():
            details.add_row(f"  {heading}", Text(text))
        console.print(details)
    console.print(
        "\nPrepare one that is not here: deepbdc data prepare NAME --source ARCHIVE_OR_FOLDER", soft_wrap=True
    )


def _size(parts: list[tuple[str, str]]) -> str:
    """Classes and images of some splits taken together."""
    from deepbdc.data import benchmarks

    known = [(benchmarks.get(name), split) for name, split in parts if benchmarks.get(name).classes]
    classes = sum(len(benchmark.classes[split]) for benchmark, split in known)
    images = sum(benchmark.images[split] for benchmark, split in known)
    return f"{classes:,} ({images:,})" if known else ""


def _describe(name: str) -> dict[str, str]:
    """What there is to say of a benchmark."""
    from deepbdc.data import benchmarks

    first, *second = benchmarks.components(name)
    if second:
        return {"what": f"Cross-domain: train on all classes of {first}; val and test of {second[0]}."}
    benchmark = benchmarks.get(name)
    archives = "\nor ".join(" + ".join(archive.name for archive in group) for group in benchmark.archives)
    lines = {
        "what": benchmark.title,
        "split": benchmark.citation,
        "licence": benchmark.licence,
        "archive": archives,
        "from": benchmark.home,
    }
    return {heading: text for heading, text in lines.items() if text}


def data_prepare(name: str, source: str | None = None, root: str | None = None) -> None:
    """Turn the official archive of a benchmark into the standard layout.

    Safe to interrupt: the same command goes on where it stopped.

    Args:
        name: The benchmark, like cub; 'deepbdc data list' shows all.
        source: The official archive, or the folder it unpacks to, or the folder that holds all of its archives.
            For miniimagenet and tieredimagenet: ILSVRC2012_img_train.tar, or the folder with one folder per class.
        root: Where prepared benchmarks lie (default: $DEEPBDC_DATA, else ~/.cache/deepbdc).
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from deepbdc.data import benchmarks
    from deepbdc.data.prepare import prepare
    from deepbdc.data.preparers.source import how_to_get

    with _errors_in_words("data prepare"):
        benchmark = benchmarks.get(name)
        target = benchmarks.prepared_path(name, root)
        if source is None:
            raise ValueError(f"--source is missing. {how_to_get(benchmark)} Licence: {benchmark.licence}.")
        console = Console()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(f"Preparing {name}", total=sum(benchmark.images.values()))
            prepare(name, source, root, lambda done, total: bar.update(task, completed=done, total=total))
    console.print(f"{name} is complete in {target}", markup=False)


def data_check(path: str) -> None:
    """Look at every image of a folder or .npz file, and say what is wrong and what to do about it.

    The exit code is 1 when something is wrong.

    Args:
        path: A folder train|val|test/CLASS/IMAGE or CLASS/IMAGE, an .npz file, or the name of a prepared benchmark.
    """
    from rich.console import Console
    from rich.progress import Progress

    from deepbdc.data import benchmarks
    from deepbdc.data.check import check

    console = Console()
    with _errors_in_words("data check"):
        named = not Path(path).exists() and path in benchmarks.names()
        if named and not benchmarks.is_prepared(path):
            raise benchmarks.NotPrepared(path)
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task("Checking", total=None)
            place = benchmarks.prepared_path(path) if named else Path(path)
            report = check(place, lambda done, total: bar.update(task, completed=done, total=total))
    _print_report(report, console)
    if not report.ok:
        raise SystemExit(1)


def _print_report(report: "Report", console: "Console", most: int = 10) -> None:
    from rich.table import Table

    table = Table(title=f"{report.path}" + (f" ({report.benchmark})" if report.benchmark else ""))
    for heading in ("split", "classes", "images", "per class"):
        table.add_column(heading, justify="left" if heading == "split" else "right")
    for split, counts in report.counts.items():
        sizes = list(counts.values()) or [0]
        spread = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
        table.add_row(split, str(len(counts)), f"{sum(sizes):,}", spread)
    console.print(table)
    for problem in report.problems:
        console.print(f"{'Problem' if problem.serious else 'Note'}: {problem.text}.", markup=False)
        for item in problem.items[:most]:
            console.print(f"  {item}", markup=False, soft_wrap=True)
        if len(problem.items) > most:
            console.print(f"  ... and {len(problem.items) - most} more")
        console.print(f"  What to do: {problem.remedy}", markup=False)
    if report.ok:
        console.print("Nothing is wrong.")


@contextmanager
def _errors_in_words(command: str) -> Iterator[None]:
    """A mistake of the user ends with a sentence, not with a traceback."""
    try:
        yield
    except (ValueError, TypeError, OSError, MemoryError, ModuleNotFoundError) as error:
        raise SystemExit(f"deepbdc {command}: {error}") from error
    except KeyboardInterrupt:
        raise SystemExit(f"deepbdc {command}: interrupted. What was done is kept.") from None


Command = Callable[..., None]

COMMANDS: dict[str, Command | dict[str, Command]] = {
    "evaluate": evaluate_model,
    "paper": paper,
    "data": {"list": data_list, "prepare": data_prepare, "check": data_check},
}
GROUPS = {"data": "List, prepare and check the data sets."}


def main(arguments: list[str] | None = None) -> None:
    """The ``deepbdc`` command: its sub-commands are the functions of this module, their options its arguments."""
    from jsonargparse import ArgumentParser

    from deepbdc import __version__

    warnings.formatwarning = lambda message, *_, **__: f"Note: {message}\n"  # for people, without the line of code
    parser = ArgumentParser(
        prog="deepbdc",
        version=__version__,
        description="Few-shot image classification with Deep Brownian Distance Covariance.",
        formatter_class=_help_formatter(),
    )
    _add_commands(parser, COMMANDS)
    chosen: Command | dict[str, Command] = dict(COMMANDS)  # type: ignore[arg-type]
    parsed: Any = parser.parse_args(_repeated(sys.argv[1:] if arguments is None else arguments))
    while isinstance(chosen, dict):
        name = parsed.command
        chosen, parsed = chosen[name], parsed[name]
    chosen(**parsed.as_dict())


def _repeated(arguments: list[str]) -> list[str]:
    """Let ``--shot 1 --shot 5`` mean both: the parser's own way to say it is ``--shot+``."""
    return ["--shot+" + a.removeprefix("--shot") if a.partition("=")[0] == "--shot" else a for a in arguments]


def _add_commands(parser: Any, commands: Mapping[str, Command | dict[str, Command]]) -> None:
    """Give ``parser`` a sub-command for each function, and one with its own sub-commands for each group."""
    from jsonargparse import ArgumentParser

    subcommands = parser.add_subcommands(dest="command", title="commands", metavar="COMMAND")
    for name, entry in commands.items():
        text = (
            GROUPS[name] if isinstance(entry, dict) else inspect.cleandoc(entry.__doc__ or "").partition("\nArgs:")[0]
        )
        command = ArgumentParser(description=text, formatter_class=_help_formatter())
        if not isinstance(entry, dict):
            command.add_function_arguments(entry, as_group=False, as_positional=True)
        # A parser must be hung up before it gets sub-commands of its own.
        subcommands.add_subcommand(name, command, help=text.partition("\n")[0])
        if isinstance(entry, dict):
            _add_commands(command, entry)


def _help_formatter() -> type:
    from jsonargparse import DefaultHelpFormatter

    class Help(RawDescriptionHelpFormatter, DefaultHelpFormatter):
        """Keeps the lines of descriptions as they are."""

    return Help
