"""Chooses the classifier of a `FewShotClassifier` and fits it to the examples, as a linear rule that can be kept."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from deepbdc._registry import nearest
from deepbdc.classifiers import LogisticClassifier, create_classifier
from deepbdc.classifiers.linear import LinearRule
from deepbdc.errors import NotFinite, UserError
from deepbdc.methods.base import Method, shots_of
from deepbdc.own_images.confidence import Confidence

DEFAULT_CLASSIFIER = "logistic"


@dataclass(frozen=True, eq=False)
class Learnt:
    """What a `FewShotClassifier` learns from its examples: all that it needs for answers."""

    rule: LinearRule
    confidence: Confidence
    directions: Tensor
    """The direction of each class ``(way, features)``, for likenesses."""


NAMED: dict[str, dict[str, Any]] = {
    "logistic": {"equal_classes": True},
    "prototype": {"similarity": "cosine"},
    "softmax": {"normalize": True},
}
"""The classifiers that can be chosen by name, with their options: those that learn fixed weights for vectors."""


def named_classifier(name: str, C: float) -> Any:
    """The classifier that a `FewShotClassifier` means by a name. ``C`` is used for logistic regression only."""
    if name not in NAMED:
        why = " (an SVM votes and gives no probabilities)" if name == "svm" else ""
        raise UserError(f"no classifier that can be used here is called {name!r}{why}{nearest(str(name), list(NAMED))}")
    return create_classifier(name, **NAMED[name], **({"C": C} if name == "logistic" else {}))


def fit_run_classifier(method: Method, support: Tensor, labels: Tensor, way: int) -> tuple[Any, LinearRule]:
    """The classifier of a trained method for as many shots as there are examples per class, and what it learnt.

    Args:
        method: The trained method.
        support: Representations of the examples ``(s, features)``.
        labels: Their classes ``(s,)``, from 0 to ``way`` - 1.
        way: The number of classes.
    """
    classifier = method.classifier_for(shots_of(labels))
    try:
        rule = method.rule(support.unsqueeze(0), labels.unsqueeze(0), way)
        if isinstance(classifier, LogisticClassifier):  # people have more examples of some classes than of others
            classifier = classifier.for_equal_classes()
            rule = fit_rule(classifier, support, labels, way)
        return classifier, rule
    except NotFinite:
        raise
    except UserError as error:
        raise UserError(
            f"the classifier of this run, {type(classifier).__name__}, cannot be used here ({error}). Only classifiers "
            "that learn fixed weights for vectors can: prototype, logistic, softmax; but not an SVM, nor one that "
            "takes feature maps, adapts the network to each task, or is transductive. Give "
            'classifier="logistic" to use the network of the run with logistic regression.'
        ) from error


def fit_rule(classifier: Any, support: Tensor, labels: Tensor, way: int) -> LinearRule:
    """Fit a classifier to representations ``(s, features)`` with labels ``(s,)``. UserError if it is not linear."""
    if not hasattr(classifier, "rule"):
        raise UserError(f"{type(classifier).__name__} has no linear rule")
    rule: LinearRule = classifier.rule(support.unsqueeze(0), labels.unsqueeze(0), way)
    return rule
