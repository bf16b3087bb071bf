"""``deepbdc compare``: several recipes, trained if necessary and evaluated on the same episodes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from deepbdc.commands.common import check_device, run_folder
from deepbdc.commands.options import DEVICES, EPISODES, OUTPUT, Cache, DataOrPath, Flag, RecipeOrPath, balance
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from deepbdc.data.dataset import Dataset
    from deepbdc.evaluation import EvaluationResult
    from deepbdc.gallery import KeptResult
    from deepbdc.recipes import Recipe
    from deepbdc.runs import Run

PICTURES = (".png", ".pdf", ".svg")


@dataclass(frozen=True)
class Planned:
    """A run or a kept result that takes part in the comparison."""

    given: str
    """The recipe, folder or file as the user wrote it."""
    folder: Path
    """The folder of the run, or the file of the kept result."""
    recipe: "Recipe | None"
    """None for a kept result."""
    data: str | None
    """The data set in place of the recipe's, or the folder that contains the recipe's."""
    run: "Run | None" = None
    """The finished run; None if it is still to be trained."""
    results: "tuple[EvaluationResult, ...]" = ()
    """What its training found on the test classes, if this command has trained it."""
    kept: "KeptResult | None" = None
    """The kept result, which needs no network."""


def compare(
    *recipes: RecipeOrPath,
    baseline: Annotated[RecipeOrPath | None, Parameter(metavar="RECIPE")] = None,
    runs: Annotated[Path, Parameter(metavar="FOLDER")] = Path("runs"),
    data: DataOrPath | None = None,
    set: Annotated[list[str] | None, Parameter(metavar="KEY=VALUE")] = None,
    shot: Annotated[list[int] | None, Parameter(metavar="COUNT", group=EPISODES)] = None,
    episodes: Annotated[int | None, Parameter(metavar="COUNT", group=EPISODES)] = None,
    seed: Annotated[int | None, Parameter(metavar="NUMBER", group=EPISODES)] = None,
    unbalanced: Annotated[Flag, Parameter(group=EPISODES)] = False,
    dirichlet: Annotated[float | None, Parameter(metavar="NUMBER", group=EPISODES)] = None,
    output: Annotated[Path | None, Parameter(alias="-o", metavar="FILE", group=OUTPUT)] = None,
    cache: Cache = None,
    quiet: Annotated[Flag, Parameter(group=OUTPUT)] = False,
    device: Annotated[str, Parameter(metavar="NAME", group=DEVICES)] = "cpu",
) -> None:
    """Compare recipes: train those without a run, evaluate all on the same episodes, and draw one table.

    For example:

        deepbdc compare glyphs/protonet glyphs/good_embed glyphs/stl_deepbdc
        deepbdc compare cifar_fs/protonet runs/mine --data ~/data --shot 5
        deepbdc compare gallery/cifar_fs/conv4/stl_deepbdc runs/mine --data ~/data

    A finished run in runs/RECIPE is used as it is, an unfinished one is continued, and a missing one is trained. A
    stage that several recipes train in exactly the same way, such as pretrain, is trained once.
    The first recipe is the baseline. The others are compared with it episode by episode, because such paired
    differences are more precise than the accuracies themselves. A kept result, such as one of the gallery, needs no
    network: the runs are evaluated on its episodes. Runs that differ only in the seed of training are also summarised
    in one row.

    Args:
        recipes: Names that `deepbdc train --list` shows, YAML files, folders of runs, files of kept results, or
            networks of the zoo, like zoo/miniimagenet/conv4/stl_deepbdc. A value like pretrain.epochs=2 among them is
            set in all recipes, as by --set.
        baseline: The recipe or folder with which the others are compared (default: the first).
        runs: The folder that contains the folders of the runs.
        data: A folder that contains prepared benchmarks; or a data set in place of the recipes'.
        set: A value that replaces the recipes', like pretrain.epochs=2. The option can be repeated.
        shot: Labelled images per class. Repeat the option for several columns (default: the first recipe's,
            or those of the first kept result, like the following options).
        episodes: Number of episodes (default: the first recipe's).
        seed: Seed of the episodes (default: the first recipe's).
        unbalanced: Distribute the queries of an episode over its classes at random (default: the first recipe's).
        dirichlet: How unbalanced: the parameter of the Dirichlet distribution of the classes' shares. Larger is more
            balanced; 2 is usual in the literature. Implies --unbalanced (default: the first recipe's).
        output: The picture to write, as .png, .pdf or .svg. The numbers are written to a .json file of the same name
            (default: comparison.png in the folder of the runs).
        cache: A folder for features, so that a second comparison of the same runs does not compute them again.
        quiet: Print only the table.
        device: Where the networks run in the evaluation, like cpu or cuda.
    """
    from rich.console import Console

    console = Console()
    picture = output or runs / "comparison.png"
    if picture.suffix not in PICTURES:
        raise UserError(f"--output must end in {', '.join(PICTURES)}, got {str(picture)!r}")
    check_device(device)
    planned = _plan(recipes, set or (), runs, data, baseline)
    settings = _settings(planned, shot, episodes, seed) | balance(unbalanced, dirichlet)
    _check(planned, settings)
    for entry in planned:
        _say(console, entry, quiet)
    for place, entry in enumerate(planned):
        if entry.run is None and entry.kept is None:
            if not quiet:
                console.print(f"\n{entry.given}", markup=False, highlight=False, soft_wrap=True)
            planned[place] = _trained(entry, runs, quiet)
    _report(planned, settings, console, picture, cache, device)


def _plan(
    given: Sequence[str], overrides: Sequence[str], runs: Path, data: str | None, baseline: str | None
) -> "list[Planned]":
    """Find the run of each recipe or folder. The baseline comes first."""
    values = [text for text in given if "=" in text and not Path(text).exists()]
    wanted = [text for text in given if text not in values]
    if not wanted:
        raise UserError("no recipes given. 'deepbdc train --list' shows all recipes.")
    if baseline is not None:
        if baseline not in wanted:
            raise UserError(f"--baseline must be one of {', '.join(wanted)}, got {baseline!r}")
        wanted.sort(key=lambda text: text != baseline)
    planned = [_plan_one(text, [*overrides, *values], runs, data) for text in wanted]
    folders = [entry.folder.resolve() for entry in planned]
    for entry, folder in zip(planned, folders, strict=True):
        if folders.count(folder) > 1:
            raise UserError(f"the {'run' if entry.kept is None else 'result'} {entry.folder} is given twice")
    return planned


def _plan_one(given: str, overrides: Sequence[str], runs: Path, data: str | None) -> Planned:
    """Find the run of one recipe or folder, and load it if it is finished; or load a kept result."""
    from deepbdc.gallery import find_result, load_result
    from deepbdc.recipes import list_recipes, load_recipe
    from deepbdc.runs import is_finished, load_run
    from deepbdc.zoo import find_network, network_folder

    is_recipe = given in list_recipes()
    looks_kept = given.startswith("gallery/") or given.endswith(".json")
    if not is_recipe and not Path(given).is_dir() and (looks_kept or find_result(given) is not None):
        kept = load_result(given)
        if not kept.results:
            raise UserError(f"{kept.path} has no results: the run was not evaluated on test classes")
        return Planned(given, kept.path, None, None, kept=kept)
    found = None if is_recipe else (network_folder if given.startswith("zoo/") else find_network)(given)
    if found is not None and found.is_dir():
        if is_finished(found):
            run = load_run(found)
            return Planned(given, found, run.recipe, data or run.data, run)
        if not (found / "recipe.yaml").is_file():
            raise UserError(f"{given} is neither a recipe nor the folder of a run: it contains no recipe.yaml")
        return Planned(given, found, load_recipe(found / "recipe.yaml"), data)
    recipe, folder = load_recipe(given, overrides), run_folder(given, runs)
    if not is_finished(folder):
        return Planned(given, folder, recipe, data)
    run = load_run(folder)
    _check_same(run, recipe, data)
    return Planned(given, folder, recipe, data or run.data, run)


def _check_same(run: "Run", recipe: "Recipe", data: str | None) -> None:
    """Raise an error unless the finished run was trained by the same recipe on the same classes."""
    from deepbdc.data.loading import find_data, load_dataset
    from deepbdc.runs import training_differences

    hint = f"Give the folder {run.folder} to compare that run as it is, or another folder with --runs to train again."
    differing = training_differences(run.recipe, recipe)
    if differing:
        changes = ", ".join(f"{key}={old}, not {new}" for key, (old, new) in list(differing.items())[:3])
        raise UserError(f"the run in {run.folder} was trained with {changes}. {hint}")
    if data is not None:
        place, root = find_data(recipe.data, data)
        if load_dataset(place, "train", root=root).class_names != run.class_names:
            raise UserError(f"the run in {run.folder} was trained on other classes than those of {place}. {hint}")


def _settings(
    planned: Sequence[Planned], shot: Sequence[int] | None, episodes: int | None, seed: int | None
) -> dict[str, Any]:
    """The settings of the episodes: the options that were given, else those of a kept result, else of a recipe."""
    kept = next((entry.kept for entry in planned if entry.kept is not None), None)
    if kept is not None:
        first = kept.results[0]
        own = {name: getattr(first, name) for name in ("seed", "way", "query", "unbalanced", "dirichlet")}
        own |= {"shots": tuple(result.shot for result in kept.results), "episodes": len(first.accuracies)}
    else:
        recipe = planned[0].recipe
        assert recipe is not None
        own = recipe.evaluation_settings.of_episodes()
    given = {"shots": tuple(shot) if shot else None, "episodes": episodes, "seed": seed}
    return own | {name: value for name, value in given.items() if value is not None}


def _check(planned: Sequence[Planned], settings: dict[str, Any]) -> None:
    """Load the data and draw the episodes, to find mistakes before hours of training."""
    from deepbdc.episodes import sample_episodes
    from deepbdc.report.comparison import check_same_episodes, kept_results

    kind = {name: value for name, value in settings.items() if name not in ("shots", "episodes")}
    kept = {
        entry.folder: kept_results(entry.kept, settings["shots"], settings["episodes"], "test", kind)
        for entry in planned
        if entry.kept is not None
    }
    dataset = _common_data(planned)
    if dataset is not None:
        drawn = [sample_episodes(dataset, shot=shot, count=settings["episodes"], **kind) for shot in settings["shots"]]
        check_same_episodes(kept, drawn)


def _common_data(planned: Sequence[Planned]) -> "Dataset | None":
    """The test classes of all runs; None if there are only kept results."""
    from deepbdc.report.comparison import common_data

    wanted = {entry.given: (entry.recipe.data, entry.data) for entry in planned if entry.recipe is not None}
    return common_data(wanted) if wanted else None


def _say(console: "Console", entry: Planned, quiet: bool) -> None:
    """Print what will be done with a run."""
    to_do = "will be continued" if _is_begun(entry) else "will be trained"
    does = to_do if entry.run is None else "is finished"
    text = f"the run in {entry.folder} {does}" if entry.kept is None else f"the result in {entry.folder} is kept"
    if not quiet:
        console.print(f"{entry.given}: {text}", markup=False, highlight=False, soft_wrap=True)


def _is_begun(entry: Planned) -> bool:
    """Whether the folder holds an unfinished run."""
    return (entry.folder / "recipe.yaml").is_file()


def _trained(entry: Planned, runs: Path, quiet: bool) -> Planned:
    """Train the run, from its last checkpoint if it was begun."""
    from deepbdc.runs import load_run
    from deepbdc.training.devices import DeviceOptions
    from deepbdc.training.run import Interrupted, TrainingError, train

    assert entry.recipe is not None
    try:
        one = DeviceOptions(devices=1)  # with several processes, each would print and draw the comparison
        resume = _is_begun(entry)
        done = train(entry.recipe, entry.folder, data=entry.data, resume=resume, devices=one, quiet=quiet, reuse=[runs])
    except (Interrupted, TrainingError) as error:
        kind = KeyboardInterrupt if isinstance(error, Interrupted) else TrainingError
        raise kind(f"{entry.given}: {error} Or repeat this 'deepbdc compare', which continues the run.") from error
    return replace(entry, run=load_run(entry.folder), results=done.results)


def _report(
    planned: Sequence[Planned],
    settings: dict[str, Any],
    console: "Console",
    picture: Path,
    cache: Path | None,
    device: str,
) -> None:
    """Evaluate the runs; print the table, draw the picture and save the numbers."""
    from deepbdc.report import comparison, comparison_output

    runs = [run for entry in planned if (run := entry.run or entry.kept) is not None]
    names = [entry.given for entry in planned]
    dataset = _common_data(planned)
    known = {entry.folder: entry.results for entry in planned}
    progress = console.is_terminal
    found = comparison.compare_runs(
        runs, names=names, **settings, data=dataset, cache=cache, progress=progress, device=device, known=known
    )
    console.print(comparison_output.table(found))
    comparison_output.draw(found, picture)
    numbers = picture.with_suffix(".json")
    comparison_output.save(found, numbers)
    console.print(f"Picture: {picture}\nNumbers: {numbers}", markup=False, soft_wrap=True)
