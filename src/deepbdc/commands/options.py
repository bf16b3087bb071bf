"""Options that several commands share: their groups on the help pages, their names and their help texts."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, fields
from glob import escape, glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from deepbdc.errors import UserError

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

DATA = Group("Data", sort_key=1)
EPISODES = Group("Episodes", sort_key=2)
OUTPUT = Group("Output", sort_key=3)
NETWORK = Group("Network and classifier", sort_key=4)
DEVICES = Group("Devices", sort_key=5)


def _recipes_and_paths(context: "CompletionContext") -> list[str]:
    from deepbdc.recipes import list_recipes

    return [*list_recipes(), *_paths(context)]


def _benchmarks(_: "CompletionContext") -> list[str]:
    from deepbdc.data.benchmarks import names

    return names()


def _benchmarks_and_paths(context: "CompletionContext") -> list[str]:
    return [*_benchmarks(context), *_paths(context)]


def _paths(context: "CompletionContext") -> list[str]:
    """The files and folders that begin with the word before the cursor."""
    return [path + "/" * os.path.isdir(path) for path in glob(escape(context.incomplete) + "*")]


# A shell completes files for parameters of the type Path. Names that can also be paths need a completer.
RecipeOrPath = Annotated[str, Parameter(completer=_recipes_and_paths)]
"""A recipe of the package, a YAML file, or the folder of a run."""
Benchmark = Annotated[str, Parameter(completer=_benchmarks)]
"""The name of a benchmark."""
DataOrPath = Annotated[str, Parameter(completer=_benchmarks_and_paths, metavar="DATA")]
"""A benchmark, a folder or an .npz file."""
NameOrPath = Annotated[str, Parameter(completer=_paths, metavar="NAME")]
"""A name that completion does not know, or a path."""
Flag = Annotated[bool, Parameter(show_default=False)]
"""An option without a value."""
Root = Annotated[Path | None, Parameter(metavar="FOLDER")]
"""The folder of prepared benchmarks."""
Reuse = Annotated[tuple[Path, ...], Parameter(metavar="FOLDER", show_default=False)]
"""Folders of finished runs."""
Cache = Annotated[Path | None, Parameter(metavar="FOLDER", group=OUTPUT)]
"""A folder for features that are computed once."""


@Parameter(name="*", group=NETWORK)
@dataclass(frozen=True)
class EstimatorOptions:
    """Settings of `FewShotClassifier`. None stands for the estimator's default."""

    backbone: NameOrPath | None = None
    """The network: the folder of a run of `deepbdc train`, the name of a network in the zoo, like
    miniimagenet/conv4/stl_deepbdc, or timm/NAME, whose weights are downloaded (default: efficientnet_lite2, trained on
    ImageNet and part of the installation). efficientnet_lite0 takes half the time and is less accurate on most photos.
    efficientnet_lite0_fine is far better on handwritten characters, and far worse on photos."""
    weights: Annotated[Path | None, Parameter(metavar="FILE")] = None
    """Weights of the network, if they are not to be downloaded: .safetensors, or tensors that torch.save wrote."""
    pool: Annotated[str | None, Parameter(metavar="NAME")] = None
    """What describes a picture: own (the network's own features), bdc, average, or both: own and bdc side by side
    (default: both)."""
    size: Annotated[int | None, Parameter(metavar="PIXELS")] = None
    """Height and width of the pictures as the network sees them (default: the network's own)."""
    classifier: Annotated[str | None, Parameter(metavar="NAME")] = None
    """What learns the classes: logistic, prototype or softmax (default: logistic)."""
    C: Annotated[float | None, Parameter(name="--C", metavar="NUMBER")] = None
    """How closely the logistic classifier fits the examples; the inverse of its regularisation (default: 10)."""
    parts: Annotated[str | None, Parameter(metavar="WHICH")] = None
    """Of which pictures the network also looks at two parts, from nearer: examples (default), none, or all, which is
    more accurate and takes three times as long."""
    device: Annotated[str | None, Parameter(metavar="NAME", group=DEVICES)] = None
    """Where the network runs, like cpu or cuda (default: cpu)."""
    batch_size: Annotated[int | None, Parameter(metavar="COUNT", group=DEVICES)] = None
    """How many pictures go through the network at once (default: 8)."""

    def given(self) -> dict[str, Any]:
        """The settings that the user gave."""
        return given(**{field.name: getattr(self, field.name) for field in fields(self)})


@Parameter(name="*", group=DEVICES)
@dataclass(frozen=True)
class ProcessOptions:
    """On how many devices and machines to compute, as `deepbdc.training.devices.DeviceOptions`, but without torch."""

    devices: Annotated[str, Parameter(metavar="COUNT")] = "auto"
    """Number of devices on each machine, or auto."""
    num_nodes: Annotated[int, Parameter(metavar="COUNT")] = 1
    """Number of machines."""
    accelerator: Annotated[str, Parameter(metavar="NAME")] = "auto"
    """cpu, cuda, mps or auto."""
    strategy: Annotated[str, Parameter(metavar="NAME")] = "auto"
    """How the processes share the work, by a name of Lightning Fabric: ddp, ddp_find_unused_parameters_true or auto."""


AUTOMATIC = ProcessOptions()


def balance(unbalanced: bool, dirichlet: float | None) -> dict[str, Any]:
    """What --unbalanced and --dirichlet change: nothing, if neither is given."""
    return given(unbalanced=unbalanced or dirichlet is not None or None, dirichlet=dirichlet)


def check_reuse(folders: Iterable[Path]) -> None:
    """Raise if a folder of --reuse is not there: training would silently begin anew."""
    for folder in folders:
        if not folder.is_dir():
            raise UserError(
                f"--reuse {folder}: there is no such folder here. Give a folder of finished runs, like runs, or the "
                "zoo of a clone of deepbdc"
            )


def given(**options: Any) -> dict[str, Any]:
    """The options that are not None."""
    return {name: value for name, value in options.items() if value is not None}
