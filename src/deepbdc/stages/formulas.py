"""The formulas of losses, which methods, objectives and the losses that a recipe adds have in common."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Loss(NamedTuple):
    """The loss of one batch, with its gradient, and numbers about it that are logged.

    All batches of a stage have numbers of the same names.
    """

    value: Tensor
    numbers: Mapping[str, Tensor]


def classification_loss(scores: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Loss:
    """Mean cross-entropy of scores ``(n, classes)`` with labels ``(n,)``, and the accuracy in percent."""
    value = functional.cross_entropy(scores, labels, label_smoothing=label_smoothing)
    return Loss(value, {"accuracy": percent_right(scores, labels)})


def percent_right(scores: Tensor, labels: Tensor) -> Tensor:
    """How many scores ``(n, classes)`` are largest for the right label, in percent."""
    return 100 * (scores.detach().argmax(dim=1) == labels).float().mean()


def distillation_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² · KL(softmax(teacher / T) ‖ softmax(student / T)), the mean over images: ``(n, classes) -> ()``."""
    expected = functional.log_softmax(teacher / temperature, dim=1)
    given = functional.log_softmax(student / temperature, dim=1)
    return temperature**2 * functional.kl_div(given, expected, reduction="batchmean", log_target=True)


def mixed(values: Tensor, order: Tensor, share: float) -> Tensor:
    """λ x_i + (1 - λ) x_order(i) for rows ``(n, ...)`` with λ = ``share``."""
    return share * values + (1 - share) * values[order]


def quarter_turns(images: Tensor) -> Tensor:
    """Square images ``(n, 3, s, s)`` turned by 0, 90, 180 and 270 degrees, ``(4, n, 3, s, s)``."""
    return torch.stack([images, *(images.rot90(turns, dims=(2, 3)) for turns in (1, 2, 3))])


def in_layout_of(like: Tensor, images: Tensor) -> Tensor:
    """Images ``(m, 3, s, s)`` with their channels last in memory if those of ``like`` are."""
    last = like.is_contiguous(memory_format=torch.channels_last) and not like.is_contiguous()
    return images.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
