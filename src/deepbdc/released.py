"""Read the weight files that the authors of DeepBDC published, and translate the names of their weights into ours."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepbdc.backbones.base import Backbone
from deepbdc.backbones.resnet import ResNet
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError, WrongType

_RENAMED = (
    ("feature.", "backbone."),
    ("dcov.conv_dr_block.", "pool.reduction."),
    ("dcov.temperature", "pool.t"),
)

# In their files, ResNet-10, 18 and 34 are one flat list: 0 is the first convolution, 1 its batch norm, 2 and 3 have no
# weights, and from 4 on each number is a residual block, counted through all stages.
_TRUNK = re.compile(r"feature\.trunk\.([0-9]{1,4})\.(.+)")
_FIRST_BLOCK = 4
_STEM = {0: "conv1", 1: "bn1"}
_IN_BLOCK = {
    "C1": "conv1",
    "BN1": "bn1",
    "C2": "conv2",
    "BN2": "bn2",
    "shortcut": "downsample.0",
    "BNshortcut": "downsample.1",
}


def load_released_checkpoint(path: str | Path, model: Embedding, ignore: Sequence[str] = ()) -> Embedding:
    """Load a file of the authors' weights into ``model``: either every weight, or none.

    The file may hold ResNet-12 or the 84-pixel ResNet-34 (names such as ``feature.layer1.0.conv1.weight``), or
    ResNet-10, 18 or 34 for 224 pixels (``feature.trunk.4.C1.weight``), each with or without a pooling layer
    (``dcov.conv_dr_block.0.weight``, ``dcov.temperature``). Their temperature is absolute and starts at log(1 / 2hw).
    Ours is relative to the size h×w of the feature map, so log(2hw) is added to theirs, for the map that the backbone
    returns at its native input size.

    Args:
        path: The file. It is a pickle, read with ``weights_only=True``: no code in it is executed.
        model: The embedding to fill, like ``Embedding(create_backbone("resnet12"), BDCPool(640, reduce_to=128))``.
        ignore: Prefixes of the names in the file to skip, like ``"classifier"`` for the head of a pre-trained network.

    Raises:
        UserError: The file lacks a weight of the model, holds one that the model does not have or one of another
            shape, or is not a file of weights. The model is then unchanged.
        FileNotFoundError: There is no such file.
    """
    if isinstance(ignore, str):
        raise WrongType(f"ignore is a list of prefixes of names: write [{ignore!r}]")
    found = {name: value for name, value in _read(Path(path)).items() if not name.startswith(tuple(ignore))}
    blocks = _blocks_of_stages(model.backbone)
    _check_depth(Path(path), found, blocks)
    theirs: dict[str, str] = {}
    for name in found:
        if (other := theirs.setdefault(_our_name(name, blocks), name)) != name:
            raise UserError(f"{path} holds the same weight twice, as {other} and as {name}")
    _check_complete(Path(path), found, theirs, model.state_dict())
    state = {ours: found[name] for ours, name in theirs.items()}
    if "pool.t" in state:
        height, width = model.backbone.map_size()
        state["pool.t"] = state["pool.t"].reshape(()) + math.log(2 * height * width)
    model.load_state_dict(state)
    return model


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors of the file by name: its top level, or the only entry there that maps names to tensors."""
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
        raise UserError(
            f"{path} holds {len(states) or 'no'} mapping(s) from names to tensors; it must hold exactly one"
        )
    return {str(name).removeprefix("module."): value for name, value in states[0].items()}


def _blocks_of_stages(backbone: Backbone) -> tuple[int, ...]:
    """The number of residual blocks in each stage of a ResNet-10, 18 or 34; () for any other backbone."""
    if not isinstance(backbone, ResNet):
        return ()
    return tuple(len(stage) for stage in (backbone.layer1, backbone.layer2, backbone.layer3, backbone.layer4))


def _check_depth(path: Path, found: Mapping[str, Tensor], blocks: tuple[int, ...]) -> None:
    """Raise if the file holds a ResNet of another depth: its numbers would then name other layers of the model."""
    numbers = [int(match[1]) for name in found if (match := _TRUNK.fullmatch(name))]
    count = max(numbers, default=0) - _FIRST_BLOCK + 1
    if numbers and blocks and count != sum(blocks):
        raise UserError(
            f"{path} does not fit the model, nothing was loaded: the file holds {max(count, 0)} residual blocks "
            f"(up to feature.trunk.{max(numbers)}), the model has {sum(blocks)} ({' + '.join(map(str, blocks))}). "
            "ResNet-10 has 4 blocks, ResNet-18 has 8 and ResNet-34 has 16: create the backbone of the file."
        )


def _our_name(name: str, blocks: tuple[int, ...]) -> str:
    """Our name of a weight in a released file. A name that we do not know is returned as it is."""
    if blocks and (match := _TRUNK.fullmatch(name)):
        return _our_trunk_name(int(match[1]), match[2], blocks) or name
    for theirs, ours in _RENAMED:
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def _our_trunk_name(number: int, rest: str, blocks: tuple[int, ...]) -> str | None:
    """Our name for ``feature.trunk.<number>.<rest>``; ``blocks`` counts the residual blocks of each stage."""
    if number in _STEM:
        return f"backbone.{_STEM[number]}.{rest}"
    layer, _, rest = rest.partition(".")
    block = number - _FIRST_BLOCK
    for stage, count in enumerate(blocks, start=1):
        if 0 <= block < count and layer in _IN_BLOCK:
            return f"backbone.layer{stage}.{block}.{_IN_BLOCK[layer]}.{rest}"
        block -= count
    return None


def _check_complete(
    path: Path, found: Mapping[str, Tensor], theirs: Mapping[str, str], expected: Mapping[str, Tensor]
) -> None:
    """Raise unless file and model hold the same weights. The message names weights of the file as the file does."""
    different = []
    for ours in sorted(expected.keys() & theirs.keys()):
        given, needed = found[theirs[ours]].shape, expected[ours].shape
        if given != needed and not (ours == "pool.t" and given.numel() == 1):
            different.append(f"{theirs[ours]} (file {tuple(given)}, model {tuple(needed)})")
    problems = {
        "missing in the file": sorted(expected.keys() - theirs.keys()),
        "not in the model": sorted(theirs[ours] for ours in theirs.keys() - expected.keys()),
        "of another shape": different,
    }
    lines = [f"  {what}: {', '.join(names)}" for what, names in problems.items() if names]
    if lines:
        raise UserError(
            f"{path} does not fit the model, nothing was loaded:\n" + "\n".join(lines) + "\n"
            "To skip weights that are not in the model, pass ignore=[...]; otherwise check the backbone and reduce_to."
        )
