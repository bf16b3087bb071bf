"""The optimiser of a stage, with a learning rate that is a function of the position in the training alone."""

import math
import warnings
from typing import Any

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from deepbdc._registry import nearest
from deepbdc.errors import UserError
from deepbdc.stages import Objective, StageSettings


def build_optimiser(objective: Objective, settings: StageSettings, title: str = "the stage") -> Optimizer:
    """The optimiser that the settings describe, with the parameters in named groups.

    Groups that are frozen get no gradients and are left out; ``title`` names the section of the recipe in errors.
    """
    groups = objective.parameter_groups()
    for name in settings.groups:
        if name not in groups:
            known = nearest(name, [*groups])
            warnings.warn(f"{title}.groups.{name} has no effect, as there are no such parameters{known}", stacklevel=2)
    described: list[dict[str, Any]] = []
    for name, parameters in groups.items():
        own = settings.groups.get(name)
        if own is not None and own.frozen:
            nn.ParameterList(parameters).requires_grad_(False)
        elif parameters:
            rate = settings.lr if own is None or own.lr is None else own.lr
            decay = settings.weight_decay if own is None or own.weight_decay is None else own.weight_decay
            described.append({"params": parameters, "name": name, "base_lr": rate, "weight_decay": decay})
    if not described:
        raise UserError(f"{title} freezes all parameters: there is nothing to train")
    if settings.optimiser == "sgd":
        nesterov = settings.nesterov and settings.momentum > 0
        return SGD(
            described,
            lr=settings.lr,
            momentum=settings.momentum,
            nesterov=nesterov,
            dampening=settings.dampening,
        )
    first, second = settings.betas
    return (Adam if settings.optimiser == "adam" else AdamW)(described, lr=settings.lr, betas=(first, second))


def rate_factor(settings: StageSettings, epoch: int, step: int, steps: int) -> float:
    """The factor of all learning rates at a step; epochs and steps count from 0.

    >>> halves = StageSettings(epochs=4, milestones=(2,), gamma=0.5)
    >>> [rate_factor(halves, epoch, 0, 10) for epoch in range(4)]
    [1.0, 1.0, 0.5, 0.5]
    """
    position = epoch + step / steps
    if position < settings.warmup:
        return (position + 1 / steps) / (settings.warmup + 1 / steps)
    if settings.schedule == "multistep":
        passed = sum(epoch >= milestone for milestone in settings.milestones)
        if isinstance(settings.gamma, tuple):
            return math.prod(settings.gamma[:passed])
        return float(settings.gamma**passed)
    progress = (position - settings.warmup) / (settings.epochs - settings.warmup)
    return 0.5 * (1 + math.cos(math.pi * progress))


def set_rates(optimiser: Optimizer, factor: float) -> None:
    """Set the learning rate of each group to its own base rate times ``factor``."""
    for group in optimiser.param_groups:
        group["lr"] = group["base_lr"] * factor
