"""Pooling that keeps positions apart from each other, or only their mean."""

from torch import Tensor

from deepbdc.pooling.base import Pool


class AveragePool(Pool):
    """The mean over positions, ``(n, channels, h, w) -> (n, channels)``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_features = channels

    def represent(self, reduced: Tensor) -> Tensor:
        """The mean over positions."""
        return reduced.mean(dim=(2, 3))


class Flatten(Pool):
    """No pooling: ``(n, channels, h, w) -> (n, channels · h · w)``."""

    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.out_features = channels * height * width

    def represent(self, reduced: Tensor) -> Tensor:
        """All entries of the map, in a row."""
        return reduced.flatten(1)
