"""What a few-shot method is: an embedding, a classifier of representations, and the stages that train them."""

from collections.abc import Callable, Mapping
from typing import ClassVar

from torch import Tensor, nn

from deepbdc._registry import Registry
from deepbdc.classifiers import Classifier, create_classifier
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError

Classify = Callable[[Tensor, Tensor, Tensor], Tensor]


class Method(nn.Module):
    """Embeds images once, then classifies queries by a few labelled examples."""

    stages: ClassVar[tuple[str, ...]] = ("pretrain", "distill", "meta")
    """The stages that can train it."""

    def __init__(self, embedding: Embedding, classifier: Classify) -> None:
        super().__init__()
        self.embedding = embedding
        self.classifier = classifier
        # A classifier may hold a network (prototypes that pool maps): it is then a part of this one.
        self.classifier_pool: nn.Module | None = getattr(classifier, "pool", None)

    def embed(self, images: Tensor) -> Tensor:
        """Representations of images: ``(n, 3, h, w) -> (n, ...)``."""
        representations: Tensor = self.embedding(images)
        return representations

    def classify(self, support: Tensor, support_labels: Tensor, query: Tensor) -> Tensor:
        """Scores ``(..., query, way)`` from representations of support and query images and the labels of the first."""
        return self.classifier(support, support_labels, query)

    def classifier_for(self, shot: int) -> Classify:
        """The classifier for tasks of so many shots: by default the same for all."""
        return self.classifier

    def for_shot(self, shot: int) -> "Method":
        """The method for tasks of so many shots; it shares this one's embedding."""
        return Method(self.embedding, self.classifier_for(shot))


class TransferMethod(Method):
    """A method that is trained without episodes, and then fits a logistic regression to each task."""

    stages = ("pretrain", "distill")

    def __init__(self, embedding: Embedding, shot: int, C: float | Mapping[int, float]) -> None:
        self.C = C  # classifier_for needs it
        super().__init__(embedding, self.classifier_for(shot))

    def classifier_for(self, shot: int) -> Classifier:
        """Logistic regression on normalised representations, with the strength for this number of shots."""
        return create_classifier("logistic", C=by_shot(self.C, shot))


methods: Registry[Method] = Registry("method")


def by_shot(values: float | Mapping[int, float], shot: int) -> float:
    """The value for a number of shots: of the largest number given that is not larger, else of the smallest.

    >>> [by_shot({1: 0.1, 5: 2.0}, shot) for shot in (1, 3, 5, 10)]
    [0.1, 0.1, 2.0, 2.0]
    """
    if not isinstance(values, Mapping):
        return float(values)
    if not values:
        raise UserError("a mapping from shots to values must not be empty")
    not_larger = [given for given in values if given <= shot]
    return float(values[max(not_larger) if not_larger else min(values)])
