"""Chooses the pictures whose labels would teach most: those that the classifier is unsure about, and unlike each other.

Each picture asks to be explained by a labelled picture that is similar to it, the more loudly the less sure its answer
is. The pictures are chosen one by one; each is the one that explains most of what the labelled and chosen ones do not.
So a picture is chosen if many unsure pictures resemble it, and never twice the same kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from deepbdc.errors import UserError
from deepbdc.own_images.explanation import Prediction
from deepbdc.own_images.pictures import EmbeddedImage

if TYPE_CHECKING:
    from deepbdc.estimator import FewShotClassifier

LEAST_WEIGHT = 0.1
"""The weight of a picture whose answer is certain; that of one that is undecided between two classes is 1."""


@dataclass(frozen=True)
class Suggestion:
    """A picture whose label would teach much."""

    index: int
    """Its index among the given pictures."""
    name: str
    label: Any
    """The most likely class, so that a person need only confirm it."""
    probability: float
    runner_up: Any
    explains: int
    """How many of the given pictures are more similar to this one than to any example or earlier suggestion."""


def suggest(fitted: "FewShotClassifier", pictures: Sequence[EmbeddedImage], count: int) -> list[Suggestion]:
    """Choose the pictures to label next, the most useful first.

    Args:
        fitted: A fitted `FewShotClassifier`.
        pictures: Pictures without labels that ``fitted.embed`` has embedded.
        count: How many to choose.
    """
    if count < 1:
        raise UserError(f"at least one picture must be asked for, got {count}")
    if not pictures:
        return []
    answers = list(fitted.classify(pictures))
    chosen = choose(fitted.represent(pictures), fitted.representations_, unsureness_of(answers), count)
    return [
        Suggestion(
            index,
            pictures[index].name,
            answers[index].label,
            answers[index].probability,
            answers[index].runner_up,
            explains,
        )
        for index, explains in chosen
    ]


def unsureness_of(answers: Sequence[Prediction]) -> Tensor:
    """From 0 (certain) to 1 (undecided between two classes) for each answer ``(n,)``."""
    return torch.tensor([1 - answer.probability + answer.runner_up_probability for answer in answers])


@torch.no_grad()
def choose(pool: Tensor, labelled: Tensor, unsureness: Tensor, count: int) -> list[tuple[int, int]]:
    """Indices of ``count`` pictures, and how many pictures each explains better than all before it.

    Args:
        pool: Representations ``(n, features)`` of pictures without labels.
        labelled: Those ``(m, features)`` of the examples.
        unsureness: From 0 (certain) to 1 (undecided) for each picture ``(n,)``.
        count: How many to choose; all, if there are fewer.
    """
    unlabelled = len(pool)
    similarities = alike(torch.cat([pool, labelled]))[:unlabelled]
    return choose_alike(similarities[:, :unlabelled], similarities[:, unlabelled:], unsureness, count)


@torch.no_grad()
def alike(representations: Tensor) -> Tensor:
    """How similar pictures are to each other ``(n, n)``: cosines relative to their mean, and 0 for negative ones."""
    unit = normalize(representations - representations.mean(dim=0), dim=1)
    return (unit @ unit.T).clamp(min=0)


@torch.no_grad()
def choose_alike(pool: Tensor, labelled: Tensor, unsureness: Tensor, count: int) -> list[tuple[int, int]]:
    """The same as `choose`, by similarities of the pictures to each other ``(n, n)`` and to the examples ``(n, m)``."""
    explained = labelled.max(dim=1).values if labelled.shape[1] else pool.new_zeros(len(pool))
    weights = LEAST_WEIGHT + (1 - LEAST_WEIGHT) * unsureness.to(pool)
    free = torch.ones(len(pool), dtype=torch.bool, device=pool.device)
    found: list[tuple[int, int]] = []
    for _ in range(min(count, len(pool))):
        gains = (weights.unsqueeze(1) * (pool - explained.unsqueeze(1)).clamp(min=0)).sum(dim=0)
        index = int(gains.masked_fill(~free, -1).argmax())
        found.append((index, int((pool[:, index] > explained).sum())))
        explained = torch.maximum(explained, pool[:, index])
        free[index] = False
    return found
