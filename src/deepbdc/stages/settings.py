"""The settings of a training stage, as a recipe states them. Nothing here needs torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from deepbdc.errors import UserError

Augmentation = Literal["paper", "crop_flip", "none"]
"""How `deepbdc.data.transforms` changes training images at random; ``none`` prepares them as for a test."""
Count = int | tuple[int, int]
"""A number, or a range (fewest, most) from which each episode draws its own."""


@dataclass(frozen=True)
class GroupSettings:
    """Settings of one named group of parameters, in place of those of the stage."""

    lr: float | None = None
    """Learning rate; 0 keeps the values, though momentum and weight decay are computed."""
    weight_decay: float | None = None
    frozen: bool = False
    """Leave the parameters as they are, and compute no gradients for them."""


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """What the losses that a recipe adds to a stage by their names have in common; see `deepbdc.stages.losses`."""

    weight: float = 1.0
    """Factor of the loss in the sum that is minimised."""

    @classmethod
    def kind_of(cls, name: str) -> type["LossSettings"]:
        """The settings of the loss called ``name``; an unknown name is an error that names the nearest right one."""
        from deepbdc.stages.losses import losses

        kind: type[LossSettings] = losses.find(name).Settings
        return kind

    def check(self, title: str, in_episodes: bool) -> None:
        """Raise a `UserError` if a value makes no sense, or if the loss does not work in episodes."""
        if not self.weight > 0:
            raise UserError(f"{title}.weight must be positive, got {self.weight}: null leaves the loss out")


@dataclass(frozen=True, kw_only=True)
class StageSettings:
    """What all stages have in common: the optimiser, the schedule of its rate, and the choice of an epoch."""

    epochs: int
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.05
    momentum: float = 0.9
    """Of SGD."""
    nesterov: bool = True
    """Of SGD with momentum; needs ``dampening=0``."""
    dampening: float = 0.0
    """Of SGD with momentum."""
    betas: tuple[float, ...] = (0.9, 0.999)
    """Of Adam and AdamW."""
    weight_decay: float = 5e-4
    groups: Mapping[str, GroupSettings] = field(default_factory=dict)
    """Settings of named groups of parameters, such as ``t`` (the scale of BDC pooling), ``scale`` or ``head``."""
    schedule: Literal["multistep", "cosine"] = "multistep"
    milestones: tuple[int, ...] = ()
    """Of the multi-step schedule: after this many epochs the rate is multiplied by ``gamma``."""
    gamma: float | tuple[float, ...] = 0.1
    """One factor for all milestones, or one for each."""
    warmup: float = 0.0
    """Epochs in which the rate grows linearly from 0, for either schedule. Cosine counts in steps, not epochs."""
    clip_norm: float | None = None
    """Scale the gradient down if its norm is larger than this."""
    clip_value: float | None = None
    """Limit each entry of the gradient to this absolute value."""
    label_smoothing: float = 0.0
    losses: Mapping[str, LossSettings] = field(default_factory=dict)
    """Losses that are added to that of the stage, by their names, such as ``rotation: {weight: 0.5}``."""
    own_weight: float = 1.0
    """Factor of the stage's own loss. With 0 only ``losses`` are computed."""
    freeze_batchnorm_from: int | None = None
    """From this epoch on, counted from 1, batch norm uses its running statistics and no longer updates them."""
    augmentation: Augmentation | None = None
    """Augmentation of this stage (default: that of the recipe)."""
    accumulate: int = 1
    """Cut each step into this many parts, computed one after the other, when the memory is short."""
    select: Literal["best", "last"] = "last"
    """The epoch to keep: the one with the best few-shot accuracy on the validation classes, or the last."""
    validate_from: int = 1
    """The first epoch that is validated, counted from 1."""
    validate_every: int = 1
    """Epochs from one validation to the next; the last epoch is always validated."""
    validation_shot: int | None = None
    """Shots of the validation episodes (default: those that the stage trains with, else ``validation.shot``)."""

    def instances(self, name: str) -> list[str]:
        """The names of the trainings that this section of a recipe stands for: usually one."""
        return [name]

    @property
    def has_episodes(self) -> bool:
        """Whether the stage trains with episodes."""
        return False

    def full_epochs(self, size: int) -> float:
        """How many epochs with images of ``size`` pixels would take as long as all epochs of the stage."""
        return self.epochs

    @property
    def usual_validation_shot(self) -> int | None:
        """The number of shots to validate with where nothing else is said: the one that the stage trains with."""
        return None

    def check(self, title: str) -> None:
        """Raise a `UserError` if a value makes no sense; ``title`` names the section of the recipe."""
        check_counts(self, title, ("epochs", "accumulate", "validate_from", "validate_every"))
        for name in ("validation_shot", "freeze_batchnorm_from"):
            if getattr(self, name) is not None:
                check_counts(self, title, (name,))
        self._check_optimiser(title)
        self._check_schedule(title)
        if not 0 <= self.label_smoothing < 1:
            raise UserError(f"{title}.label_smoothing must be at least 0 and below 1, got {self.label_smoothing}")
        if self.own_weight < 0 or (self.own_weight == 0 and not self.losses):
            raise UserError(
                f"{title}.own_weight must not be negative, and can be 0 only beside other losses, got {self.own_weight}"
            )
        for name, loss in self.losses.items():
            loss.check(f"{title}.losses.{name}", in_episodes=self.has_episodes)

    def _check_optimiser(self, title: str) -> None:
        if not self.lr > 0:
            raise UserError(f"{title}.lr must be positive, got {self.lr}")
        if not 0 <= self.momentum < 1 or not 0 <= self.dampening < 1 or self.weight_decay < 0:
            raise UserError(f"{title}: momentum and dampening must be in [0, 1), weight_decay not negative")
        if self.dampening and self.nesterov:
            raise UserError(f"{title}.dampening needs nesterov: false")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise UserError(f"{title}.betas must be two numbers in [0, 1), got {list(self.betas)}")
        for name, limit in (("clip_norm", self.clip_norm), ("clip_value", self.clip_value)):
            if limit is not None and not limit > 0:
                raise UserError(f"{title}.{name} must be positive, got {limit}")
        for name, group in self.groups.items():
            for key, value in (("lr", group.lr), ("weight_decay", group.weight_decay)):
                if value is not None and value < 0:
                    raise UserError(f"{title}.groups.{name}.{key} must not be negative, got {value}")

    def _check_schedule(self, title: str) -> None:
        gammas = self.gamma if isinstance(self.gamma, tuple) else (self.gamma,)
        if not all(0 < gamma <= 1 for gamma in gammas):
            raise UserError(f"{title}.gamma must be in (0, 1], got {self.gamma}")
        if isinstance(self.gamma, tuple) and len(self.gamma) != len(self.milestones):
            raise UserError(f"{title}.gamma has {len(gammas)} factors for {len(self.milestones)} milestones")
        if not 0 <= self.warmup < self.epochs:
            raise UserError(f"{title}.warmup must be fewer epochs than the {self.epochs} there are, got {self.warmup}")
        if list(self.milestones) != sorted(set(self.milestones)) or min(self.milestones, default=1) < 1:
            raise UserError(f"{title}.milestones must be positive and grow, got {list(self.milestones)}")


@dataclass(frozen=True, kw_only=True)
class BatchSettings(StageSettings):
    """Ordinary training on batches of labelled images."""

    batch_size: int = 64
    small_epochs: int = 0
    """In this many epochs, the first ones, images are shrunk to ``small_size``, which takes a fraction of the time."""
    small_size: int | None = None
    """Height and width of the images in the first ``small_epochs`` epochs."""

    def check(self, title: str) -> None:
        """Raise a `UserError` if a value makes no sense."""
        super().check(title)
        check_counts(self, title, ("batch_size",))
        if not 0 <= self.small_epochs <= self.epochs:
            raise UserError(f"{title}.small_epochs must be 0 to {self.epochs}, all epochs, got {self.small_epochs}")
        if self.small_epochs and (self.small_size is None or self.small_size < 1):
            raise UserError(f"{title}.small_epochs needs {title}.small_size, the size of the images in these epochs")

    def full_epochs(self, size: int) -> float:
        """Those with small images count by the number of their pixels."""
        return self.epochs - self.small_epochs * (1 - ((self.small_size or size) / size) ** 2)


@dataclass(frozen=True, kw_only=True)
class DistillationSettings(BatchSettings):
    """Sequential self-distillation: each generation trains a new student with the one before as its teacher."""

    generations: int = 1
    temperature: float = 4.0
    distillation_weight: float = 0.5
    """Weight of the teacher's part of the loss; that of the labels is 1 minus this. With 0 and ``start: teacher``, the
    training of the network continues without a teacher; its optimiser starts anew."""
    start: Literal["random", "teacher"] = "random"
    """Where each student starts: from random weights, as in the paper, or from those of its teacher, which it then
    trains further."""

    def instances(self, name: str) -> list[str]:
        """One training for each generation: ``distill-1``, ``distill-2``, ..."""
        return [f"{name}-{generation}" for generation in range(1, self.generations + 1)]

    def check(self, title: str) -> None:
        """Raise a `UserError` if a value makes no sense."""
        super().check(title)
        if self.generations < 0 or not self.temperature > 0:
            raise UserError(f"{title}: generations must not be negative, and temperature must be positive")
        if not 0 <= self.distillation_weight <= 1:
            raise UserError(f"{title}.distillation_weight must be 0 to 1, got {self.distillation_weight}")


@dataclass(frozen=True, kw_only=True)
class EpisodeSettings(StageSettings):
    """Episodic training."""

    lr: float = 1e-4
    way: Count = 5
    shot: Count = 1
    query: int = 16
    episodes: int = 600
    """Episodes per epoch."""
    episodes_per_step: int = 1
    select: Literal["best", "last"] = "best"

    @property
    def has_episodes(self) -> bool:
        """Whether the stage trains with episodes."""
        return True

    @property
    def usual_validation_shot(self) -> int | None:
        """The number of shots of the training episodes, unless it is a range."""
        return self.shot if isinstance(self.shot, int) else None

    def check(self, title: str) -> None:
        """Raise a `UserError` if a value makes no sense."""
        super().check(title)
        check_counts(self, title, ("query", "episodes", "episodes_per_step"))
        for name in ("way", "shot"):
            fewest, most = limits(getattr(self, name))
            if not 1 <= fewest <= most:
                raise UserError(
                    f"{title}.{name} must be at least 1, or a range [fewest, most], got {getattr(self, name)}"
                )
        if self.accumulate != 1:
            raise UserError(f"{title}.accumulate: each episode of a step is a part of its own already")


def limits(count: Count) -> tuple[int, int]:
    """The smallest and the largest number that a `Count` stands for."""
    return count if isinstance(count, tuple) else (count, count)


def check_counts(part: Any, title: str, names: tuple[str, ...]) -> None:
    """Raise unless the named values are at least 1."""
    for name in names:
        if getattr(part, name) < 1:
            raise UserError(f"{title}.{name} must be at least 1, got {getattr(part, name)}")
