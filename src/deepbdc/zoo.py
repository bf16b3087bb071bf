"""Trained networks that the repository keeps in ``zoo/DATA/BACKBONE/NAME``, found by name and loaded like runs.

The zoo is not part of the installed package. ``benchmarks/keep.py --network`` adds the network of a finished run.
"""

from pathlib import Path

from deepbdc._files import folders_of_repository
from deepbdc.methods import Method
from deepbdc.runs import MODEL, load_run

VARIABLE = "DEEPBDC_ZOO"
"""The environment variable that names the folder of the zoo, where it is neither in this folder nor in a clone."""


def load_pretrained(name_or_path: str | Path) -> Method:
    """Load a trained network of the zoo, in evaluation mode.

    Args:
        name_or_path: A name such as ``miniimagenet/conv4/stl_deepbdc``, or the folder of a run.

    Returns:
        The method with its weights. `evaluate` takes it, and ``FewShotClassifier(backbone=...)``, which also takes the
        name itself.

    Raises:
        FileNotFoundError: There is no such network; the error lists those that there are.
    """
    return load_run(network_folder(name_or_path)).method


def find_network(name_or_path: str | Path) -> Path | None:
    """The folder (or file of weights) of the network that a name or a path means; None if there is none."""
    path = Path(name_or_path)
    if path.is_dir() or (path.suffix == ".safetensors" and path.is_file()):
        return path
    inner = path.as_posix().removeprefix("zoo/")
    found = (root / inner for root in _roots())
    return next((folder for folder in found if (folder / MODEL).is_file()), None)


def network_folder(name_or_path: str | Path) -> Path:
    """The folder of the network that a name or a path means; an error that lists the networks if there is none."""
    found = find_network(name_or_path)
    if found is None:
        raise FileNotFoundError(
            f"there is no network {name_or_path}: give the folder of a finished run, or a name in the zoo. "
            f"{what_there_is()}"
        )
    return found


def list_networks() -> list[str]:
    """The names of all networks in the zoo."""
    found = {str(file.parent.relative_to(root).as_posix()) for root in _roots() for file in root.glob(f"*/*/*/{MODEL}")}
    return sorted(found)


def what_there_is() -> str:
    """A sentence with the names of all networks in the zoo, or with where to get the zoo."""
    names = list_networks()
    if names:
        return f"The zoo has {', '.join(names)}."
    return (
        "The networks are in the folder zoo of the deepbdc repository, which is not part of the installed package: "
        f"work in a clone of it, or set the environment variable {VARIABLE} to that folder."
    )


def _roots() -> list[Path]:
    """The folders that may be the zoo."""
    return folders_of_repository("zoo", VARIABLE)
