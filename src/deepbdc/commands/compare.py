"""``deepbdc compare``: several recipes on the same episodes, trained where that is still to do."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepbdc.commands.common import errors_in_words, run_folder
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from deepbdc.recipes import Recipe
    from deepbdc.runs import Run

PICTURES = (".png", ".pdf", ".svg")
NOT_TRAINING = ("evaluation.", "workers")
"""What of a recipe leaves the trained model as it is."""


@dataclass(frozen=True)
class Planned:
    """A run that is compared: where it lies, and whether it is still to be trained."""

    given: str
    folder: Path
    recipe: "Recipe"
    data: str | None
    """In place of the recipe's, or where to find that."""
    run: "Run | None" = None
    """None: to be trained."""


def compare(
    *recipes: str,
    data: str | None = None,
    runs: str = "runs",
    shot: list[int] | None = None,
    episodes: int | None = None,
    seed: int | None = None,
    set: list[str] | None = None,
    baseline: str | None = None,
    output: str | None = None,
    cache: str | None = None,
    quiet: bool = False,
) -> None:
    """Compare recipes: train what is missing, evaluate all on the same episodes, print and draw one table.

    A finished run in runs/RECIPE is used as it is, an unfinished one goes on, and what is not there
    is trained. The first recipe is the baseline, to which differences are taken episode by episode,
    so that they are known better than the accuracies themselves. For example:

        deepbdc compare glyphs/protonet glyphs/good_embed glyphs/meta_deepbdc glyphs/stl_deepbdc
        deepbdc compare cifar_fs/protonet runs/mine --data ~/data --shot 5 --output protonet.png

    Args:
        recipes: Names of 'deepbdc train --list', YAML files, or folders of runs. Values like pretrain.epochs=2 among
            them are for all recipes, as with --set.
        data: A folder that holds prepared benchmarks; or a data set in place of the recipes'.
        runs: The folder that holds the folders of the runs.
        shot: Labelled images a class; give it several times for several columns (default: as the first recipe says).
        episodes: How many episodes (default: as the first recipe says).
        seed: Of the episodes (default: as the first recipe says).
        set: A value in place of the recipes', like pretrain.epochs=2; may be given several times.
        baseline: The recipe or folder to take differences to (default: the first).
        output: The picture, as .png, .pdf or .svg; all numbers are written beside it, as .json (default: comparison.png
            in the folder of the runs).
        cache: A folder for features, so that a second comparison of the same runs is quick.
        quiet: Print nothing but the table.
    """
    from rich.console import Console

    console = Console()
    with errors_in_words("compare"):
        picture = Path(output or Path(runs) / "comparison.png")
        if picture.suffix not in PICTURES:
            raise UserError(f"--output must end in {', '.join(PICTURES)}, got {str(picture)!r}")
        planned = _plan(recipes, set or (), Path(runs), data, baseline)
        settings = _settings(planned[0].recipe, shot, episodes, seed)
        _check(planned, settings)
        for entry in planned:
            _say(console, entry, quiet)
        for place, entry in enumerate(planned):
            if entry.run is None:
                if not quiet:
                    console.print(f"\n{entry.given}", markup=False, highlight=False, soft_wrap=True)
                planned[place] = _trained(entry, quiet)
        _report(planned, settings, console, picture, cache)


def _plan(
    given: Sequence[str], overrides: Sequence[str], runs: Path, data: str | None, baseline: str | None
) -> "list[Planned]":
    """What to do for each recipe or folder; the baseline comes first."""
    values = [text for text in given if "=" in text and not Path(text).exists()]
    wanted = [text for text in given if text not in values]
    if not wanted:
        raise UserError("which recipes? 'deepbdc train --list' shows all of them")
    if baseline is not None:
        if baseline not in wanted:
            raise UserError(f"--baseline must be one of what is compared, got {baseline!r}: {', '.join(wanted)}")
        wanted.sort(key=lambda text: text != baseline)
    planned = [_plan_one(text, [*overrides, *values], runs, data) for text in wanted]
    folders = [entry.folder.resolve() for entry in planned]
    for entry, folder in zip(planned, folders, strict=True):
        if folders.count(folder) > 1:
            raise UserError(f"{entry.folder} stands twice among what is compared")
    return planned


def _plan_one(given: str, overrides: Sequence[str], runs: Path, data: str | None) -> Planned:
    from deepbdc.recipes import list_recipes, load_recipe
    from deepbdc.runs import is_finished, load_run

    if given not in list_recipes() and Path(given).is_dir():
        folder = Path(given)
        if is_finished(folder):
            run = load_run(folder)
            return Planned(given, folder, run.recipe, data or run.data, run)
        if not (folder / "recipe.yaml").is_file():
            raise UserError(f"{given} is neither a recipe nor the folder of a run: it holds no recipe.yaml")
        return Planned(given, folder, load_recipe(folder / "recipe.yaml"), data)
    recipe, folder = load_recipe(given, overrides), run_folder(given, runs)
    if not is_finished(folder):
        return Planned(given, folder, recipe, data)
    run = load_run(folder)
    _check_same(run, recipe, data)
    return Planned(given, folder, recipe, data or run.data, run)


def _check_same(run: "Run", recipe: "Recipe", data: str | None) -> None:
    """A finished run stands for a recipe only if it was trained by it, on the same data."""
    from deepbdc.data.loading import find_data, load_dataset

    mend = f"Give the folder {run.folder} to compare that run as it is, or --runs with another folder to train anew."
    old, new = _flat(run.recipe.as_dict()), _flat(recipe.as_dict())
    differing = [key for key in {**old, **new} if old.get(key) != new.get(key) and not key.startswith(NOT_TRAINING)]
    if differing:
        changes = ", ".join(f"{key}={old.get(key)}, not {new.get(key)}" for key in differing[:3])
        raise UserError(f"the run in {run.folder} was trained with {changes}. {mend}")
    if data is not None:
        place, root = find_data(recipe.data, data)
        if load_dataset(place, "train", root=root).class_names != run.class_names:
            raise UserError(f"the run in {run.folder} was trained on other classes than those of {place}. {mend}")


def _flat(content: Any, prefix: str = "") -> dict[str, Any]:
    """Nested values under keys like ``pretrain.epochs``."""
    if not isinstance(content, dict):
        return {prefix: content}
    return {
        key: value
        for name, part in content.items()
        for key, value in _flat(part, f"{prefix}.{name}" if prefix else str(name)).items()
    }


def _settings(recipe: "Recipe", shot: Sequence[int] | None, episodes: int | None, seed: int | None) -> dict[str, Any]:
    """Of the episodes: what was said, otherwise as in the first recipe."""
    own = recipe.evaluation_settings
    return {
        "shots": tuple(shot or own.shots),
        "episodes": own.episodes if episodes is None else episodes,
        "seed": own.seed if seed is None else seed,
        "way": own.way,
        "query": own.query,
    }


def _check(planned: Sequence[Planned], settings: dict[str, Any]) -> None:
    """Find mistakes about the data before hours of training."""
    from deepbdc.episodes import sample_episodes
    from deepbdc.report.comparison import common_data

    dataset = common_data({entry.given: (entry.recipe.data, entry.data) for entry in planned})
    for shot in settings["shots"]:
        sample_episodes(dataset, settings["way"], shot, settings["query"], settings["episodes"], settings["seed"])


def _say(console: "Console", entry: Planned, quiet: bool) -> None:
    """What is done with a run."""
    to_do = "goes on" if _is_begun(entry) else "will be trained"
    does = to_do if entry.run is None else "is finished"
    if not quiet:
        console.print(f"{entry.given}: the run in {entry.folder} {does}", markup=False, highlight=False, soft_wrap=True)


def _is_begun(entry: Planned) -> bool:
    return (entry.folder / "recipe.yaml").is_file()


def _trained(entry: Planned, quiet: bool) -> Planned:
    """The run, trained now; one that was interrupted goes on."""
    from deepbdc.runs import load_run
    from deepbdc.training.devices import DeviceOptions
    from deepbdc.training.run import Interrupted, TrainingError, train

    try:
        one = DeviceOptions(devices=1)  # several processes would each print and draw the comparison
        train(entry.recipe, entry.folder, data=entry.data, resume=_is_begun(entry), devices=one, quiet=quiet)
    except (Interrupted, TrainingError) as error:
        raise type(error)(f"{entry.given}: {error} The same 'deepbdc compare' goes on with it, too.") from error
    return replace(entry, run=load_run(entry.folder))


def _report(
    planned: Sequence[Planned], settings: dict[str, Any], console: "Console", picture: Path, cache: str | None
) -> None:
    """Evaluate, print, draw and save."""
    from deepbdc.report import comparison

    runs = [entry.run for entry in planned if entry.run is not None]
    names = [entry.given for entry in planned]
    dataset = comparison.common_data({entry.given: (entry.recipe.data, entry.data) for entry in planned})
    progress = console.is_terminal
    found = comparison.compare_runs(runs, names=names, **settings, data=dataset, cache=cache, progress=progress)
    console.print(comparison.table(found))
    comparison.draw(found, picture)
    numbers = picture.with_suffix(".json")
    comparison.save(found, numbers)
    console.print(f"Picture: {picture}\nNumbers: {numbers}", markup=False, soft_wrap=True)
