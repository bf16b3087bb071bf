"""``deepbdc data list|prepare|check``: the data sets."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from deepbdc.commands.options import Benchmark, DataOrPath, Root
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from deepbdc.data.check import Report


def data_list(*, root: Root = None) -> None:
    """List the benchmarks: their splits, licences and sources, and which of them are prepared.

    Args:
        root: The folder of prepared benchmarks (default: $DEEPBDC_DATA, else ~/.cache/deepbdc).
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
    console.print("\nTo prepare a benchmark: deepbdc data prepare NAME --source ARCHIVE_OR_FOLDER", soft_wrap=True)


def _size(parts: list[tuple[str, str]]) -> str:
    """The total number of classes and images of ``parts``, which are pairs of a benchmark and one of its splits."""
    from deepbdc.data import benchmarks

    known = [(benchmarks.get(name), split) for name, split in parts if benchmarks.get(name).classes]
    classes = sum(len(benchmark.classes[split]) for benchmark, split in known)
    images = sum(benchmark.images[split] for benchmark, split in known)
    return f"{classes:,} ({images:,})" if known else ""


def _describe(name: str) -> dict[str, str]:
    """The description of a benchmark, by heading."""
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


def data_prepare(
    name: Benchmark, /, *, source: Annotated[Path | None, Parameter(metavar="PATH")] = None, root: Root = None
) -> None:
    """Convert the official archive of a benchmark to the standard layout.

    For example:

        deepbdc data prepare cub --source ~/Downloads/CUB_200_2011.tgz

    If the command is interrupted, run it again: it continues where it stopped.

    Args:
        name: The benchmark, like cub. `deepbdc data list` shows all names.
        source: The official archive, the folder with its extracted content, or a folder that contains all archives of
            the benchmark. For miniimagenet and tieredimagenet: ILSVRC2012_img_train.tar, or the folder that contains
            one folder for each class. Required.
        root: The folder of prepared benchmarks (default: $DEEPBDC_DATA, else ~/.cache/deepbdc).
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from deepbdc.data import benchmarks
    from deepbdc.data.prepare import prepare
    from deepbdc.data.preparers.source import how_to_get

    benchmark = benchmarks.get(name)
    target = benchmarks.prepared_path(name, root)
    if source is None:
        raise UserError(f"--source is missing. {how_to_get(benchmark)} Licence: {benchmark.licence}.")
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"Preparing {name}", total=sum(benchmark.images.values()))
        prepare(name, source, root, lambda done, total: bar.update(task, completed=done, total=total))
    console.print(f"{name} is complete in {target}", markup=False)


def data_check(path: DataOrPath, /) -> None:
    """Check every image of a data set, and say what is wrong and how to fix it.

    For example:

        deepbdc data check photos
        deepbdc data check cub

    The exit code is 1 if something is wrong.

    Args:
        path: A folder train|val|test/CLASS/IMAGE or CLASS/IMAGE, an .npz file, or the name of a prepared benchmark.
    """
    from rich.console import Console
    from rich.progress import Progress

    from deepbdc.data import benchmarks
    from deepbdc.data.check import check

    console = Console()
    named = not Path(path).exists() and path in benchmarks.names()
    if named and not benchmarks.is_prepared(path):
        raise benchmarks.NotPrepared(path)
    places = [Path(path)]
    if named:
        place = benchmarks.prepared_path(path)
        places = benchmarks.array_files(path) if place.suffix == ".npz" else [place]
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("Checking", total=None)
        reports = [check(p, lambda done, total: bar.update(task, completed=done, total=total)) for p in places]
    if len(reports) > 1:
        console.print(f"{path} consists of {len(reports)} files. Each is checked separately.", markup=False)
    for report in reports:
        _print_report(report, console)
    if not all(report.ok for report in reports):
        raise SystemExit(1)


def _print_report(report: "Report", console: "Console", most: int = 10) -> None:
    """Print the size of each split, and each problem with at most ``most`` of the files that have it."""
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
