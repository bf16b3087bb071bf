"""What all pooling layers have in common, and what those have that may begin with a reduction of channels."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from deepbdc._fingerprint import settings_of
from deepbdc._modes import full_precision
from deepbdc.errors import UserError


class Pool(nn.Module):
    """From feature maps ``(n, channels, h, w)`` to one representation per image, in two halves.

    `reduce` gives a smaller map, and `represent` makes the representation from it. The map in between may be much
    smaller than the representation, so a feature bank keeps it when memory is short.

    Args:
        settings: All options of the layer. They identify it: two layers with the same settings and weights give the
            same representations.
    """

    out_features: int
    """Numbers in the representation of an image, unless they depend on the size of its map."""
    depends_on_map_size: bool = False
    """Whether the representation has more numbers for larger maps; then only `out_features_for` gives their number."""
    named_parameter_groups: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Parameters that a recipe may give a learning rate of their own: the name of the group -> names of parameters."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, features: Tensor) -> Tensor:
        """Pool a batch of maps."""
        return self.represent(self.reduce(features))

    def reduce(self, features: Tensor) -> Tensor:
        """The first half: from feature maps to maps ``(n, d, h, w)``. By default they stay as they are."""
        return features

    def represent(self, reduced: Tensor) -> Tensor:
        """The second half: from reduced maps to representations."""
        raise NotImplementedError

    def out_features_for(self, height: int, width: int) -> int:
        """Numbers in the representation of an image whose feature map is ``height`` × ``width``."""
        return self.out_features

    def extra_repr(self) -> str:
        """The settings that ``print`` shows."""
        return settings_of(self)


class ReducedPool(Pool, ABC):
    """A pooling layer that may begin with a reduction of the channels, ``(n, channels, h, w) -> (n, d, h, w)``.

    The reduction is a 1×1 convolution without bias, batch norm and ReLU. A child writes only `represent`.

    Args:
        channels: Channels of the incoming map.
        reduce_to: Channels d after the reduction; None leaves it out, so that d = ``channels``.
        settings: All other options of the layer.
    """

    def __init__(self, channels: int, reduce_to: int | None, **settings: Any) -> None:
        super().__init__(channels=channels, reduce_to=reduce_to, **settings)
        self.channels = channels
        self.dimensions = channels if reduce_to is None else reduce_to
        if channels < 1 or self.dimensions < 1:
            raise UserError(f"channels and reduce_to must be positive, got {channels} and {reduce_to}")
        self.reduction = nn.Identity() if reduce_to is None else _reduction(channels, reduce_to)

    def reduce(self, features: Tensor) -> Tensor:
        """The first half: maps ``(n, channels, h, w) -> (n, d, h, w)``; tokens become maps ``(n, d, tokens, 1)``."""
        name = type(self).__name__
        if features.dim() == 3 and features.shape[2] == self.channels:  # (n, tokens, channels) of a transformer
            features = features.transpose(1, 2).unsqueeze(-1)
        if features.dim() != 4 or features.shape[1] != self.channels:
            raise UserError(
                f"{name} needs a feature map of shape (n, {self.channels}, h, w), got {tuple(features.shape)}; "
                f"tokens have the shape (n, tokens, {self.channels})"
            )
        if not features.is_floating_point():
            raise UserError(f"{name} needs a feature map of real numbers, got {features.dtype}: use .float()")
        if features.shape[2] * features.shape[3] < 1:
            raise UserError(f"the feature map has no positions: shape {tuple(features.shape)}")
        reduced: Tensor = self.reduction(features)
        return reduced

    @abstractmethod
    def represent(self, reduced: Tensor) -> Tensor:
        """The second half: from reduced maps to representations."""


def _reduction(channels: int, reduce_to: int) -> nn.Sequential:
    convolution = nn.Conv2d(channels, reduce_to, kernel_size=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(convolution, nn.BatchNorm2d(reduce_to), nn.ReLU(inplace=True))


def in_full_precision(formula: Callable[[Tensor], Tensor], maps: Tensor) -> Tensor:
    """``formula`` of maps, computed in float32 (or float64, if they are), also under autocast.

    The result has the dtype of the computation under autocast; else that of the maps, because in a half-precision
    network the next layer expects half precision.
    """
    autocast = maps.device.type != "meta" and torch.is_autocast_enabled(maps.device.type)
    exact = maps if maps.dtype == torch.float64 else maps.float()
    with full_precision(maps):
        return formula(exact).to(exact.dtype if autocast else maps.dtype)
