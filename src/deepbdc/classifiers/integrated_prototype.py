"""The nearest prototype of images that are represented by several views, which attention fuses first."""

from torch import Tensor

from deepbdc._modes import separate_random_numbers
from deepbdc.classifiers._attention import MultiHeadAttention
from deepbdc.classifiers.base import Classifier, positive
from deepbdc.classifiers.prototype import class_means, similarities
from deepbdc.errors import UserError


class IntegratedPrototypeClassifier(Classifier):
    """Scores are distances to class means of fused views (IEPT: Zhang et al., ICLR 2021).

    An image is represented by V views beside each other, ``(V · features,)``. Attention adapts its views to each other,
    and the adapted views beside each other are its vector z. With p_c the mean of a class, s_c(q) = -‖z_q - p_c‖² / T.

    Args:
        features: Numbers in the representation of one view.
        views: V.
        heads: Heads of the attention, each as wide as a view.
        dropout: Probability of dropout on the output of the attention, in training mode.
        temperature: T.
    """

    def __init__(
        self, features: int, views: int = 4, heads: int = 10, dropout: float = 0.5, temperature: float = 512.0
    ) -> None:
        super().__init__(features=features, views=views, heads=heads, dropout=dropout, temperature=temperature)
        if views < 1 or heads < 1:
            raise UserError(f"views and heads must be at least 1, got {views} and {heads}")
        if not 0 <= dropout < 1:
            raise UserError(f"dropout must be at least 0 and below 1, got {dropout}")
        self.views, self.temperature = views, positive("temperature", temperature)
        with separate_random_numbers():
            self.attention = MultiHeadAttention(features, heads, dropout)

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, V · features), (e, s), (e, q, V · features) -> (e, q, way)``."""
        prototypes = class_means(self.fused(support), support_labels, way)
        return similarities(self.fused(query), prototypes, "euclidean") / self.temperature

    def fused(self, rows: Tensor) -> Tensor:
        """Adapt the views of each image to each other, ``(..., V · features) -> (..., V · features)``."""
        adapted: Tensor = self.attention(rows.unflatten(-1, (self.views, -1))).flatten(-2)
        return adapted

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """Queries, keys, values and what is read, of each head, for all views."""
        heads: int = self.settings["heads"]
        return 4 * (support[0] + query[0]) * support[1] * (4 * heads + 4)
