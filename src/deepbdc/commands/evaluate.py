"""``deepbdc evaluate``: a trained run, or an untrained model, on episodes of a data set."""

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from deepbdc.commands.common import is_main_process
from deepbdc.commands.options import (
    AUTOMATIC,
    DATA,
    EPISODES,
    OUTPUT,
    Cache,
    DataOrPath,
    Flag,
    NameOrPath,
    ProcessOptions,
    Root,
    balance,
    given,
)
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from deepbdc.report.evaluation import EvaluationRequest
    from deepbdc.runs import Run

IMAGES = Group("What is made of each image", sort_key=2)
UNTRAINED = Group("Backbones with random weights (a run has its own network)", sort_key=4)


def evaluate_model(
    model: NameOrPath,
    /,
    *,
    classifier: Annotated[str | None, Parameter(metavar="NAME")] = None,
    ensemble: Annotated[list[str] | None, Parameter(metavar="MODEL", negative=())] = None,
    data: Annotated[DataOrPath | None, Parameter(group=DATA)] = None,
    split: Annotated[Literal["train", "val", "test"], Parameter(metavar="NAME", group=DATA)] = "test",
    root: Annotated[Root, Parameter(group=DATA)] = None,
    skip_bad: Annotated[Flag, Parameter(group=DATA)] = False,
    base: Annotated[DataOrPath | None, Parameter(group=DATA)] = None,
    shot: Annotated[list[int] | None, Parameter(metavar="COUNT", group=EPISODES)] = None,
    way: Annotated[int | None, Parameter(metavar="COUNT", group=EPISODES)] = None,
    query: Annotated[int | None, Parameter(metavar="COUNT", group=EPISODES)] = None,
    episodes: Annotated[int | None, Parameter(metavar="COUNT", group=EPISODES)] = None,
    seed: Annotated[int | None, Parameter(metavar="NUMBER", group=EPISODES)] = None,
    unbalanced: Annotated[Flag, Parameter(group=EPISODES)] = False,
    dirichlet: Annotated[float | None, Parameter(metavar="NUMBER", group=EPISODES)] = None,
    crops: Annotated[int | None, Parameter(metavar="COUNT", group=IMAGES)] = None,
    crop_side: Annotated[float | None, Parameter(metavar="SHARE", group=IMAGES)] = None,
    power: Annotated[float | None, Parameter(metavar="EXPONENT", group=IMAGES)] = None,
    centre: Annotated[bool | None, Parameter(negative="--no-centre", group=IMAGES)] = None,
    output: Annotated[Path | None, Parameter(alias="-o", metavar="FILE", group=OUTPUT)] = None,
    cache: Cache = None,
    pool: Annotated[Literal["bdc", "average"] | None, Parameter(metavar="NAME", group=UNTRAINED)] = None,
    reduce_to: Annotated[int | None, Parameter(metavar="CHANNELS", group=UNTRAINED)] = None,
    width: Annotated[float | None, Parameter(metavar="FACTOR", group=UNTRAINED)] = None,
    removed_downsamplings: Annotated[int | None, Parameter(metavar="COUNT", group=UNTRAINED)] = None,
    size: Annotated[int | None, Parameter(metavar="PIXELS", group=UNTRAINED)] = None,
    processes: ProcessOptions = AUTOMATIC,
) -> None:
    """Evaluate a few-shot model on episodes of a data set.

    Every image is embedded once; then thousands of episodes are scored. Models that are evaluated with the same
    --seed are scored on the same episodes. For example:

        deepbdc evaluate runs/glyphs/stl_deepbdc --shot 1 --shot 5
        deepbdc evaluate runs/mini/stl_deepbdc --data cub --shot 5 --crops 5
        deepbdc evaluate conv4 --data glyphs --size 32 --classifier logistic
        deepbdc evaluate runs/glyphs/stl_deepbdc --ensemble runs/glyphs/dn4

    The results of a run are also written to its folder, as JSON. Evaluations on test classes are counted in the file
    looks.jsonl there.

    Args:
        model: The folder or a .safetensors file of a run of `deepbdc train`; the name of a network in the zoo, like
            miniimagenet/conv4/stl_deepbdc; 'pixels' for raw pixels; efficientnet_lite0, trained on ImageNet; or a
            backbone with random weights (conv4, resnet12, ..., timm/NAME).
        classifier: How queries are classified: prototype, logistic, svm or softmax (default: the run's own, else
            prototype).
        ensemble: A further run or network of the zoo: the scores of all of them are averaged. Before, those of each
            network are divided by how much they differ between the classes on the support images, so that none
            outweighs the others. Repeat the option for more.
        data: A name that `deepbdc data list` shows, a folder train|val|test/CLASS/IMAGE, or an .npz file; for a run
            also a folder that contains its benchmark (default: the data of the run, else glyphs).
        split: The split whose classes are used.
        root: The folder of prepared benchmarks (default: $DEEPBDC_DATA, else ~/.cache/deepbdc).
        skip_bad: Skip files that are not readable images, with a note, instead of stopping at the first.
        base: For --centre, and for a method that needs the images of its training classes again, such as aa: where they
            are, as for --data (default: where the training found them).
        shot: Labelled images per class. Repeat the option for several columns (default: the recipe's, else 1 and 5).
        way: Classes per episode (default: the recipe's, else 5).
        query: Query images per class (default: the recipe's, else 15).
        episodes: Number of episodes (default: the recipe's, else 2000).
        seed: Seed of the episodes and of random weights (default: the recipe's, else 0).
        unbalanced: Distribute the queries of an episode over its classes at random (default: the recipe's, else no).
        dirichlet: How unbalanced: the parameter of the Dirichlet distribution of the classes' shares. Larger is more
            balanced; 2 is usual in the literature. Implies --unbalanced (default: the recipe's, else 1).
        crops: Views of each image whose representations are averaged: 1 for the centre, 2 with its mirror image, 5 with
            the four corners, 10 with the mirror images of these five (default: the recipe's, else 1).
        crop_side: Side of the views at the corners, as a share of the shorter side of the image (default: the
            recipe's, else 0.875).
        power: Replace each number x of a representation by sign(x)·|x|^power. 0.5, the signed square root, is usual for
            second-order pooling such as BDC (default: the recipe's, else 1, which changes nothing).
        centre: Subtract the mean representation of the training images from each representation (default: the
            recipe's, else no).
        output: The JSON file for the results (default: evaluation-DATA-SPLIT.json in the folder of the run).
        cache: A folder for features, so that a second evaluation of the same model does not compute them again.
        pool: How feature maps become representations (default: bdc).
        reduce_to: Channels before BDC pooling (default: those of the backbone).
        width: Factor for the number of channels of the backbone (default: 1).
        removed_downsamplings: How many downsamplings to remove from the end of the backbone, for larger feature maps
            (default: the backbone's own).
        size: Height and width of the images as the model sees them (default: the backbone's own; 32 for pixels).
    """
    from rich.console import Console

    from deepbdc.provenance import record_look
    from deepbdc.report import evaluation

    console = Console()
    if size is not None and size < 1:
        raise UserError(f"--size must be at least 1, got {size}")
    settings = given(way=way, query=query, episodes=episodes, seed=seed, shots=tuple(shot) if shot else None)
    settings |= balance(unbalanced, dirichlet) | given(crops=crops, crop_side=crop_side, power=power, centre=centre)
    untrained = given(
        pool=pool, reduce_to=reduce_to, width=width, removed_downsamplings=removed_downsamplings, size=size
    )
    settings |= {"split": split, "classifier": classifier}
    request, trained, place = _what_to_evaluate(model, ensemble or (), data, root, base, settings, untrained)
    _ = request.test_time  # raises an error for impossible values before the slow part
    device, shard = _device_and_shard(processes)
    results = evaluation.run(
        request,
        trained,
        cache=cache,
        root=place,
        skip_bad=skip_bad,
        progress=console.is_terminal and is_main_process(),
        device=device,
        shard=shard,
        base=base,
    )
    if not is_main_process():
        return
    looks = None if trained is None else record_look(trained.folder, "evaluate", results)
    console.print(evaluation.table(request, results, trained is not None))
    if output is None and trained is not None:
        output = evaluation.default_output(request, results, trained)
    if output is not None:
        evaluation.write_results(output, request, results, trained, looks)
        console.print(f"Results: {output}", markup=False, soft_wrap=True)


def _what_to_evaluate(
    model: str,
    others: Sequence[str],
    data: str | None,
    root: Path | None,
    base: str | None,
    settings: dict[str, Any],
    untrained: dict[str, Any],
) -> "tuple[EvaluationRequest, Run | None, Path | None]":
    """Return what to evaluate, the trained run with its ensemble if there is one, and the folder of the data."""
    from deepbdc.report.evaluation import EvaluationRequest

    trained, place = _load(model), root
    if trained is None:
        if others:
            raise UserError(f"{model} is not a trained run: an ensemble needs trained networks")
        request = EvaluationRequest(model, data or "glyphs", **settings, **untrained)
    else:
        _refuse(model, untrained)
        trained = _with_others(trained, others, settings["classifier"])
        if base is not None and trained.method.needs_base_images:
            from deepbdc.runs import base_images

            trained.method.base = base_images(trained.recipe, base)
        request, place = _request_of_run(model, trained, data, root, ensemble=tuple(others), **settings)
    if base is not None and (trained is None or not (trained.method.needs_base_images or request.centre)):
        raise UserError(f"{model} does not need the images of its training classes: omit --base")
    return request, trained, place


def _load(model: str) -> "Run | None":
    """Load the run in the folder or file ``model``, or of the zoo; return None for the name of an untrained model."""
    path = Path(model)
    if path.is_dir() or path.suffix == ".safetensors":
        from deepbdc.runs import load_run

        if not path.exists():
            raise FileNotFoundError(f"there is no model file {model}")
        return load_run(path)
    if "/" in model and not model.startswith("timm/"):
        from deepbdc.runs import load_run
        from deepbdc.zoo import find_network, what_there_is

        kept = find_network(model)
        if kept is not None:
            return load_run(kept)
        guess = Path("runs") / model
        train = f". 'deepbdc train RECIPE' makes one. {what_there_is()}"
        raise FileNotFoundError(f"there is no run {model}{f': did you mean {guess}?' if guess.is_dir() else train}")
    return None


def _with_others(trained: "Run", others: Sequence[str], classifier: str | None) -> "Run":
    """The run with the ensemble of its network and those of ``others`` as its method; the run itself without others."""
    if not others:
        return trained
    if classifier is not None:
        raise UserError("each network of an ensemble has its own classifier: leave out --classifier")
    from deepbdc.ensemble import Ensemble

    members = [trained.method]
    for name in others:
        other = _load(name)
        if other is None:
            raise UserError(f"{name} is not a trained run: an ensemble needs trained networks")
        members.append(other.method)
    return replace(trained, method=Ensemble(members))


def _refuse(model: str, untrained: dict[str, Any]) -> None:
    """Raise an error if options of untrained backbones are given for a run."""
    if untrained:
        names = ", ".join("--" + name.replace("_", "-") for name in untrained)
        raise UserError(f"{model} is a trained run, which has its own network: omit {names}")


def _request_of_run(
    model: str, trained: "Run", data: str | None, root: Path | None, **settings: Any
) -> "tuple[EvaluationRequest, Path | None]":
    """Return what to evaluate, with the recipe's values where ``settings`` has none, and the folder of the data."""
    from deepbdc.data.loading import find_data
    from deepbdc.report.evaluation import EvaluationRequest

    name_or_path, found = find_data(trained.recipe.data, trained.data if data is None else data)
    own = asdict(trained.recipe.evaluation_settings)
    return EvaluationRequest(model, str(name_or_path), **own | settings), root or found


def _device_and_shard(processes: ProcessOptions) -> tuple[Any, Any]:
    """Start the processes. Return the device of this one, and which of the images it embeds."""
    import torch

    several = {"WORLD_SIZE", "SLURM_NTASKS"} & os.environ.keys()
    if processes == AUTOMATIC and not torch.cuda.is_available() and not several:
        return "cpu", None  # saves the two seconds that the import of Fabric takes

    from deepbdc.training.devices import DeviceOptions, shard, start

    fabric = start(DeviceOptions(**asdict(processes)))
    return fabric.device, shard(fabric)
