"""``deepbdc evaluate``: a trained run, or an untrained model, on episodes of a data set."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deepbdc.commands.common import errors_in_words, is_main_process
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from deepbdc.report.evaluation import EvaluationRequest
    from deepbdc.runs import Run


def evaluate_model(
    model: str,
    data: str | None = None,
    shot: list[int] | None = None,
    classifier: str | None = None,
    split: Literal["train", "val", "test"] = "test",
    way: int | None = None,
    query: int | None = None,
    episodes: int | None = None,
    seed: int | None = None,
    cache: str | None = None,
    root: str | None = None,
    output: str | None = None,
    skip_bad: bool = False,
    devices: str = "auto",
    num_nodes: int = 1,
    accelerator: str = "auto",
    strategy: str = "auto",
    pool: Literal["bdc", "average"] | None = None,
    reduce_to: int | None = None,
    width: float | None = None,
    removed_downsamplings: int | None = None,
    size: int | None = None,
) -> None:
    """Evaluate a few-shot model on episodes of a data set.

    Every image is embedded once; then thousands of episodes are scored, the same ones for every
    model with the same --seed. For example:

        deepbdc evaluate runs/glyphs/stl_deepbdc --shot 1 --shot 5 --classifier svm
        deepbdc evaluate conv4 --data glyphs --size 32 --shot 1 --shot 5 --classifier logistic

    The results of a run are also written to its folder, as JSON. The last five options belong to
    backbones with random weights: a run has its own.

    Args:
        model: A folder or .safetensors file of 'deepbdc train'; 'pixels' for raw pixels; efficientnet_lite0,
            trained on ImageNet; or a backbone with random weights (conv4, resnet12, ..., timm/NAME).
        data: A name of 'deepbdc data list', a folder train|val|test/CLASS/IMAGE, an .npz file; for a run also a folder
            that holds its benchmark (default: what the run was trained for; else glyphs).
        shot: Labelled images a class; give it several times for several columns (default: the recipe's; 1 and 5).
        classifier: How queries are classified: prototype, logistic, svm or softmax (default: the run's own; else
            prototype).
        split: Which classes.
        way: Classes an episode (default: the recipe's; 5).
        query: Query images a class (default: the recipe's; 15).
        episodes: How many episodes (default: the recipe's; 2000).
        seed: Of the episodes, and of random weights (default: the recipe's; 0).
        cache: A folder for features, so that a second evaluation of the same model starts at once.
        root: Where prepared benchmarks lie (default: $DEEPBDC_DATA, else ~/.cache/deepbdc).
        output: The JSON file for the results (default: evaluation-DATA-SPLIT.json in the folder of a run).
        skip_bad: Leave out files that are no readable images, with a note, instead of stopping at the first.
        devices: How many on each machine, or auto; they share the images.
        num_nodes: Machines.
        accelerator: cpu, cuda, mps or auto.
        strategy: How processes share the work, as in Lightning Fabric.
        pool: How feature maps become representations (default: bdc).
        reduce_to: Channels before BDC pooling (default: those of the backbone).
        width: Multiplier of the backbone's channels (default: 1).
        removed_downsamplings: Of the backbone, from its end; fewer pixels are lost (default: as the backbone says).
        size: Side of the images given to the model, in pixels (default: the backbone's own; 32 for pixels).
    """
    from rich.console import Console

    from deepbdc.report import evaluation

    console = Console()
    with errors_in_words("evaluate"):
        settings = _given(way=way, query=query, episodes=episodes, seed=seed, shots=tuple(shot) if shot else None)
        untrained = _given(
            pool=pool, reduce_to=reduce_to, width=width, removed_downsamplings=removed_downsamplings, size=size
        )
        trained, place = _load(model), root
        if trained is None:
            request = evaluation.EvaluationRequest(
                model, data or "glyphs", split, classifier=classifier, **settings, **untrained
            )
        else:
            _refuse(model, untrained)
            request, place = _request_of_run(model, trained, data, root, split=split, classifier=classifier, **settings)
        device, shard = _processes(accelerator, devices, num_nodes, strategy)
        results = evaluation.run(
            request,
            trained,
            cache=cache,
            root=place,
            skip_bad=skip_bad,
            progress=console.is_terminal and is_main_process(),
            device=device,
            shard=shard,
        )
        if not is_main_process():
            return
        console.print(evaluation.table(request, results, trained is not None))
        if output is None and trained is not None:
            output = str(evaluation.default_output(request, results, trained))
        if output is not None:
            evaluation.write_results(Path(output), request, results)
            console.print(f"Results: {output}", markup=False, soft_wrap=True)


def _given(**options: Any) -> dict[str, Any]:
    """Those options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def _load(model: str) -> "Run | None":
    """The run that ``model`` says; None for the name of an untrained model."""
    path = Path(model)
    if path.is_dir() or path.suffix == ".safetensors":
        from deepbdc.runs import load_run

        if not path.exists():
            raise FileNotFoundError(f"there is no model file {model}")
        return load_run(path)
    if "/" in model and not model.startswith("timm/"):
        guess = Path("runs") / model
        mend = f": did you mean {guess}?" if guess.is_dir() else ". 'deepbdc train RECIPE' makes one."
        raise FileNotFoundError(f"there is no run {model}{mend}")
    return None


def _refuse(model: str, untrained: dict[str, Any]) -> None:
    if untrained:
        names = ", ".join("--" + name.replace("_", "-") for name in untrained)
        raise UserError(f"{model} is a trained run, which has a network of its own: leave out {names}")


def _request_of_run(
    model: str, trained: "Run", data: str | None, root: str | None, **settings: Any
) -> "tuple[EvaluationRequest, str | None]":
    """What to evaluate, where not said as in the recipe of the run; and where its data lie."""
    from dataclasses import asdict

    from deepbdc.data.loading import find_data
    from deepbdc.report.evaluation import EvaluationRequest

    name_or_path, found = find_data(trained.recipe.data, trained.data if data is None else data)
    own = asdict(trained.recipe.evaluation_settings)
    place = root or (None if found is None else str(found))
    return EvaluationRequest(model, str(name_or_path), **own | settings), place


def _processes(accelerator: str, devices: str, num_nodes: int, strategy: str) -> tuple[Any, Any]:
    """The device of this process, and its share of the images."""
    import torch

    default = (accelerator, devices, num_nodes, strategy) == ("auto", "auto", 1, "auto")
    if default and not torch.cuda.is_available() and not {"WORLD_SIZE", "SLURM_NTASKS"} & os.environ.keys():
        return "cpu", None  # without the two seconds that Fabric takes to be imported

    from deepbdc.training.devices import DeviceOptions, shard, start

    fabric = start(DeviceOptions(accelerator, devices, num_nodes, strategy))
    return fabric.device, shard(fabric)
