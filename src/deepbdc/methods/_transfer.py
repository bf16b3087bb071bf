"""What Good-Embed and STL DeepBDC share: ordinary training, then logistic regression for each task."""

from collections.abc import Mapping

from deepbdc.classifiers import Classifier, create_classifier
from deepbdc.embedding import Embedding
from deepbdc.methods.base import TransferMethod, by_shot


class LogisticTransfer(TransferMethod):
    """Ordinary training, then logistic regression on the normalised representations of each task.

    Args:
        embedding: From images to representations.
        shot: Chooses the C of `classifier`.
        C: Inverse strength of the penalty, one number or one for each number of shots.
    """

    def __init__(self, embedding: Embedding, shot: int, C: float | Mapping[int, float]) -> None:
        super().__init__(embedding, _logistic(C, shot), C=C)

    def classifier_for(self, shot: int) -> Classifier:
        """Logistic regression with the C for this number of shots."""
        return _logistic(self.settings["C"], shot)


def _logistic(C: float | Mapping[int, float], shot: int) -> Classifier:
    return create_classifier("logistic", C=by_shot(C, shot))
