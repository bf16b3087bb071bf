"""Few-shot classifiers: (support, support labels, query) → scores, for any leading batch of episodes."""

from typing import Any

from deepbdc.classifiers.base import Classifier, classifiers
from deepbdc.classifiers.linear import LinearRule
from deepbdc.classifiers.logistic import LogisticClassifier, logistic
from deepbdc.classifiers.prototype import PrototypeClassifier, prototype
from deepbdc.classifiers.softmax import SoftmaxClassifier, softmax
from deepbdc.classifiers.svm import SVMClassifier, svm

__all__ = [
    "Classifier",
    "LinearRule",
    "LogisticClassifier",
    "PrototypeClassifier",
    "SVMClassifier",
    "SoftmaxClassifier",
    "create_classifier",
    "list_classifiers",
    "logistic",
    "prototype",
    "softmax",
    "svm",
]


def list_classifiers() -> list[str]:
    """Names that `create_classifier` knows."""
    return classifiers.names()


def create_classifier(name: str, **options: Any) -> Classifier:
    """A classifier by its name: a callable from support, support labels and query to scores ``(..., query, way)``.

    >>> import torch
    >>> classifier = create_classifier("prototype", similarity="euclidean")
    >>> support, labels = torch.tensor([[0.0, 0.0], [0.0, 2.0], [4.0, 1.0]]), torch.tensor([0, 0, 1])
    >>> classifier(support, labels, torch.tensor([[1.0, 1.0]]))
    tensor([[-1., -9.]])
    """
    return classifiers.create(name, **options)
