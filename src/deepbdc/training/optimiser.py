"""SGD as the paper uses it, with a learning rate that is a function of the position alone."""

import math

from torch import nn
from torch.optim import SGD

from deepbdc.training.recipe import Optimisation
from deepbdc.training.stages import Task


def build_optimiser(task: Task, settings: Optimisation) -> SGD:
    """SGD with Nesterov momentum; the scales of the pooling layer are a group of their own."""
    scales = task.method.embedding.pool.scales()
    others = [value for value in task.parameters() if not any(value is scale for scale in scales)]
    scale_rate = settings.lr if settings.t_lr is None else settings.t_lr
    groups: list[dict[str, float | list[nn.Parameter]]] = [{"params": others, "base_lr": settings.lr}]
    if scales:
        groups.append({"params": scales, "base_lr": scale_rate})
    return SGD(
        groups,
        lr=settings.lr,
        momentum=settings.momentum,
        nesterov=settings.momentum > 0,
        weight_decay=settings.weight_decay,
    )


def rate_factor(settings: Optimisation, epoch: int, step: int, steps: int) -> float:
    """By what the learning rates are multiplied at a step, epochs and steps counted from 0.

    >>> halves = Optimisation(epochs=4, milestones=(2,), gamma=0.5)
    >>> [rate_factor(halves, epoch, 0, 10) for epoch in range(4)]
    [1.0, 1.0, 0.5, 0.5]
    """
    position = epoch + step / steps
    if position < settings.warmup:
        return (position + 1 / steps) / (settings.warmup + 1 / steps)
    if settings.schedule == "multistep":
        return float(settings.gamma ** sum(epoch >= milestone for milestone in settings.milestones))
    progress = (position - settings.warmup) / (settings.epochs - settings.warmup)
    return 0.5 * (1 + math.cos(math.pi * progress))


def set_rates(optimiser: SGD, factor: float) -> None:
    """Set the learning rate of each group to its own base rate times ``factor``."""
    for group in optimiser.param_groups:
        group["lr"] = group["base_lr"] * factor
