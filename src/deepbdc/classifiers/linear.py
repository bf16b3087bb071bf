"""Linear classifiers: after the fit, the score of a class is one inner product."""

from dataclasses import dataclass

from torch import Tensor

from deepbdc.classifiers._products import linear_scores
from deepbdc.classifiers.base import Classifier


@dataclass(frozen=True, eq=False)
class LinearRule:
    """Scores = products with weights ``(e, way, features)`` + intercepts ``(e, 1, way)``, for e episodes."""

    weights: Tensor
    intercepts: Tensor
    normalize: bool
    """Whether representations are divided by their length (+ 1e-6) first."""

    def __call__(self, query: Tensor) -> Tensor:
        """``(e, q, features) -> (e, q, way)``."""
        return (linear_scores(query, self.weights, self.normalize) + self.intercepts).to(query.dtype)


class LinearClassifier(Classifier):
    """A classifier whose scores are those of its `rule`: a child writes only that. No gradient flows through it."""

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, features), (e, s), (e, q, features) -> (e, q, way)``."""
        return self.rule(support.detach(), support_labels, way)(query.detach())
