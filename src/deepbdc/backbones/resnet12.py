"""ResNet-12 for 84-pixel images, and its deeper variant with 34 layers (paper, S1-2)."""

from typing import cast

from torch import Tensor, nn

from deepbdc.backbones.base import Backbone, backbones, downsampling_stages, initialise, scaled_widths
from deepbdc.backbones.dropblock import DropBlock
from deepbdc.preprocessing import AT_84


class ResidualBlock(nn.Module):
    """Three 3×3 convolutions with batch norm and LeakyReLU(0.1), a shortcut, and max-pooling where it down-samples."""

    def __init__(self, before: int, after: int, pool: bool, drop: nn.Module) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.conv3 = nn.Conv2d(after, after, kernel_size=3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(after)
        self.activation = nn.LeakyReLU(0.1, inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if before != after:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, kernel_size=1, bias=False), nn.BatchNorm2d(after))
        self.pool = nn.MaxPool2d(2) if pool else nn.Identity()
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(n, before, h, w)`` to ``(n, after, h, w)``, or ``(n, after, h // 2, w // 2)`` with pooling."""
        y = self.activation(self.bn1(self.conv1(x)))
        y = self.activation(self.bn2(self.conv2(y)))
        y = self.activation(self.bn3(self.conv3(y)) + self.downsample(x))
        out: Tensor = self.drop(self.pool(y))
        return out


class ResNet12(Backbone):
    """Four stages of `ResidualBlock` with 64, 160, 320 and 640 channels; the first block of a stage down-samples.

    With ``drop_rate`` > 0, the blocks of stages 1-2 end in dropout and those of stages 3-4 in DropBlock. The paper says
    that it uses DropBlock, but the released code never switches it on. By default it is off here as well.
    """

    def __init__(
        self, depths: tuple[int, int, int, int], width: float, removed_downsamplings: int, drop_rate: float
    ) -> None:
        widths = scaled_widths((64, 160, 320, 640), width)
        super().__init__(widths[-1], AT_84)
        pools = downsampling_stages(4, removed_downsamplings)
        before = 3
        for stage, (depth, after, pool) in enumerate(zip(depths, widths, pools, strict=True)):
            blocks = []
            for block in range(depth):
                drop = _drop(drop_rate, whole_blocks=stage >= 2)
                blocks.append(ResidualBlock(before, after, pool and block == 0, drop))
                before = after
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        initialise(self)

    def blocks_in_order(self) -> list[nn.Module]:
        """The residual blocks of all stages."""
        return [block for stage in self.children() for block in cast(nn.Sequential, stage)]


def _drop(drop_rate: float, whole_blocks: bool) -> nn.Module:
    """DropBlock if ``whole_blocks``, else dropout; nothing if the rate is 0."""
    if drop_rate == 0:
        return nn.Identity()
    return DropBlock(drop_rate) if whole_blocks else nn.Dropout(drop_rate)


@backbones.register
def resnet12(removed_downsamplings: int = 1, width: float = 1.0, drop_rate: float = 0.0) -> Backbone:
    """ResNet-12: 12,424,320 parameters, 640×10×10 at 84 px."""
    return ResNet12((1, 1, 1, 1), width, removed_downsamplings, drop_rate)


@backbones.register
def resnet34s(removed_downsamplings: int = 1, width: float = 1.0, drop_rate: float = 0.0) -> Backbone:
    """The paper's variant of ResNet-34 for 84 px: like ResNet-12, but with 2, 3, 4 and 2 blocks in its four stages."""
    return ResNet12((2, 3, 4, 2), width, removed_downsamplings, drop_rate)
