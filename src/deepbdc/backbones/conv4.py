"""Conv4: the small backbone of the early few-shot papers."""

from torch import Tensor, nn

from deepbdc.backbones.base import Backbone, backbones, downsampling_stages, initialise, scaled_widths
from deepbdc.preprocessing import AT_84


class Conv4(Backbone):
    """Four blocks of 3×3 convolution, batch norm, 2×2 max-pooling and ReLU, 64 channels each.

    At 84 px the map is 64×10×10 with one down-sampling removed, which is our default, and 64×5×5 with none removed.
    """

    def __init__(self, width: float, removed_downsamplings: int) -> None:
        channels = scaled_widths((64,) * 4, width)
        super().__init__(channels[-1], AT_84)
        pools = downsampling_stages(4, removed_downsamplings)
        blocks = [
            nn.Sequential(
                nn.Conv2d(before, after, kernel_size=3, padding=1),
                nn.BatchNorm2d(after),
                nn.MaxPool2d(2) if pool else nn.Identity(),
                nn.ReLU(inplace=True),  # commutes with max-pooling, and is cheaper after it
            )
            for before, after, pool in zip((3, *channels[:-1]), channels, pools, strict=True)
        ]
        self.blocks = nn.Sequential(*blocks)
        initialise(self)

    def blocks_in_order(self) -> list[nn.Module]:
        """The four blocks."""
        return list(self.blocks)

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(n, 3, h, w)`` to features ``(n, channels, h', w')``."""
        features: Tensor = self.blocks(images)
        return features


@backbones.register
def conv4(removed_downsamplings: int = 1, width: float = 1.0) -> Backbone:
    """Conv4-64: 113,088 parameters."""
    return Conv4(width, removed_downsamplings)
