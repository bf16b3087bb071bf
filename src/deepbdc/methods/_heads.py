"""Heads of ordinary training, which turn representations into scores of all training classes."""

from torch import Tensor, nn
from torch.nn.functional import normalize


def linear_head(features: int, classes: int) -> nn.Linear:
    """A linear layer whose intercepts start at 0."""
    linear = nn.Linear(features, classes)
    nn.init.zeros_(linear.bias)
    return linear


class AverageThen(nn.Module):
    """Another layer on the average of feature maps, ``(n, d, h, w) -> (n, d)``."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, maps: Tensor) -> Tensor:
        """Average, then the layer."""
        out: Tensor = self.layer(maps.mean(dim=(2, 3)))
        return out


class CosineHead(nn.Module):
    """Scores s · cos(x, w_c), ``(n, d) -> (n, classes)``.

    Args:
        features: d.
        classes: Number of classes.
        scale: s.
    """

    def __init__(self, features: int, classes: int, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.Linear(features, classes, bias=False).weight.detach().clone())
        self.scale = scale

    def forward(self, representations: Tensor) -> Tensor:
        """The scores of all classes."""
        return self.scale * (normalize(representations, dim=1) @ normalize(self.weight, dim=1).T)
