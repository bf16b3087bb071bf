"""``deepbdc train``: train a model by a recipe, and evaluate it."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from deepbdc.commands.common import run_folder
from deepbdc.commands.options import (
    AUTOMATIC,
    DEVICES,
    DataOrPath,
    Flag,
    ProcessOptions,
    RecipeOrPath,
    Reuse,
    check_reuse,
)
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from deepbdc.recipes import Recipe
    from deepbdc.training.devices import DeviceOptions


def train_recipe(
    recipe: RecipeOrPath | None = None,
    /,
    *overrides: Annotated[str, Parameter(name="KEY=VALUE")],
    run: Annotated[Path | None, Parameter(metavar="FOLDER")] = None,
    data: DataOrPath | None = None,
    resume: Flag = False,
    reuse: Reuse = (),
    dry_run: Flag = False,
    list: Flag = False,
    quiet: Flag = False,
    precision: Annotated[str | None, Parameter(metavar="NAME", group=DEVICES)] = None,
    processes: ProcessOptions = AUTOMATIC,
) -> None:
    """Train a few-shot model by a recipe, and evaluate it on the test classes.

    One folder keeps everything: the recipe with all its values, the log, checkpoints, the validation curve, the
    model and its result. For example:

        deepbdc train glyphs/protonet
        deepbdc train cifar_fs/stl_deepbdc pretrain.epochs=10 --run runs/short

    The first command needs no download. To continue an interrupted run, repeat its command with --resume.

    Args:
        recipe: A name that --list shows, or your own YAML file.
        overrides: Values that replace the recipe's, like pretrain.epochs=10 or meta=null (skips a stage).
        run: The folder of the run (default: runs/RECIPE).
        data: A folder that contains prepared benchmarks; or a data set in place of the recipe's: a name that
            `deepbdc data list` shows, a folder train|val|test/CLASS/IMAGE, or an .npz file.
        resume: Continue the run in the folder from its last checkpoint.
        reuse: A folder of runs, like runs or zoo. A stage that one of them has trained in exactly the same way (same
            data, settings, seed and initial weights; the precision may differ) is taken from there, whatever the
            method. The option can be repeated.
        dry_run: Do not train: print the recipe with all its values, the size of the model and the expected time.
        list: List all recipes.
        quiet: Print only the result.
        precision: 32-true, bf16-mixed or 16-mixed (default: the recipe's).
    """
    from rich.console import Console

    console = Console()
    if list:
        _print_recipes(console)
        return
    from deepbdc.recipes import load_recipe

    check_reuse(reuse)
    if recipe is None:
        raise UserError("no recipe given. 'deepbdc train --list' shows all recipes.")
    given = overrides if precision is None else (*overrides, f"precision={precision}")
    resolved = load_recipe(recipe, given)
    folder = run_folder(recipe) if run is None else run

    from deepbdc.training.devices import DeviceOptions

    options = DeviceOptions(**asdict(processes))
    if dry_run:
        _print_plan(console, resolved, options, data)
    else:
        _train(console, resolved, recipe, folder, options, data, resume, reuse, quiet)


def _print_recipes(console: "Console") -> None:
    """Print one line for each recipe: its name, backbone and stages."""
    from deepbdc.recipes import list_recipes, read_recipe

    recipes = {name: read_recipe(name) for name in list_recipes()}
    lines = [(name, _backbone(content), _stages(content)) for name, content in recipes.items()]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        text = "  ".join(part.ljust(width) for part, width in zip(line, widths, strict=True))
        console.print(text.rstrip(), markup=False, highlight=False, soft_wrap=True)


def _backbone(content: dict[str, Any]) -> str:
    options = {key: value for key, value in content["backbone"].items() if key in ("name", "width")}
    return " × ".join(map(str, options.values()))


def _stages(content: dict[str, Any]) -> str:
    """The stages and their epochs, such as ``pretrain 14, distill 2 × 14``."""
    parts = []
    for name, section in content.items():
        if isinstance(section, dict) and "epochs" in section:
            times = f"{section['generations']} × " if section.get("generations", 1) > 1 else ""
            parts.append(f"{name} {times}{section['epochs']}")
    return ", ".join(parts) + " epochs"


def _print_plan(console: "Console", recipe: "Recipe", options: "DeviceOptions", data: str | None) -> None:
    """Print the recipe with all its values, and what the training would take."""
    from deepbdc.training.estimate import describe, estimate

    print(recipe.as_yaml(), flush=True)  # without rich, which would wrap lines: the output can be saved as a recipe
    console.print(describe(estimate(recipe, options, data=data)))


def _train(
    console: "Console",
    recipe: "Recipe",
    name: str,
    folder: Path,
    options: "DeviceOptions",
    data: str | None,
    resume: bool,
    reuse: tuple[Path, ...],
    quiet: bool,
) -> None:
    """Train, and print the result."""
    from deepbdc.commands.common import is_main_process
    from deepbdc.report.evaluation import results_table
    from deepbdc.training.run import Interrupted, train

    try:
        result = train(recipe, folder, data=data, resume=resume, devices=options, quiet=quiet, reuse=reuse)
    except Interrupted as error:
        raise KeyboardInterrupt(str(error)) from error
    if not is_main_process():
        return
    if result.results:
        console.print(results_table(name, result.results))
    elif recipe.evaluation is None:
        console.print("The model was not evaluated on the test classes: the recipe says evaluation: null.")
    else:
        console.print("The data has no test classes to evaluate the model on.")
    console.print(f"Run: {folder}", markup=False, soft_wrap=True)
