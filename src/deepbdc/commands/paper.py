"""``deepbdc paper``: reproduce the tables and figures of the paper."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from deepbdc.commands.options import DATA, OUTPUT, DataOrPath, Flag, NameOrPath, Reuse, Root, check_reuse
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from deepbdc.paper.cells import Bench
    from deepbdc.paper.experiments import Experiment
    from deepbdc.paper.settings import Setting
    from deepbdc.paper.verification import Verified

RELATIONS = Group("The figure of relations, if it is made alone", sort_key=4)


def paper(
    *names: Annotated[str, Parameter(metavar="NAME")],
    data: Annotated[DataOrPath | None, Parameter(group=DATA)] = None,
    root: Annotated[Root, Parameter(group=DATA)] = None,
    target: Annotated[DataOrPath | None, Parameter(group=DATA)] = None,
    recipes: Annotated[str | None, Parameter(metavar="FOLDER", group=DATA)] = None,
    backbone: NameOrPath | None = None,
    set: Annotated[list[str] | None, Parameter(metavar="KEY=VALUE")] = None,
    seeds: Annotated[int, Parameter(metavar="COUNT")] = 1,
    budget: Annotated[float | None, Parameter(metavar="MINUTES")] = None,
    reuse: Reuse = (),
    no_train: Flag = False,
    runs: Annotated[Path, Parameter(metavar="FOLDER", group=OUTPUT)] = Path("runs"),
    output: Annotated[Path | None, Parameter(alias="-o", metavar="FOLDER", group=OUTPUT)] = None,
    quiet: Annotated[Flag, Parameter(group=OUTPUT)] = False,
    points: Annotated[int, Parameter(metavar="COUNT", group=RELATIONS)] = 1500,
    seed: Annotated[int, Parameter(metavar="NUMBER", group=RELATIONS)] = 0,
) -> None:
    """Reproduce the tables and figures of the paper, with its numbers beside ours.

    Without a name: list them, with what each costs here. For example:

        deepbdc paper
        deepbdc paper table3 --data cifar_fs --root ~/data
        deepbdc paper table4b --data cub --recipes cub_cpu --root ~/data --reuse zoo
        deepbdc paper all --data glyphs --budget 90
        deepbdc paper verify table3
        deepbdc paper verify zoo/cub/conv4/stl_deepbdc --data ~/data
        deepbdc paper relations -o relations.pdf

    Each table is written as Markdown, LaTeX and JSON, each figure as PNG and PDF. What a table needs is trained with
    the recipes of the data set; runs that are there already are used, and what several rows share is trained once. The
    same command continues after an interruption.

    Args:
        names: Which tables and figures; `all` of them; or `verify` and names: evaluate their networks again, and
            compare with the stored results to the digit. `verify` also takes networks of the zoo and folders of runs.
        data: The data set: one that has recipes (`deepbdc train --list`), or any other, which then takes the recipes
            of glyphs (default: glyphs). For networks that are verified: the folder that contains their benchmark, or
            the data set itself (default: that of the network).
        root: The folder of prepared benchmarks (default: $DEEPBDC_DATA, else ~/.cache/deepbdc).
        target: For the tables across domains: what the networks are tested on, as the name of a data set (in the
            folder of --root), a folder of prepared benchmarks, or a data set itself.
        recipes: The recipes to use, like cifar_fs (default: those of the data set).
        backbone: A network in place of that of the recipes, like resnet12.
        set: A value for all recipes, like evaluation.episodes=600. The option can be repeated. A value of a stage that
            a recipe does not have is left out there.
        seeds: How many seeds each row is trained with; with several, the tables also say mean and spread over them.
        budget: Time in minutes. If the trainings take longer, all are shortened alike, and after that time no new one
            is started. The choice is kept in the output folder.
        reuse: Another folder of finished runs, like zoo, whose networks and stages are used where they are what a table
            needs. The option can be repeated.
        no_train: Train nothing: fill only the rows whose networks are there, for example those of the zoo.
        runs: The folder that contains the folders of the runs.
        output: The folder to write to (default: paper/DATA). For `relations` alone also a picture, as .png, .pdf or
            .svg (default: relations.png).
        quiet: Print only which files were written.
        points: Number of points in each sample, 10 to 5000.
        seed: Seed of the random samples.
    """
    from rich.console import Console

    from deepbdc.paper.cells import Bench
    from deepbdc.paper.experiments import experiments, find
    from deepbdc.paper.plan import kept_plan
    from deepbdc.paper.settings import Setting

    console = Console()
    if budget is not None and budget <= 0:
        raise UserError(f"--budget must be a positive number of minutes, got {budget:g}")
    if names == ("relations",):
        _relations(console, output or Path("relations.png"), points, seed)
        return
    check_reuse(reuse)
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, got {seeds}")
    verify, wanted = names[:1] == ("verify",), [name for name in names if name not in ("verify", "all")]
    if verify and any("/" in name or Path(name).is_dir() for name in wanted):
        _verify_networks(console, wanted, data, root)
        return
    data = data or "glyphs"
    chosen = [find(name) for name in wanted] or list(experiments().values())
    folder = output or Path("paper") / Path(data).name
    setting = Setting(data, runs, folder, root, recipes or "", backbone, target, tuple(set or ()), seeds, reuse)
    if not names:
        with suppress(UserError):  # the tables of other settings are no reason to list nothing
            setting = kept_plan(setting) or setting
        _list(console, Bench(setting, console))
        return
    if verify:
        _verify(console, Bench(kept_plan(setting) or setting, console, quiet=quiet), chosen)
        return
    setting = _with_plan(Bench(setting, console), chosen, budget, console, quiet)
    _write(console, Bench(setting, console, None if budget is None else 60 * budget, quiet, not no_train), chosen)


def _list(console: "Console", bench: "Bench") -> None:
    """Print all tables and figures, and what each costs."""
    from rich.table import Table

    from deepbdc.paper.cost import images_of, images_per_second
    from deepbdc.paper.experiments import experiments

    setting = bench.setting
    behind = {name: bench.trainings([experiment]) for name, experiment in experiments().items()}
    everything = list({training.folder: training for trainings in behind.values() for training in trainings}.values())
    with console.status("Measuring how fast this machine trains"):
        rate = images_per_second(everything)
    shown = Table(box=None, pad_edge=False, header_style="bold", caption_justify="left")
    for heading in ("name", "in the paper", "what it shows", "to train", "minutes"):
        shown.add_column(
            heading, no_wrap=heading != "what it shows", justify="right" if heading == "minutes" else "left"
        )
    for experiment in experiments().values():
        trainings = behind[experiment.name]
        open_ = [training for training in trainings if not training.finished]
        minutes = images_of(trainings, bench.splits) / rate / 60
        count = f"{len(open_)} of {len(trainings)}" if trainings else ""
        shown.add_row(experiment.name, experiment.place, experiment.title, count, f"{minutes:.0f}" if open_ else "")
    total = images_of(everything, bench.splits) / rate / 60
    shown.caption = (
        f"on {setting.data}, with the recipes {setting.folder_of_recipes}/*: about {total:.0f} minutes for all, "
        "because tables share networks\n'deepbdc paper NAME' makes one; --data, --backbone and --budget change how"
    )
    console.print(shown)


def _with_plan(
    bench: "Bench", chosen: "list[Experiment]", budget: float | None, console: "Console", quiet: bool
) -> "Setting":
    """The setting with the shortening that was chosen in an earlier call, or that the budget needs."""
    from deepbdc.paper.plan import kept_plan, make_plan

    kept = kept_plan(bench.setting)
    if kept is not None:
        return kept
    with console.status("Measuring how fast this machine trains"):
        made = make_plan(bench, chosen, budget)
    if made.shortened > 1 and not quiet:
        console.print(f"To fit {budget:g} minutes, each stage trains one of {made.shortened} epochs of its recipe.")
    return made


def _write(console: "Console", bench: "Bench", chosen: "list[Experiment]") -> None:
    from deepbdc._files import write_text
    from deepbdc.paper.writing import index, write

    for experiment in chosen:
        if not bench.quiet:
            console.print(f"[bold]{experiment.place}[/bold]: {experiment.title}")
        for path in write(experiment, bench):
            console.print(f"  {path}", markup=False, highlight=False, soft_wrap=True)
    setting = bench.setting
    facts = {
        "data": setting.data,
        "recipes": f"{setting.folder_of_recipes}/*",
        "network": setting.backbone or "as in the recipes",
    }
    if setting.shortened > 1:
        facts["trained for"] = f"one of {setting.shortened} epochs of each recipe"
    write_text(setting.output / "README.md", index(setting.output, facts))
    console.print(f"All: {setting.output / 'README.md'}", markup=False, highlight=False, soft_wrap=True)


def _verify(console: "Console", bench: "Bench", chosen: "list[Experiment]") -> None:
    """Evaluate the networks of tables again, and compare with what is stored."""
    from deepbdc.paper.verification import verify

    if not _say_verified(console, verify(bench, chosen)):
        raise UserError("there is nothing to verify: no network of these tables is trained")


def _verify_networks(console: "Console", names: list[str], data: str | None, root: Path | None) -> None:
    """Evaluate networks of the zoo, or runs, again, and compare with what is stored."""
    from deepbdc.paper.verification import verify_network

    if not _say_verified(console, (line for name in names for line in verify_network(name, data, root))):
        raise UserError("there is nothing to verify: these networks have no results on test classes")


def _say_verified(console: "Console", lines: "Iterable[Verified]") -> int:
    """Print each line; raise an error if results differ. Return how many there are."""
    wrong = 0
    checked = 0
    for line in lines:
        checked += 1
        wrong += not line.same
        mark = "the same" if line.same else f"DIFFERENT ({line.reason})"
        name = f"{line.run}, {line.classifier}" if line.classifier else str(line.run)
        text = f"{name}, {line.shot}-shot: stored {line.stored}, now {line.now}: {mark}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    if wrong:
        raise UserError(f"{wrong} of {checked} results differ from the stored ones")
    if checked:
        console.print(f"All {checked} results are the same, episode by episode.")
    return checked


def _relations(console: "Console", output: Path, points: int, seed: int) -> None:
    """Draw the figure of supplement S4, and print its numbers."""
    from rich.progress import track
    from rich.table import Table

    from deepbdc.report import relations

    if not 10 <= points <= 5000 or seed < 0:
        raise UserError(f"--points must be 10 to 5000 and --seed at least 0, got {points} and {seed}")
    if output.suffix not in (".png", ".pdf", ".svg"):
        raise UserError(f"--output must end in .png, .pdf or .svg, got {str(output)!r}")
    count = len(relations.NONLINEAR) + len(relations.LINEAR)
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
