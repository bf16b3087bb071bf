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


def suggest(
    fitted: "FewShotClassifier",
    pictures: Sequence[EmbeddedImage],
    count: int,
    beside: Sequence[EmbeddedImage] = (),
) -> list[Suggestion]:
    """Choose the pictures to label next, the most useful first.

    Args:
        fitted: A fitted `FewShotClassifier`.
        pictures: Pictures without labels that ``fitted.embed`` has embedded.
        count: How many to choose.
        beside: Pictures that will be labelled anyway, like earlier suggestions. What they explain needs no other.
    """
    if count < 1:
        raise UserError(f"at least one picture must be asked for, got {count}")
    if not pictures:
        return []
    answers = list(fitted.classify(pictures))
    margins = torch.tensor([answer.probability - answer.runner_up_probability for answer in answers])
    labelled = fitted.representations_
    if beside:
        labelled = torch.cat([labelled, fitted.represent(beside).to(labelled)])
    chosen = choose(fitted.represent(pictures), labelled, 1 - margins, count)
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


@torch.no_grad()
def choose(pool: Tensor, labelled: Tensor, unsureness: Tensor, count: int) -> list[tuple[int, int]]:
    """Indices of ``count`` pictures, and how many pictures each explains better than all before it.

    Args:
        pool: Representations ``(n, features)`` of pictures without labels.
        labelled: Those ``(m, features)`` of the examples.
        unsureness: From 0 (certain) to 1 (undecided) for each picture ``(n,)``.
        count: How many to choose; all, if there are fewer.
    """
    centre = torch.cat([pool, labelled]).mean(dim=0)
    unit, known = normalize(pool - centre, dim=1), normalize(labelled - centre, dim=1)
    similarities = (unit @ unit.T).clamp(min=0)
    explained = (unit @ known.T).clamp(min=0).max(dim=1).values if len(known) else unit.new_zeros(len(unit))
    weights = LEAST_WEIGHT + (1 - LEAST_WEIGHT) * unsureness.to(unit)
    free = torch.ones(len(unit), dtype=torch.bool, device=unit.device)
    found: list[tuple[int, int]] = []
    for _ in range(min(count, len(unit))):
        gains = (weights.unsqueeze(1) * (similarities - explained.unsqueeze(1)).clamp(min=0)).sum(dim=0)
        index = int(gains.masked_fill(~free, -1).argmax())
        found.append((index, int((similarities[:, index] > explained).sum())))
        explained = torch.maximum(explained, similarities[:, index])
        free[index] = False
    return found
