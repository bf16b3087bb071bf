"""The nearest prototype, after self-attention has adapted the prototypes of a task to each other."""

from torch import Tensor

from deepbdc.classifiers._attention import SelfAttention
from deepbdc.classifiers.base import Classifier, positive
from deepbdc.classifiers.linear import LinearRule
from deepbdc.classifiers.prototype import class_means, linear_rule, similarities
from deepbdc.errors import UserError


class AdaptedPrototypeClassifier(Classifier):
    """Scores are distances to adapted class means (FEAT: Ye et al., CVPR 2020).

    The prototypes P ``(way, features)`` are the means of the support images, and P' = SelfAttention(P). The score is
    s_c(q) = -‖q - p'_c‖² / T. Queries are not adapted.

    Args:
        features: Numbers in a representation.
        temperature: T.
        attention_dropout: Probability of dropout on the attention weights, in training mode.
        dropout: Probability of dropout on the output of the attention, in training mode.
    """

    def __init__(
        self, features: int, temperature: float = 64.0, attention_dropout: float = 0.1, dropout: float = 0.5
    ) -> None:
        super().__init__(
            features=features, temperature=temperature, attention_dropout=attention_dropout, dropout=dropout
        )
        for name, value in (("attention_dropout", attention_dropout), ("dropout", dropout)):
            if not 0 <= value < 1:
                raise UserError(f"{name} must be at least 0 and below 1, got {value}")
        self.temperature = positive("temperature", temperature)
        self.attention = SelfAttention(features, attention_dropout, dropout)

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, features), (e, s), (e, q, features) -> (e, q, way)``."""
        prototypes = self.prototypes(support, support_labels, way)
        return similarities(query, prototypes, "euclidean") / self.temperature

    def prototypes(self, support: Tensor, support_labels: Tensor, way: int) -> Tensor:
        """The adapted prototypes: ``(e, s, features), (e, s) -> (e, way, features)``."""
        adapted: Tensor = self.attention(class_means(support, support_labels, way))
        return adapted

    def rule(self, support: Tensor, support_labels: Tensor, way: int) -> LinearRule:
        """``(e, s, features), (e, s)`` -> the rule of the adapted prototypes."""
        prototypes = self.prototypes(support, support_labels, way).detach()
        return linear_rule(prototypes, "euclidean", 1 / self.temperature)

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """The vectors of the attention; there are at most as many classes as support images."""
        return 8 * 4 * support[0] * (support[1] + support[0])
