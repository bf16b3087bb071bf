"""Heads of ordinary training, which turn representations into scores of all training classes."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize


def linear_head(features: int, classes: int) -> nn.Linear:
    """A linear layer whose intercepts start at 0."""
    head = nn.Linear(features, classes)
    nn.init.zeros_(head.bias)
    return head


class ScaledHead(nn.Module):
    """Scores without intercepts: scale · w_c · z, or with ``cosine`` scale · g_c · cos(w_c, z).

    The weights w start from uniform random numbers in ±1/√features.

    Args:
        features: Numbers in a representation.
        classes: Number of scores.
        scale: Factor on all scores.
        cosine: Use directions only, of weights and representations.
        gain: With ``cosine``: train g, which starts from the length of w (else it is 1).
    """

    def __init__(self, features: int, classes: int, scale: float, cosine: bool = True, gain: bool = False) -> None:
        super().__init__()
        self.scale = scale
        self.cosine = cosine
        self.weight = nn.Parameter(torch.empty(classes, features))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        self.gain = nn.Parameter(self.weight.detach().norm(dim=1)) if cosine and gain else None

    def forward(self, representations: Tensor) -> Tensor:
        """``(n, features) -> (n, classes)``."""
        if not self.cosine:
            return self.scale * linear(representations, self.weight)
        weight = normalize(self.weight, dim=1)
        if self.gain is not None:
            weight = self.gain.unsqueeze(1) * weight
        return self.scale * linear(normalize(representations, dim=1), weight)

    def extra_repr(self) -> str:
        """The settings that ``print`` shows."""
        return f"scale={self.scale}, cosine={self.cosine}"


class AverageThen(nn.Module):
    """Another layer on the average of feature maps, ``(n, d, h, w) -> (n, d)``."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, maps: Tensor) -> Tensor:
        """Average, then the layer."""
        out: Tensor = self.layer(maps.mean(dim=(2, 3)))
        return out
