"""How sure to be: from scores to probabilities, and from similarities to "none of these". Both from the examples alone.

An example that is held out plays a new picture of its class; one whose whole class is held out, a picture of no class.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, one_hot

from deepbdc.classifiers import Classifier, create_classifier

# The usual scale of scores, where there is nothing to hold out. It was fitted to tasks of the validation classes of
# CIFAR-FS and Omniglot; benchmarks/own_images.py measures on their test classes how well it does.
USUAL_SCALE, FEW_CLASSES, SHOT_POWER, COSINE_POWER = 1.9, 1.3, -0.38, -0.6
REFERENCE_C = 10.0
"""The classifier it is for: logistic regression with this C."""
DEVIATION = 0.5
"""How far, in powers of e, the scale of a task is expected to be from the usual one."""
ONE_SIDED_MARGINS = (0.5, 1.5)
"""Deviations from the mean to the threshold, where only pictures of no class can be played, or only those of one."""
NOTHING_KNOWN = 0.14
"""The threshold for a single picture of a single class, which teaches nothing about others."""
_FOLDS = 5


@dataclass(frozen=True)
class Confidence:
    """What the examples teach about sureness."""

    scale: float
    """Probabilities are the softmax of the scores times this."""
    threshold: float
    """A picture less similar than this to every class is none of them."""


def learn_confidence(classifier: Classifier, examples: Tensor, labels: Tensor, way: int) -> Confidence:
    """Learn from representations ``(s, features)`` with labels ``(s,)`` of ``way`` classes."""
    examples = in_their_span(examples)
    return Confidence(_scale(classifier, examples, labels, way), _threshold(examples, labels, way))


def in_their_span(examples: Tensor) -> Tensor:
    """The same examples ``(s, features)`` in their own span, ``(s, s)``: all inner products are as they were."""
    values, vectors = torch.linalg.eigh((examples @ examples.T).double())
    coordinates: Tensor = vectors * values.clamp(min=0).sqrt()
    return coordinates


def class_directions(examples: Tensor, labels: Tensor, way: int) -> Tensor:
    """The direction of each class: the sum of its normalised examples, at length 1, ``(way, features)``."""
    sums = one_hot(labels, way).to(examples.dtype).T @ _normalised(examples)
    return _normalised(sums)


def _normalised(vectors: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vectors, dim=-1)


def _scale(classifier: Classifier, examples: Tensor, labels: Tensor, way: int) -> float:
    """The scale under which held-out examples are most probable, drawn towards the usual one."""
    if way == 1:
        return 1.0
    logs = torch.linspace(-3, 6, 901, dtype=torch.float64)
    # The usual scale is that of the reference; other classifiers have larger or smaller scores.
    ratio = _margin(create_classifier("logistic", C=REFERENCE_C), examples, labels) / _margin(
        classifier, examples, labels
    )
    usual = torch.tensor(usual_scale(examples, labels, way) * ratio).log()
    surprise = ((logs - usual) / DEVIATION).square() / 2
    scores, held_out = held_out_scores(classifier, examples, labels, way)
    for score, label in zip(scores, held_out, strict=True):
        surprise -= log_softmax(logs.exp().unsqueeze(1) * score, dim=-1)[:, label]
    return float(logs[surprise.argmin()].exp())


def usual_scale(examples: Tensor, labels: Tensor, way: int) -> float:
    """What the scale is on average for so many classes and examples, as similar to each other as these are."""
    unit = _normalised(examples)
    different = labels.unsqueeze(0) != labels.unsqueeze(1)
    cosine = float((unit @ unit.T)[different].mean().clamp(0.03, 1))
    classes = 1 + FEW_CLASSES / (way - 1)
    return USUAL_SCALE * classes * math.pow(len(labels) / way, SHOT_POWER) * math.pow(cosine, COSINE_POWER)


def _margin(classifier: Classifier, examples: Tensor, labels: Tensor) -> float:
    """How far, on average, the scores of examples are ahead in their own class."""
    scores = classifier(examples, labels, examples)
    own = scores.gather(1, labels.unsqueeze(1))
    return max(float((own - scores).sum() / scores.numel()), 1e-6)


def held_out_scores(classifier: Classifier, examples: Tensor, labels: Tensor, way: int) -> tuple[Tensor, Tensor]:
    """Scores ``(n, way)`` and labels ``(n,)`` of examples that the classifier was fitted without.

    Every class loses about as many at a time, so that none gets the better of another; one with a single example keeps
    it.
    """
    counts, ranks = torch.bincount(labels, minlength=way), _rank_in_class(labels)
    folds = min(max(int(counts.max()), 2), _FOLDS)
    scores, true = [examples.new_empty(0, way)], [labels[:0]]
    for fold in range(folds):
        out = (ranks % folds == fold) & (counts[labels] > 1)
        if out.any():
            scores.append(classifier(examples[~out], labels[~out], examples[out]))
            true.append(labels[out])
    return torch.cat(scores), torch.cat(true)


def _rank_in_class(labels: Tensor) -> Tensor:
    """How many examples of the same class come before each."""
    members = one_hot(labels)
    return (members.cumsum(dim=0) * members).sum(dim=1) - 1


def _threshold(examples: Tensor, labels: Tensor, way: int) -> float:
    """Between the similarities of new pictures of the classes and of pictures of none."""
    inside, outside = simulated_similarities(examples, labels, way)
    if len(inside) and len(outside):
        return between(inside, outside)
    above, below = ONE_SIDED_MARGINS
    if len(outside):  # one picture a class
        return float(outside.mean()) + above * _deviation(outside)
    if len(inside):  # one class
        return float(inside.mean()) - below * _deviation(inside)
    return NOTHING_KNOWN


def simulated_similarities(examples: Tensor, labels: Tensor, way: int) -> tuple[Tensor, Tensor]:
    """Cosines to the nearest class of examples held out of their class, and of examples whose class is held out."""
    unit = _normalised(examples)
    members = one_hot(labels, way).to(unit.dtype)
    sums, counts = members.T @ unit, members.sum(dim=0)
    cosines = unit @ _normalised(sums).T
    own = members.bool()
    rest = sums[labels] - unit  # what is left of the own class
    with_rest = torch.where(own, (unit * _normalised(rest)).sum(dim=1, keepdim=True), cosines)
    inside = with_rest.max(dim=1).values[counts[labels] > 1]
    outside = cosines.masked_fill(own, -2).max(dim=1).values if way > 1 else cosines.new_empty(0)
    return inside, outside


def between(inside: Tensor, outside: Tensor) -> float:
    """The number as many deviations below the mean of the one as above that of the other."""
    low, high = float(outside.mean()), float(inside.mean())
    spread_low, spread_high = _deviation(outside), _deviation(inside)
    return low + (high - low) * spread_low / (spread_low + spread_high)


def _deviation(values: Tensor) -> float:
    return max(float(values.std(correction=0)), 1e-3)
