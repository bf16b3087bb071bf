"""Read the weights that the authors of DeepBDC published, with the names that their code gives them."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepbdc.embedding import Embedding
from deepbdc.errors import UserError, WrongType

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
    if isinstance(ignore, str):
        raise WrongType(f"ignore is a list of beginnings of names: write [{ignore!r}]")
    found = {name: value for name, value in _read(Path(path)).items() if not name.startswith(tuple(ignore))}
    theirs: dict[str, str] = {}
    for name in found:
        if (other := theirs.setdefault(_our_name(name), name)) != name:
            raise UserError(f"{path} holds the same weight twice, as {other} and as {name}")
    _check_complete(Path(path), found, theirs, model.state_dict())
    state = {ours: found[name] for ours, name in theirs.items()}
    if "pool.t" in state:
        height, width = model.backbone.map_size()
        state["pool.t"] = state["pool.t"].reshape(()) + math.log(2 * height * width)
    model.load_state_dict(state)
    return model


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors of the file: its top level, or the one entry of it that is a mapping of tensors."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file")
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged pickles raise nearly anything
        raise UserError(
            f"{path} is not a file of weights that can be read safely ({type(error).__name__}): "
            "it is damaged, or holds more than tensors and plain values"
        ) from error
    candidates = [content, *(content.values() if isinstance(content, Mapping) else ())]
    states = [c for c in candidates if isinstance(c, Mapping) and c and all(isinstance(v, Tensor) for v in c.values())]
    if len(states) != 1:
        raise UserError(f"{path} holds {len(states) or 'no'} mapping(s) from names to tensors; one is needed")
    return {str(name).removeprefix("module."): value for name, value in states[0].items()}


def _our_name(name: str) -> str:
    for theirs, ours in _RENAMED:
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def _check_complete(
    path: Path, found: Mapping[str, Tensor], theirs: Mapping[str, str], expected: Mapping[str, Tensor]
) -> None:
    """Raise unless file and model hold the same weights. Names in the file are reported as the file has them."""
    different = []
    for ours in sorted(expected.keys() & theirs.keys()):
        given, needed = found[theirs[ours]].shape, expected[ours].shape
        if given != needed and not (ours == "pool.t" and given.numel() == 1):
            different.append(f"{theirs[ours]} (file {tuple(given)}, model {tuple(needed)})")
    problems = {
        "missing in the file": sorted(expected.keys() - theirs.keys()),
        "left over in the file": sorted(theirs[ours] for ours in theirs.keys() - expected.keys()),
        "of another shape": different,
    }
    lines = [f"  {what}: {', '.join(names)}" for what, names in problems.items() if names]
    if lines:
        raise UserError(
            f"{path} does not fit the model, nothing was loaded:\n" + "\n".join(lines) + "\n"
            "Left-over names can be left out with ignore=[...]; else check backbone and reduce_to."
        )
