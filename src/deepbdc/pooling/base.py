"""What all pooling layers have in common."""

from torch import Tensor, nn


class Pool(nn.Module):
    """From feature maps ``(n, channels, h, w)`` to one representation an image, in two halves.

    `reduce` gives a smaller map, `represent` makes the representation of it. What lies between may be much smaller than
    the representation, so it is what a feature bank keeps when memory is short.
    """

    out_features: int

    def forward(self, features: Tensor) -> Tensor:
        """Pool a batch of maps."""
        return self.represent(self.reduce(features))

    def scales(self) -> list[nn.Parameter]:
        """Parameters that scale representations, which may be trained at a rate of their own: by default none."""
        return []

    def reduce(self, features: Tensor) -> Tensor:
        """The first half: by default nothing."""
        return features

    def represent(self, reduced: Tensor) -> Tensor:
        """The second half: representations of reduced maps."""
        raise NotImplementedError
