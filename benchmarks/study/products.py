"""Few-shot classifiers on inner products.

The linear classifiers of this study need only the inner products of their vectors. The products of all images of a
split are computed once; each episode, with any number of shots and any classifier, then selects the ones it needs. So
hundreds of comparisons on the same episodes are cheap. tests/test_bdc_study.py checks that the accuracies are those of
`deepbdc.evaluate`.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepbdc.classifiers import create_classifier
from deepbdc.classifiers.base import membership
from deepbdc.classifiers.logistic import LogisticClassifier
from deepbdc.episodes import Episodes

Score = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Maps products within the support ``(e, s, s)``, products of queries and support ``(e, q, s)``, squared lengths of the
queries ``(e, q)`` and support labels ``(e, s)`` to scores ``(e, q, way)``."""

NORM_EPSILON = 1e-6
_NUMBERS_AT_A_TIME = 2**22


def products_of(vectors: Tensor, mean: Tensor | None = None) -> Tensor:
    """Inner products of every two vectors ``(n, f) -> (n, n)``, after ``mean`` is subtracted from the vectors."""
    vectors = vectors if mean is None else vectors - mean
    return vectors @ vectors.T


def normalised(products: Tensor) -> Tensor:
    """The products that the same vectors have when each is divided by its length."""
    factors = 1 / (products.diagonal().clamp(min=0).sqrt() + NORM_EPSILON)
    return products * factors * factors.unsqueeze(-1)


def right_answers(products: Tensor, episodes: Episodes, score: Score) -> NDArray[np.uint16]:
    """The number of correctly classified queries of each episode."""
    counts = np.zeros(len(episodes), dtype=np.uint16)
    squares = products.diagonal()
    first = episodes[0]
    most = max(1, _NUMBERS_AT_A_TIME // ((len(first.support) + len(first.query)) * len(first.support)))
    for start in range(0, len(episodes), most):
        batch = [episodes[place] for place in range(start, min(start + most, len(episodes)))]
        support, query, labels, truth = (
            torch.from_numpy(np.stack([getattr(episode, name) for episode in batch]))
            for name in ("support", "query", "support_labels", "query_labels")
        )
        within = products[support.unsqueeze(-1), support.unsqueeze(-2)]
        across = products[query.unsqueeze(-1), support.unsqueeze(-2)]
        found = score(within, across, squares[query], labels).argmax(dim=-1)
        counts[start : start + most] = (found == truth).sum(dim=-1).numpy()
    return counts


def prototype(similarity: str) -> Score:
    """Score by the nearest class mean: ``"euclidean"``, ``"inner_product"`` or ``"cosine"``."""

    def score(within: Tensor, across: Tensor, squares: Tensor, labels: Tensor) -> Tensor:
        members = membership(labels, int(labels.max()) + 1, within.dtype)
        weights = members / members.sum(dim=-2, keepdim=True)  # (e, s, way)
        inner = across @ weights
        lengths = (weights * (within @ weights)).sum(dim=-2).unsqueeze(-2)  # squared lengths of the means, (e, 1, way)
        if similarity == "inner_product":
            return inner
        if similarity == "euclidean":
            return 2 * inner - lengths
        return inner / lengths.clamp(min=1e-30).sqrt()  # the length of the query is the same for all classes

    return score


def logistic(C: float) -> Score:
    """Score by logistic regression on normalised vectors."""
    classifier = create_classifier("logistic", C=C)
    assert isinstance(classifier, LogisticClassifier)

    def score(within: Tensor, across: Tensor, squares: Tensor, labels: Tensor) -> Tensor:
        within, across = _normalised(within, across, squares)
        coefficients, intercept = classifier.fit_products(within, labels, int(labels.max()) + 1)
        return across @ coefficients + intercept - within.mean(dim=1, keepdim=True) @ coefficients

    return score


def svm(C: float = 1.0) -> Score:
    """Score by LIBSVM on normalised vectors, without standardising the features."""
    from sklearn.svm import SVC

    def score(within: Tensor, across: Tensor, squares: Tensor, labels: Tensor) -> Tensor:
        within, across = _normalised(within, across, squares)
        machines = [
            SVC(kernel="precomputed", C=C).fit(*known).decision_function(asked)
            for *known, asked in zip(within.numpy(), labels.numpy(), across.numpy(), strict=True)
        ]
        return torch.from_numpy(np.stack(machines))

    return score


def _normalised(within: Tensor, across: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    own = 1 / (within.diagonal(dim1=-2, dim2=-1).clamp(min=0).double().sqrt() + NORM_EPSILON)
    asked = 1 / (squares.clamp(min=0).double().sqrt() + NORM_EPSILON)
    within = within.double() * own.unsqueeze(-1) * own.unsqueeze(-2)
    return within, across.double() * asked.unsqueeze(-1) * own.unsqueeze(-2)
