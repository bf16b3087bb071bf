"""What a few-shot method is: an embedding of images and a classifier of representations."""

from collections.abc import Callable

from torch import Tensor, nn

from deepbdc.embedding import Embedding

Classify = Callable[[Tensor, Tensor, Tensor], Tensor]


class Method(nn.Module):
    """Embeds images once, then classifies queries by a few labelled examples."""

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
