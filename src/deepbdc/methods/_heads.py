"""Heads for pre-training that several methods share."""

from torch import Tensor, nn


class AverageThen(nn.Module):
    """Another layer on the average of feature maps, ``(n, d, h, w) -> (n, d)``."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, maps: Tensor) -> Tensor:
        """Average, then the layer."""
        out: Tensor = self.layer(maps.mean(dim=(2, 3)))
        return out
