"""Calibration: turns scores into probabilities, and likenesses into "none of these". It needs only the examples.

A held-out example stands for a new picture of its class.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, one_hot

from deepbdc.classifiers import Classifier, create_classifier
from deepbdc.own_images.familiarity import Familiarity, learn_familiarity, of_unequal_classes
from deepbdc.own_images.parts import Parts

# The usual scale of scores, for tasks in which no example can be held out. It was fitted to tasks of the validation
# classes of CIFAR-FS and Omniglot; benchmarks/own_images.py measures its calibration on their test classes.
USUAL_SCALE, FEW_CLASSES, SHOT_POWER, COSINE_POWER = 1.9, 1.3, -0.38, -0.6
REFERENCE_C = 10.0
"""The usual scale is that of logistic regression with this C."""
DEVIATION = 0.5
"""Prior standard deviation of the logarithm of the scale around that of the usual one."""
_FOLDS = 5


@dataclass(frozen=True)
class Confidence:
    """How scores and likenesses are turned into answers."""

    scale: float
    """Probabilities are the softmax of the scores times this number."""
    familiarity: Familiarity
    """Tells how unusual the likeness of a picture is among the pictures of the known classes."""


@torch.no_grad()
def learn_confidence(
    classifier: Classifier, examples: Tensor, labels: Tensor, way: int, parts: Parts | None = None
) -> Confidence:
    """Learn both from representations ``(s, features)`` with labels ``(s,)`` of ``way`` classes, and their parts."""
    # Learnt weights belong to the features themselves; every other classifier needs inner products only.
    learnt = any(True for _ in classifier.parameters()) if isinstance(classifier, nn.Module) else False
    owners = (parts or Parts.none_of(examples)).owners
    rows = torch.cat([examples, parts.vectors.to(examples)]) if parts else examples
    rows = rows.double() if learnt else in_their_span(rows)
    examples, parts = rows[: len(labels)], Parts(rows[len(labels) :], owners)
    held_out, scores = _held_out(classifier, examples, labels, way, parts)
    own_scores = classifier(*parts.beside(examples, labels), examples)
    scale = _scale(own_scores, examples, labels, way, scores, labels[held_out])
    probabilities = torch.softmax(scale * scores, dim=1).amax(dim=1)
    own = one_hot(labels, way).bool()
    all_scores = (scale * own_scores).masked_fill(own, -torch.inf)
    other = torch.softmax(all_scores, dim=1).amax(dim=1) if way > 1 else torch.zeros(len(labels))
    return Confidence(scale, learn_familiarity(examples, labels, way, held_out, probabilities, other.to(examples)))


def in_their_span(examples: Tensor) -> Tensor:
    """Coordinates ``(s, s)`` of examples ``(s, features)`` in their own span. All inner products stay the same."""
    values, vectors = torch.linalg.eigh((examples @ examples.T).double())
    coordinates: Tensor = vectors * values.clamp(min=0).sqrt()
    return coordinates


def class_directions(examples: Tensor, labels: Tensor, way: int) -> Tensor:
    """The direction of each class ``(way, features)``: the sum of its normalised examples, normalised again.

    Its length is not quite one if some classes have more examples than others, see `of_unequal_classes`.
    """
    members = one_hot(labels, way).to(examples.dtype)
    sums = members.T @ _normalised(examples)
    return _normalised(sums) * of_unequal_classes(sums, members.sum(dim=0)).unsqueeze(1)


def _normalised(vectors: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vectors, dim=-1)


def _scale(own_scores: Tensor, examples: Tensor, labels: Tensor, way: int, scores: Tensor, held_out: Tensor) -> float:
    """The most probable scale given ``scores`` of held-out examples with labels, with a prior around the usual one.

    ``own_scores`` are those of the examples themselves by the classifier that was fitted to them.
    """
    if way == 1:
        return 1.0
    # The usual scale is that of the reference classifier. The scores of other classifiers are larger or smaller.
    reference = create_classifier("logistic", C=REFERENCE_C, equal_classes=True)(examples, labels, examples)
    ratio = _margin(reference, labels) / _margin(own_scores, labels)
    usual = torch.tensor(usual_scale(examples, labels, way) * ratio).log()
    logs = _candidates(float(usual))
    loss = ((logs - usual) / DEVIATION).square() / 2
    for score, label in zip(scores, held_out, strict=True):
        loss -= log_softmax(logs.exp().unsqueeze(1) * score, dim=-1)[:, label]
    return float(logs[loss.argmin()].exp())


def _candidates(usual: float) -> Tensor:
    """Logarithms of scales to choose from ``(901,)``: from -3 to 6, or around the usual one if it is not well inside.

    The latter happens if a classifier does not normalise: its scores can be thousands of times as large.
    """
    logs = torch.linspace(-3, 6, 901, dtype=torch.float64)
    return logs if -2 <= usual <= 5 else logs + (usual - 1.5)


def usual_scale(examples: Tensor, labels: Tensor, way: int) -> float:
    """The average scale of tasks with as many classes, and as many and as similar examples, as this one."""
    unit = _normalised(examples)
    different = labels.unsqueeze(0) != labels.unsqueeze(1)
    cosine = float((unit @ unit.T)[different].mean().clamp(0.03, 1))
    classes = 1 + FEW_CLASSES / (way - 1)
    return USUAL_SCALE * classes * math.pow(len(labels) / way, SHOT_POWER) * math.pow(cosine, COSINE_POWER)


def _margin(scores: Tensor, labels: Tensor) -> float:
    """The average lead of the examples' scores for their own class over those for each class."""
    own = scores.gather(1, labels.unsqueeze(1))
    return max(float((own - scores).sum() / scores.numel()), 1e-6)


def held_out_scores(classifier: Classifier, examples: Tensor, labels: Tensor, way: int) -> tuple[Tensor, Tensor]:
    """Scores ``(n, way)`` and labels ``(n,)`` of held-out examples, each from a fit to the other folds."""
    held_out, scores = _held_out(classifier, examples, labels, way, Parts.none_of(examples))
    return scores, labels[held_out]


def _held_out(
    classifier: Classifier, examples: Tensor, labels: Tensor, way: int, parts: Parts
) -> tuple[Tensor, Tensor]:
    """Indices of held-out examples ``(n,)`` and their scores ``(n, way)``, each from a fit to the other folds.

    Each fold holds about the same share of every class, so that no class has an advantage. A class with a single
    example keeps it in every fit. The parts of an example are held out with it.
    """
    counts, ranks = torch.bincount(labels, minlength=way), _rank_in_class(labels)
    folds = min(max(int(counts.max()), 2), _FOLDS)
    scores, indices = [examples.new_empty(0, way)], [labels[:0]]
    for fold in range(folds):
        out = (ranks % folds == fold) & (counts[labels] > 1)
        if out.any():
            scores.append(classifier(*parts.beside(examples, labels, ~out), examples[out]))
            indices.append(out.nonzero()[:, 0])
    return torch.cat(indices), torch.cat(scores)


def _rank_in_class(labels: Tensor) -> Tensor:
    """For each example, the number of examples of its class that come before it."""
    members = one_hot(labels)
    return (members.cumsum(dim=0) * members).sum(dim=1) - 1
