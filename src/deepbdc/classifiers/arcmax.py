"""A cosine classifier that is fitted to each support set by Adam, with a margin on the angle of the right class."""

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from deepbdc.classifiers.base import membership, positive
from deepbdc.classifiers.linear import LinearClassifier, LinearRule
from deepbdc.classifiers.prototype import class_means
from deepbdc.errors import UserError


class ArcmaxClassifier(LinearClassifier):
    """The score of a class is s · cos(x, w_c); Adam fits the class vectors w_c to the support set (Afrasiyabi, 2020).

    The loss is the cross-entropy of `arcmax`. The class vectors start from the means of the normalised representations
    of their classes; a random start would make scores depend on a seed.

    Args:
        steps: Steps of Adam, each on the whole support set.
        rate: Learning rate.
        scale: s.
        margin: m, in radians.
    """

    def __init__(self, steps: int = 200, rate: float = 1e-3, scale: float = 5.0, margin: float = 0.001) -> None:
        super().__init__(steps=steps, rate=rate, scale=scale, margin=margin)
        self.steps = int(positive("steps", steps))
        self.rate = positive("rate", rate)
        self.scale = positive("scale", scale)
        self.margin = checked_margin(margin)

    def fit(self, support: Tensor, support_labels: Tensor, way: int) -> Tensor:
        """Class vectors: ``(e, s, features), (e, s) -> (e, way, features)``."""
        support = normalize(support.detach(), dim=-1)
        weights = class_means(support, support_labels, way).clone().requires_grad_()
        optimiser = torch.optim.Adam([weights], lr=self.rate)
        right = membership(support_labels, way, torch.bool)
        with torch.enable_grad():
            for _ in range(self.steps):
                scores = arcmax(cosines(support, weights), right, self.scale, self.margin)
                # Adam treats each number by itself, so a sum over episodes lets each of them take its own steps.
                loss = cross_entropy(scores.flatten(0, 1), support_labels.flatten(), reduction="sum")
                optimiser.zero_grad()
                (loss / support_labels.shape[1]).backward(inputs=[weights])
                optimiser.step()
        return weights.detach()

    def rule(self, support: Tensor, support_labels: Tensor, way: int) -> LinearRule:
        """``(e, s, features), (e, s)`` -> s · cos with the fitted class vectors."""
        weights = self.scale * normalize(self.fit(support, support_labels, way), dim=-1)
        return LinearRule(weights, weights.new_zeros(len(weights), 1, way).double(), normalize=True)

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """Class vectors, their gradient and the state of Adam; there are at most as many classes as support images."""
        return 6 * 4 * support[0] * math.prod(support[1:])


def cosines(x: Tensor, weights: Tensor) -> Tensor:
    """``(..., n, features), (..., way, features) -> (..., n, way)``."""
    return normalize(x, dim=-1) @ normalize(weights, dim=-1).transpose(-2, -1)


def arcmax(cosines: Tensor, right: Tensor, scale: float, margin: float) -> Tensor:
    """s · cos θ_c, and s · cos(θ_c + m) for the right class if its cosine is positive: ``(..., n, way)``.

    Args:
        cosines: cos θ, ``(..., n, way)``.
        right: True for the right class of each row, ``(..., n, way)``.
        scale: s.
        margin: m.
    """
    sines = (1 - cosines.square()).clamp(min=1e-6).sqrt()  # the root has no gradient at 0
    moved = cosines * math.cos(margin) - sines * math.sin(margin)
    return scale * torch.where(right & (cosines > 0), moved, cosines)


def checked_margin(margin: float) -> float:
    """``margin``, if it is an angle from 0 to below a right angle."""
    if not 0 <= margin < math.pi / 2:
        raise UserError(f"a margin must be at least 0 and below π/2, got {margin!r}")
    return margin
