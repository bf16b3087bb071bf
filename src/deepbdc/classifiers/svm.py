"""The linear support vector machine, computed from the inner products of the features."""

import numpy as np
import torch
from torch import Tensor

from deepbdc.classifiers._products import NORM_EPSILON
from deepbdc.classifiers.base import Classifier, classifiers, lengths, positive
from deepbdc.errors import UserError

BLOCK = 8192  # features standardised at a time: bounds the temporary copies


class SVMClassifier(Classifier):
    """Linear LIBSVM on L2-normalised, then standardised features (Xie et al., CVPR 2022, supplement S1).

    Mean and deviation of each feature are those of the support set of the episode. Scores are those of scikit-learn's
    ``SVC(kernel="linear", C=C).decision_function``: one-against-one votes, with ties broken by confidence.
    """

    def __init__(self, C: float, normalize: bool, standardize: bool) -> None:
        super().__init__(C=C, normalize=normalize, standardize=standardize)
        self.C = positive("C", C)
        self.normalize = normalize
        self.standardize = standardize

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, features), (e, s), (e, q, features) -> (e, q, way)``."""
        if way < 2:
            raise UserError("an SVM separates classes: it needs at least 2 in an episode, got 1")
        scores = query.new_empty(query.shape[0], query.shape[1], way)
        for episode in range(len(scores)):
            within, across = self._products(support[episode].detach(), query[episode].detach())
            decisions = _decisions(
                within.cpu().numpy(), support_labels[episode].cpu().numpy(), across.cpu().numpy(), self.C
            )
            scores[episode] = torch.from_numpy(decisions).to(scores)
        return scores

    def _products(self, support: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        """Products of the prepared features: ``(s, features), (q, features) -> (s, s), (q, s)``, float64."""
        scale = torch.cat([lengths(support), lengths(query)]).double().unsqueeze(-1) + NORM_EPSILON
        count = support.shape[0]
        within = torch.zeros(count, count, dtype=torch.float64, device=support.device)
        across = torch.zeros(query.shape[0], count, dtype=torch.float64, device=support.device)
        for start in range(0, support.shape[1], BLOCK):
            block = slice(start, start + BLOCK)
            features = torch.cat([support[:, block], query[:, block]]).double()
            if self.normalize:
                features /= scale
            if self.standardize:
                features = _standardised(features, count)
            within.addmm_(features[:count], features[:count].T)
            across.addmm_(features[count:], features[:count].T)
        return within, across


@classifiers.register
def svm(C: float = 1.0, normalize: bool = True, standardize: bool = True) -> SVMClassifier:
    """The linear support vector machine.

    Args:
        C: Weight of the losses against the penalty, as in scikit-learn.
        normalize: Divide each representation by its length (+ 1e-6) first.
        standardize: Then subtract the mean of each feature over the support set and divide by its deviation.
    """
    return SVMClassifier(C, normalize, standardize)


def _decisions(within: np.ndarray, labels: np.ndarray, across: np.ndarray, C: float) -> np.ndarray:
    """Decision values ``(q, way)`` of an SVM that is trained on one episode."""
    from sklearn.svm import SVC
    from threadpoolctl import threadpool_limits

    if len(across) == 0:
        return np.empty((0, int(labels.max()) + 1))
    with threadpool_limits(1):
        decisions = SVC(kernel="precomputed", C=C).fit(within, labels).decision_function(across)
    return np.stack([-decisions, decisions], axis=-1) if decisions.ndim == 1 else decisions


def _standardised(features: Tensor, count: int) -> Tensor:
    """Standardise ``(n, f)`` by the mean and deviation of the first ``count`` images; centre constant ones."""
    mean = features[:count].mean(dim=0)
    variance = (features[:count] - mean).square().mean(dim=0)
    # The variance of a constant feature consists of rounding errors; dividing by it would only amplify them.
    epsilon = torch.finfo(features.dtype).eps
    constant = variance <= count * epsilon * variance + (count * mean * epsilon).square()
    return (features - mean) / torch.where(constant, 1, variance.sqrt())
