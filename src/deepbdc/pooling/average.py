"""Pooling layers that average positions, or keep all of them."""

from torch import Tensor

from deepbdc.errors import UserError
from deepbdc.pooling._reduction import reduction
from deepbdc.pooling.base import Pool


class AveragePool(Pool):
    """The mean over positions, ``(n, channels, h, w) -> (n, channels)``."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels=channels)
        self.out_features = channels

    def represent(self, reduced: Tensor) -> Tensor:
        """The mean over positions."""
        return reduced.mean(dim=(2, 3))


class Flatten(Pool):
    """No pooling: all entries of the map in one vector, ``(n, channels, h, w) -> (n, channels · h · w)``."""

    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__(channels=channels, height=height, width=width)
        self.out_features = channels * height * width

    def represent(self, reduced: Tensor) -> Tensor:
        """All entries of the map, in a row."""
        return reduced.flatten(1)


class KeepMap(Pool):
    """No pooling: the representation of an image is its feature map, ``(n, channels, h, w)``.

    For classifiers that compare images position by position. ``out_features`` is the number of channels, which is
    what a linear head on the average of the map needs.

    Args:
        channels: Channels of the incoming map.
        reduce_to: Channels after a 1×1 convolution (no bias), batch norm and ReLU (None: the map stays as it is).
    """

    def __init__(self, channels: int, reduce_to: int | None = None) -> None:
        super().__init__(channels=channels, reduce_to=reduce_to)
        self.out_features = channels if reduce_to is None else reduce_to
        if channels < 1 or self.out_features < 1:
            raise UserError(f"channels and reduce_to must be positive, got {channels} and {reduce_to}")
        self.reduction = reduction(channels, reduce_to)

    def reduce(self, features: Tensor) -> Tensor:
        """The first half: maps ``(n, channels, h, w) -> (n, d, h, w)``."""
        reduced: Tensor = self.reduction(features)
        return reduced

    def represent(self, reduced: Tensor) -> Tensor:
        """The map itself."""
        return reduced
