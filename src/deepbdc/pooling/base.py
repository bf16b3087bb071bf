"""What all pooling layers have in common."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from deepbdc._fingerprint import settings_of


class Pool(nn.Module):
    """From feature maps ``(n, channels, h, w)`` to one representation per image, in two halves.

    `reduce` gives a smaller map, and `represent` makes the representation from it. The map in between may be much
    smaller than the representation, so a feature bank keeps it when memory is short.

    Args:
        settings: All options of the layer. They identify it: two layers with the same settings and weights give the
            same representations.
    """

    out_features: int
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

    def extra_repr(self) -> str:
        """The settings that ``print`` shows."""
        return settings_of(self)
