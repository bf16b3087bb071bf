"""ResNet-10, 18 and 34 for 224-pixel images (He et al., CVPR 2016), with the last down-samplings removed."""

from torch import nn

from deepbdc.backbones.base import Backbone, backbones, downsampling_stages, initialise, scaled_widths
from deepbdc.preprocessing import AT_224


class ResNet(Backbone):
    """The ImageNet stem and four stages of torchvision's basic blocks, without average pooling and classifier.

    The weights have the same names as in torchvision.
    """

    def __init__(self, depths: tuple[int, int, int, int], width: float, removed_downsamplings: int) -> None:
        widths = scaled_widths((64, 128, 256, 512), width)
        super().__init__(widths[-1], AT_224)
        self.conv1 = nn.Conv2d(3, widths[0], kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        halve = (False, *downsampling_stages(3, removed_downsamplings))
        self.layer1 = _stage(widths[0], widths[0], depths[0], halve[0])
        self.layer2 = _stage(widths[0], widths[1], depths[1], halve[1])
        self.layer3 = _stage(widths[1], widths[2], depths[2], halve[2])
        self.layer4 = _stage(widths[2], widths[3], depths[3], halve[3])
        initialise(self)

    def blocks_in_order(self) -> list[nn.Module]:
        """The stem, and the residual blocks of all stages."""
        stem = nn.Sequential(self.conv1, self.bn1, self.relu, self.maxpool)
        return [stem, *self.layer1, *self.layer2, *self.layer3, *self.layer4]


def _stage(before: int, after: int, depth: int, halve: bool) -> nn.Sequential:
    from torchvision.models.resnet import BasicBlock

    shortcut = None
    stride = 2 if halve else 1
    if before != after or halve:
        shortcut = nn.Sequential(
            nn.Conv2d(before, after, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(after)
        )
    rest = [BasicBlock(after, after) for _ in range(depth - 1)]
    return nn.Sequential(BasicBlock(before, after, stride, shortcut), *rest)


@backbones.register
def resnet10(removed_downsamplings: int = 1, width: float = 1.0) -> Backbone:
    """ResNet-10: one block per stage, 4,905,792 parameters, 512×14×14 at 224 px."""
    return ResNet((1, 1, 1, 1), width, removed_downsamplings)


@backbones.register
def resnet18(removed_downsamplings: int = 1, width: float = 1.0) -> Backbone:
    """ResNet-18: 11,176,512 parameters, 512×14×14 at 224 px."""
    return ResNet((2, 2, 2, 2), width, removed_downsamplings)


@backbones.register
def resnet34(removed_downsamplings: int = 1, width: float = 1.0) -> Backbone:
    """ResNet-34: 21,284,672 parameters, 512×14×14 at 224 px."""
    return ResNet((3, 4, 6, 3), width, removed_downsamplings)
