"""What Meta DeepBDC and CovNet share: prototypes that are compared by a similarity which depends on the shots."""

from typing import Any

from deepbdc.classifiers.prototype import PrototypeClassifier, Similarity, prototype
from deepbdc.embedding import Embedding
from deepbdc.methods.base import EpisodicMethod


class PrototypesByShot(EpisodicMethod):
    """Prototypes, compared by the inner product with one shot and by minus the squared distance with more.

    Args:
        embedding: From images to representations.
        shot: Support images per class that `classifier` is made for; `classify` looks at the task itself.
        similarity: One for all numbers of shots; None chooses by their number.
        options: Other options of the prototype classifier.
    """

    classifier: PrototypeClassifier

    def __init__(self, embedding: Embedding, shot: int, similarity: Similarity | None, **options: Any) -> None:
        classifier = prototype(similarity or usual_similarity(shot), **options)
        super().__init__(embedding, classifier, similarity=similarity)

    def classifier_for(self, shot: int) -> PrototypeClassifier:
        """Prototypes with the similarity for this number of shots, and the parameters of `classifier`."""
        return self.classifier.with_similarity(self.settings["similarity"] or usual_similarity(shot))


def usual_similarity(shot: int) -> Similarity:
    """The similarity that the released code of DeepBDC has for a number of shots."""
    return "inner_product" if shot == 1 else "euclidean"
