"""How familiar a picture looks: the share of the known classes' pictures that would look less like the examples.

The likeness of a picture is its cosine similarity to the nearest class, plus a little of the probability of its most
likely class. A held-out example stands for a new picture of its class, so that the likenesses of the held-out examples
tell which ones to expect. With few examples they tell little, and a prior that was learnt on other classes does the
rest.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize, one_hot

PROBABILITY_WEIGHT = 0.1
"""What the probability of the most likely class adds to the similarity."""
# The prior, learnt on tasks of the validation classes of CUB, Cars and CIFAR-FS: the likeness of a new picture is this
# much above the similarity of the examples to the nearest other class, with this standard deviation.
GAP, SPREAD = 0.14, 0.075
LONE_MEAN = 0.65
"""The likeness to expect if there is only one class, so that there is no other one to compare with."""
MEAN_WEIGHT, SPREAD_WEIGHT = 1, 5
"""How many held-out examples the prior is worth."""


@dataclass(frozen=True)
class Familiarity:
    """The likenesses to expect of pictures of the known classes: a t-distribution."""

    mean: float
    spread: float
    freedom: int
    others: tuple[float, ...] = ()
    """The likenesses of the examples to the classes other than their own: those of pictures of no class."""

    def of(self, likeness: Any) -> NDArray[np.float64]:
        """The share of the pictures of the known classes that have a lower likeness, for each number."""
        return t_distribution((np.asarray(likeness, dtype=np.float64) - self.mean) / self.spread, self.freedom)

    def likeness_at(self, rate: float) -> float:
        """The likeness below which a share ``rate`` of the pictures of the known classes lies."""
        low, high = self.mean - 1e4 * self.spread, self.mean + 1e4 * self.spread
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if float(self.of(middle)) < rate else (low, middle)
        return (low + high) / 2

    def others_rejected(self, rate: float) -> float | None:
        """The share of the examples that would be rejected at this rate if their class were not known."""
        return float((self.of(self.others) < rate).mean()) if self.others else None


def t_distribution(values: NDArray[np.float64], freedom: int) -> NDArray[np.float64]:
    """The share of Student's t-distribution below each value, without scipy, which takes long to import.

    For whole degrees of freedom it is a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4). More than 300 of them
    make no difference.

    >>> t_distribution(np.array([-2.015, 0.0]), 5).round(3).tolist()
    [0.05, 0.5]
    """
    freedom = min(freedom, 300)
    angle = np.arctan(values / math.sqrt(freedom))
    sine, cosine = np.sin(angle), np.cos(angle)
    odd = freedom % 2
    total, term = np.zeros_like(angle), np.ones_like(angle) * (cosine if odd else 1.0)
    for power in range(odd, freedom - 1, 2):
        total = total + term
        term = term * cosine**2 * (power + 1) / (power + 2)
    between = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return np.asarray((1 + between) / 2, dtype=np.float64)


def likeness(representations: Tensor, directions: Tensor, probabilities: Tensor) -> Tensor:
    """Likenesses ``(n,)`` of ``(n, features)`` to classes with directions ``(way, features)``."""
    nearest = (normalize(representations, dim=1) @ directions.T).amax(dim=1)
    return nearest + PROBABILITY_WEIGHT * probabilities.amax(dim=1).to(nearest.dtype)


def learn_familiarity(
    examples: Tensor, labels: Tensor, way: int, held_out: Tensor, probabilities: Tensor, other: Tensor
) -> Familiarity:
    """The likenesses to expect.

    Args:
        examples: Representations ``(s, features)``.
        labels: Their classes ``(s,)``.
        way: The number of classes.
        held_out: Indices of the examples that were held out ``(n,)``.
        probabilities: The largest probability that each of them got while it was held out ``(n,)``.
        other: For each example, the largest probability of a class if its own were not known ``(s,)``.
    """
    inside, outside = simulated_similarities(examples, labels, way)
    seen = (inside[held_out] + PROBABILITY_WEIGHT * probabilities).double()
    expected = float(outside.mean()) + GAP if way > 1 else LONE_MEAN
    others = tuple((outside + PROBABILITY_WEIGHT * other).tolist()) if way > 1 else ()
    return _posterior(seen, expected, others)


def _posterior(seen: Tensor, expected: float, others: tuple[float, ...]) -> Familiarity:
    """The t-distribution of the next likeness after those that were ``seen``, from the prior and their mean and spread.

    Unlike with a conjugate prior, a mean far from the expected one does not make the spread larger.
    """
    count = len(seen)
    average = float(seen.mean()) if count else expected
    weight = MEAN_WEIGHT + count
    mean = (MEAN_WEIGHT * expected + count * average) / weight
    freedom = SPREAD_WEIGHT + count
    squares = SPREAD_WEIGHT * SPREAD**2 + float((seen - average).square().sum())
    return Familiarity(mean, math.sqrt(squares / freedom * (1 + 1 / weight)), freedom, others)


def simulated_similarities(examples: Tensor, labels: Tensor, way: int) -> tuple[Tensor, Tensor]:
    """Cosine similarities to the nearest class ``(s,)``, for two kinds of simulated new pictures.

    Returns:
        Those of examples held out of their class, as they would be if the class had not lost one by that (NaN if it
        has no other example); and those of examples whose whole class is held out (-2 if there is no other class).
    """
    unit = normalize(examples, dim=-1)
    members = one_hot(labels, way).to(unit.dtype)
    sums, counts = members.T @ unit, members.sum(dim=0)
    factors = of_unequal_classes(sums, counts)
    cosines = unit @ normalize(sums, dim=-1).T * factors
    own = members.bool()
    rest = sums[labels] - unit  # the sum of the other examples of the class
    alone = (unit * normalize(rest, dim=-1)).sum(dim=1) * (_lost_one(sums, counts) * factors)[labels]
    inside = torch.where(own, alone.unsqueeze(1), cosines).amax(dim=1)
    outside = cosines.masked_fill(own, -2).amax(dim=1)
    return torch.where(counts[labels] > 1, inside, torch.nan), outside


def of_unequal_classes(sums: Tensor, counts: Tensor) -> Tensor:
    """Factors ``(way,)`` that make similarities to classes with different numbers of examples comparable.

    The more examples a class has, the more similar its pictures are to their mean. The factors give the similarities
    that there would be if all classes had as many examples; they are 1 if they do.

    Args:
        sums: The sums of the examples of each class, each of length one, ``(way, features)``.
        counts: How many there are ``(way,)``.
    """
    return (_squared_length(sums, counts, counts) / _squared_length(sums, counts, counts.mean())).sqrt()


def _lost_one(sums: Tensor, counts: Tensor) -> Tensor:
    """By what the similarity to the mean of a class grows with its last example ``(way,)``."""
    before = _squared_length(sums, counts, (counts - 1).clamp(min=1))
    return (before / _squared_length(sums, counts, counts)).sqrt()


def _squared_length(sums: Tensor, counts: Tensor, number: Tensor) -> Tensor:
    """The expected squared length of the mean of ``number`` examples of a class.

    That of n vectors of length one with the average cosine c is c + (1 - c) / n.
    """
    pairs = counts * (counts - 1)
    cosine = ((sums.square().sum(dim=1) - counts)[pairs > 0].sum() / pairs.sum().clamp(min=1)).clamp(0.05, 1)
    return cosine + (1 - cosine) / number
