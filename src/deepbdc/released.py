"""Read the weights that the authors of DeepBDC published, with the names that their code gives them."""

import math
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepbdc.embedding import Embedding

_RENAMED = (
    ("feature.", "backbone."),
    ("dcov.conv_dr_block.", "pool.reduction."),
    ("dcov.temperature", "pool.t"),
)


def load_released_checkpoint(path: str | Path, model: Embedding, ignore: Sequence[str] = ()) -> Embedding:
    """Load a file of the authors' weights into ``model``, wholly or not at all.

    Their names (``feature.layer1.0.conv1.weight``, ``dcov.conv_dr_block.0.weight``, ``dcov.temperature``, ...) become
    ours. Their temperature is absolute, starting at log(1 / 2hw); ours is relative to the size of the map, so log(2hw)
    is added, for the map that the backbone gives at its native input size.

    Args:
        path: The file. It is a pickle, and read with ``weights_only=True``: nothing in it is executed.
        model: The embedding to fill, like ``Embedding(create_backbone("resnet12"), BDCPool(640, reduce_to=128))``.
        ignore: Beginnings of names in the file to leave out, like ``"classifier"`` for the head of a pre-trained file.

    Raises:
        ValueError: A weight of the model is not in the file, one in the file has no place in the model, a shape
            differs, or the file holds something else than weights. The model is then unchanged.
    """
    found = _read(Path(path))
    kept = {name: value for name, value in found.items() if not name.startswith(tuple(ignore))}
    renamed = {_our_name(name): value for name, value in kept.items()}
    if "pool.t" in renamed:
        height, width = model.backbone.map_size()
        renamed["pool.t"] = renamed["pool.t"].reshape(()) + math.log(2 * height * width)
    _check_complete(Path(path), renamed, model.state_dict())
    model.load_state_dict(renamed)
    return model


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors of the file: its top level, or the one entry of it that is a mapping of tensors."""
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(f"{path} is not a file of weights that can be read safely: {error}") from error
    candidates = [content, *(content.values() if isinstance(content, Mapping) else ())]
    for candidate in candidates:
        if isinstance(candidate, Mapping) and candidate and all(isinstance(v, Tensor) for v in candidate.values()):
            return {str(name).removeprefix("module."): value for name, value in candidate.items()}
    raise ValueError(f"{path} holds no mapping from names to tensors")


def _our_name(name: str) -> str:
    for theirs, ours in _RENAMED:
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def _check_complete(path: Path, given: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    problems = {
        "missing in the file": sorted(expected.keys() - given.keys()),
        "left over in the file": sorted(given.keys() - expected.keys()),
        "of another shape": [
            f"{name} (file {tuple(given[name].shape)}, model {tuple(expected[name].shape)})"
            for name in sorted(expected.keys() & given.keys())
            if given[name].shape != expected[name].shape
        ],
    }
    lines = [f"  {what}: {', '.join(names)}" for what, names in problems.items() if names]
    if lines:
        raise ValueError(
            f"{path} does not fit the model, nothing was loaded:\n" + "\n".join(lines) + "\n"
            "Left-over names can be left out with ignore=[...]; else check backbone, reduce_to and observations."
        )
