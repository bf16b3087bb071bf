"""Pooling layers that average positions, or keep all of them."""

from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from deepbdc.errors import UserError
from deepbdc.pooling.base import Pool, ReducedPool


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


class KeepMap(ReducedPool):
    """No pooling: the representation of an image is its feature map, ``(n, channels, h, w) -> (n, d, h, w)``.

    For classifiers that compare images position by position, or that pool maps themselves. ``out_features`` is the
    number of channels d, which is what a linear head on the average of the map needs.

    Args:
        channels: Channels of the incoming map.
        reduce_to: Channels d after a 1×1 convolution, batch norm and ReLU, as in `BDCPool`. None: the map is unchanged.
    """

    def __init__(self, channels: int, reduce_to: int | None = None) -> None:
        super().__init__(channels, reduce_to)
        self.out_features = self.dimensions

    def represent(self, reduced: Tensor) -> Tensor:
        """The map itself."""
        return reduced


class GridPool(Pool):
    """The means over the cells of a grid, ``(n, channels, h, w) -> (n, channels, size, size)``.

    For classifiers whose cost grows fast with the number of positions. If ``size`` does not divide the height or width,
    neighbouring cells overlap, and the mean of the grid is not exactly that of the map.

    Args:
        channels: Channels of the incoming map.
        size: Cells in a row and in a column, at most as many as the map has positions there.
    """

    def __init__(self, channels: int, size: int) -> None:
        super().__init__(channels=channels, size=size)
        if size < 1:
            raise UserError(f"a grid needs at least one cell, got a size of {size}")
        self.out_features = channels
        self.size = size

    def represent(self, reduced: Tensor) -> Tensor:
        """The means over the cells."""
        height, width = reduced.shape[2:]
        if self.size > min(height, width):
            raise UserError(f"a map of {height}×{width} positions is too small for a grid of {self.size}×{self.size}")
        return adaptive_avg_pool2d(reduced, self.size)
