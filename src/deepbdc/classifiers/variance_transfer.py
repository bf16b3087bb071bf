"""Class vectors that are fitted to the support images and to virtual ones, which vary like images of other classes."""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from deepbdc.classifiers._layers import applied
from deepbdc.classifiers._scale import Scale
from deepbdc.classifiers.base import Classifier, membership, positive, shots
from deepbdc.classifiers.linear import LinearRule
from deepbdc.classifiers.prototype import class_means
from deepbdc.errors import UserError


class VarianceTransferClassifier(Classifier):
    """Class vectors that take gradient steps on real and virtual representations (in the manner of MVT, ICML 2020).

    Representations x are divided by their length. With μ_c the mean of class c and v_i = x_i - μ_s the variation of a
    support image of class s, the virtual image of another class t is x̃ = μ_t + a(μ_s, μ_t) ⊙ v_i. The factors a of the
    channels are 2 · sigmoid of a small network; its last layer starts from 0, so that a starts from 1. The class
    vectors w_c start from μ_c and take J steps w ← w - α ∇L(w), where
    L = (1 - β) · mean cross-entropy of τ xᵀw over the support set + β · the same over the virtual images. The gradient
    is written out, so many episodes take their steps at once and the result can be differentiated. A query has the
    scores τ qᵀw_c with a learnt τ.

    An image that is the only one of its class does not vary, and makes no virtual images. With one shot there are none.

    Args:
        features: Numbers in a representation.
        steps: J.
        rate: α.
        virtual: β, the weight of the virtual images.
        hidden: Width of the small network.
        scale: Start of τ, the parameter group ``scale``. The small network is the group ``transfer``.
    """

    named_parameter_groups = {"scale": ("scale.scale",), "transfer": ("transfer",)}  # noqa: RUF012

    def __init__(
        self,
        features: int,
        steps: int = 5,
        rate: float = 0.1,
        virtual: float = 0.5,
        hidden: int = 64,
        scale: float = 10.0,
    ) -> None:
        super().__init__(features=features, steps=steps, rate=rate, virtual=virtual, hidden=hidden, scale=scale)
        if not 0 <= virtual < 1:
            raise UserError(f"virtual must be at least 0 and below 1, got {virtual}")
        self.steps = int(positive("steps", steps))
        self.rate = positive("rate", rate)
        self.virtual = virtual
        self.scale = Scale(positive("scale", scale))
        last = nn.Linear(int(positive("hidden", hidden)), features)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.transfer = nn.Sequential(nn.Linear(2 * features, hidden), nn.ReLU(), last)

    def factors(self, means: Tensor) -> Tensor:
        """The factors of the channels, from class s to class t: ``(e, way, d) -> (e, way of s, way of t, d)``."""
        way = means.shape[1]
        source, target = means.unsqueeze(2).expand(-1, -1, way, -1), means.unsqueeze(1).expand(-1, way, -1, -1)
        raw: Tensor = applied(self.transfer, torch.cat([source, target], dim=-1))
        return 2 * torch.sigmoid(raw)

    def virtual_images(self, support: Tensor, labels: Tensor, way: int) -> tuple[Tensor, Tensor]:
        """Virtual images of all classes, ``(e, s, way, d)``, and which of them exist, ``(e, s, way)``.

        Args:
            support: Normalised representations, ``(e, s, d)``.
            labels: Their classes, ``(e, s)``.
            way: Number of classes.
        """
        means = class_means(support, labels, way)
        episodes = torch.arange(len(labels), device=labels.device).unsqueeze(-1)
        variations = support - means[episodes, labels]
        factors = self.factors(means)[episodes, labels]  # (e, s, way, d)
        made = means.unsqueeze(1) + factors * variations.unsqueeze(2)
        varies = shots(labels, way).gather(1, labels) > 1
        return made, varies.unsqueeze(-1) & ~membership(labels, way, torch.bool)

    def fit(self, support: Tensor, support_labels: Tensor, way: int) -> Tensor:
        """Class vectors after the steps: ``(e, s, d), (e, s) -> (e, way, d)``."""
        support = normalize(support, dim=-1)
        made, exists = self.virtual_images(support, support_labels, way)
        images = torch.cat([support, made.flatten(1, 2)], dim=1)
        of = torch.arange(way, device=support.device).repeat(support.shape[1]).expand(len(support), -1)
        targets = membership(torch.cat([support_labels, of], dim=1), way, support.dtype)
        weights = self._weights(support_labels, exists, support.dtype)
        vectors = class_means(support, support_labels, way)
        for _ in range(self.steps):
            errors = torch.softmax(self.scale(images @ vectors.transpose(-2, -1)), dim=-1) - targets
            gradient = self.scale((weights.unsqueeze(-1) * errors).transpose(-2, -1) @ images)
            vectors = vectors - self.rate * gradient
        return vectors

    def _weights(self, labels: Tensor, exists: Tensor, dtype: torch.dtype) -> Tensor:
        """The weight of each image in the loss, real ones before virtual ones, ``(e, s + s · way)``."""
        present = exists.flatten(1).to(dtype)
        count = present.sum(dim=1, keepdim=True)
        share = self.virtual * (count > 0).to(dtype)
        real = (1 - share) / labels.shape[1]
        return torch.cat([real.expand(labels.shape), share * present / count.clamp(min=1)], dim=1)

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, features), (e, s), (e, q, features) -> (e, q, way)``."""
        vectors = self.fit(support, support_labels, way)
        scores: Tensor = self.scale(normalize(query, dim=-1) @ vectors.transpose(-2, -1))
        return scores

    def rule(self, support: Tensor, support_labels: Tensor, way: int) -> LinearRule:
        """``(e, s, features), (e, s)`` -> the class vectors after the steps."""
        vectors = self.scale.factor * self.fit(support, support_labels, way).detach()
        return LinearRule(vectors, vectors.new_zeros(len(vectors), 1, way).double(), normalize=True)

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """The virtual images and the inputs of the small network; a task has at most as many classes as images."""
        return 4 * support[1] * 8 * support[0] ** 2
