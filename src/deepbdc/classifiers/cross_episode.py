"""The nearest prototype, after attention has adapted all images to the support set of an episode."""

import torch
from torch import Tensor, nn

from deepbdc.classifiers._attention import attend
from deepbdc.classifiers._layers import applied
from deepbdc.classifiers.base import Classifier, positive
from deepbdc.classifiers.prototype import class_means, similarities


class CrossEpisodeClassifier(Classifier):
    """Scores are distances of adapted queries to the means of adapted support images (MELR: Fei et al., ICLR 2021).

    Every image x of an episode reads from a support set S: x' = x + W_v · attend(W_q x, W_k S, S), which is
    x + softmax(W_q x (W_k S)ᵀ / √d) W_v S. The score is s_c(q) = -‖q' - p'_c‖² / T with p'_c the mean of the adapted
    support images of class c. `score` reads from the support set of the episode itself; in training MELR reads from
    that of another episode with the same classes.

    W_q and W_k start from N(0, 1/d) and W_v from 0, so that an untrained classifier is the nearest prototype.

    Args:
        features: Numbers in a representation, d.
        temperature: T.
    """

    named_parameter_groups = {"attention": ("query", "key", "value")}  # noqa: RUF012

    def __init__(self, features: int, temperature: float = 64.0) -> None:
        super().__init__(features=features, temperature=temperature)
        self.temperature = positive("temperature", temperature)
        self.query, self.key, self.value = (nn.Linear(features, features, bias=False) for _ in range(3))
        for layer in (self.query, self.key):
            nn.init.normal_(layer.weight, std=features**-0.5)
        nn.init.zeros_(self.value.weight)

    def adapted(self, images: Tensor, read_from: Tensor) -> Tensor:
        """Images ``(..., n, d)`` that have read from a support set ``(..., s, d)`` -> ``(..., n, d)``."""
        query, key, value = (
            applied(self.query, images),
            applied(self.key, read_from),
            applied(self.value, read_from),
        )
        return images + attend(query, key, value)

    def adapted_scores(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """Scores of images that are adapted already: ``(e, s, d), (e, s), (e, q, d) -> (e, q, way)``."""
        return similarities(query, class_means(support, support_labels, way), "euclidean") / self.temperature

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, features), (e, s), (e, q, features) -> (e, q, way)``."""
        adapted = self.adapted(torch.cat([support, query], dim=1), support)
        return self.adapted_scores(*_split(adapted, support.shape[1], support_labels), way)

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """The vectors of the attention, and its weights."""
        images = support[0] + query[0]
        return 4 * (4 * images * support[1] + 2 * support[0] * support[1] + 2 * images * support[0])


def _split(images: Tensor, count: int, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return images[:, :count], labels, images[:, count:]
