"""``deepbdc train``: from a recipe to a trained and evaluated model."""

from pathlib import Path
from typing import TYPE_CHECKING

from deepbdc.commands.common import errors_in_words, run_folder
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from deepbdc.recipes import Recipe
    from deepbdc.training.devices import DeviceOptions


def train_recipe(
    recipe: str | None = None,
    *overrides: str,
    run: str | None = None,
    data: str | None = None,
    resume: bool = False,
    dry_run: bool = False,
    list: bool = False,
    quiet: bool = False,
    devices: str = "auto",
    num_nodes: int = 1,
    accelerator: str = "auto",
    strategy: str = "auto",
    precision: str | None = None,
) -> None:
    """Train a few-shot model by a recipe, and evaluate it on the test classes.

    Everything is kept in one folder: the recipe with all its values, the log, checkpoints, the curve
    of the validation, the model, and the result. For example:

        deepbdc train glyphs/protonet
        deepbdc train cifar_fs/stl_deepbdc pretrain.epochs=10 --data ~/data --run runs/short

    The first needs no download. A run that was interrupted goes on with the same command and --resume.

    Args:
        recipe: A name that --list shows, or a YAML file of your own.
        overrides: Values in place of the recipe's, like pretrain.epochs=10 or meta=null (leaves a stage out).
        run: The folder of the run (default: runs/RECIPE).
        data: A folder that holds prepared benchmarks; or a data set in place of the recipe's: a name of
            'deepbdc data list', a folder train|val|test/CLASS/IMAGE, or an .npz file.
        resume: Go on with the run in the folder from its last checkpoint.
        dry_run: Train nothing: print the recipe with all its values, the size of the model, and how long it would take.
        list: Show all recipes.
        quiet: Print nothing but the result.
        devices: How many on each machine, or auto.
        num_nodes: Machines.
        accelerator: cpu, cuda, mps or auto.
        strategy: How processes share the work, as in Lightning Fabric: ddp, ... or auto.
        precision: 32-true, bf16-mixed or 16-mixed (default: the recipe's).
    """
    from rich.console import Console

    console = Console()
    with errors_in_words("train"):
        if list:
            _print_recipes(console)
            return
        from deepbdc.recipes import load_recipe

        if recipe is None:
            raise UserError("which recipe? 'deepbdc train --list' shows all of them")
        given = overrides if precision is None else (*overrides, f"precision={precision}")
        resolved = load_recipe(recipe, given)
        folder = run_folder(recipe) if run is None else Path(run)

        from deepbdc.training.devices import DeviceOptions

        options = DeviceOptions(accelerator, devices, num_nodes, strategy)
        if dry_run:
            _print_plan(console, resolved, options, data)
        else:
            _train(console, resolved, recipe, folder, options, data, resume, quiet)


def _print_recipes(console: "Console") -> None:
    """All recipes, a line each."""
    from deepbdc.recipes import list_recipes, load_recipe

    recipes = {name: load_recipe(name) for name in list_recipes()}
    lines = [(name, _backbone(recipe), _stages(recipe)) for name, recipe in recipes.items()]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        text = "  ".join(part.ljust(width) for part, width in zip(line, widths, strict=True))
        console.print(text.rstrip(), markup=False, highlight=False, soft_wrap=True)


def _backbone(recipe: "Recipe") -> str:
    options = {key: value for key, value in recipe.backbone.items() if key in ("name", "width")}
    return " × ".join(map(str, options.values()))


def _stages(recipe: "Recipe") -> str:
    """The stages and their epochs, like ``pretrain 14, distill 2 × 14``."""
    parts = []
    for name, settings in recipe.stages.items():
        trainings = len(settings.instances(name))
        parts.append(f"{name} {trainings} × {settings.epochs}" if trainings > 1 else f"{name} {settings.epochs}")
    return ", ".join(parts) + " epochs" if parts else "none"


def _print_plan(console: "Console", recipe: "Recipe", options: "DeviceOptions", data: str | None) -> None:
    """The recipe with all its values, and what training by it would take."""
    from deepbdc.training.estimate import describe, estimate

    print(recipe.as_yaml(), flush=True)  # as it is, so that it can be put in a file
    console.print(describe(estimate(recipe, options, data=data)))


def _train(
    console: "Console",
    recipe: "Recipe",
    name: str,
    folder: Path,
    options: "DeviceOptions",
    data: str | None,
    resume: bool,
    quiet: bool,
) -> None:
    from deepbdc.commands.common import is_main_process
    from deepbdc.report.evaluation import results_table
    from deepbdc.training.run import train

    result = train(recipe, folder, data=data, resume=resume, devices=options, quiet=quiet)
    if not is_main_process():
        return
    if result.results:
        console.print(results_table(name, result.results))
    else:
        alone = "The test classes were left alone, as the recipe says."
        console.print(alone if recipe.evaluation is None else "The data has no test classes to evaluate the model on.")
    console.print(f"Run: {folder}", markup=False, soft_wrap=True)
