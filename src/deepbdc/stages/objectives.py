"""What a stage minimises: from one batch to a loss, and numbers to log."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, dropout2d

from deepbdc._modes import evaluating, separate_random_numbers
from deepbdc.errors import UserError
from deepbdc.stages.batches import Batches, EpisodeBatches, PairedEpisodeBatches, ShuffledBatches, TrainingEpisode
from deepbdc.stages.formulas import Loss, classification_loss, distillation_loss, percent_right
from deepbdc.stages.losses import NamedLoss, Part, losses
from deepbdc.stages.settings import BatchSettings, DistillationSettings, EpisodeSettings, StageSettings

if TYPE_CHECKING:
    from deepbdc.methods.base import Method, TrainingClasses

__all__ = [
    "Classification",
    "Distillation",
    "EpisodeTraining",
    "Inputs",
    "Loss",
    "Objective",
    "ObjectiveWithHead",
    "classification_loss",
    "distillation_loss",
    "percent_right",
]


@dataclass(frozen=True)
class Inputs:
    """What an objective is made from."""

    method: "Method"
    settings: StageSettings
    classes: int
    """Number of training classes."""
    dropout: float = 0.0
    """Probability of dropout on the representation, before a head: of its numbers, or of the channels of a map."""
    before: "Objective | None" = None
    """The objective of the stage before, with its final weights; None in the first stage."""
    base: "TrainingClasses | None" = None
    """The training images, for objectives that need more than batches of them."""


class Objective(nn.Module):
    """What one stage minimises. It holds the method, and whatever else is trained only in this stage."""

    Settings: ClassVar[type[StageSettings]]
    """The settings that a recipe can give for a stage with this objective."""
    Batches: ClassVar[type[Batches]]
    """How the batches of such a stage are made."""
    starts_anew: bool = False
    """Whether the stage starts from random weights rather than from those of the stage before."""
    needs_stage_before: ClassVar[bool] = False
    """Whether it cannot be the first stage of a recipe."""
    takes_losses: ClassVar[bool] = False
    """Whether a recipe can add losses by their names: `forward` then ends with `with_losses`."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        self.method = inputs.method
        self.label_smoothing = inputs.settings.label_smoothing
        self.own_weight = inputs.settings.own_weight
        self.check(inputs.settings, inputs.method, "the stage")
        with separate_random_numbers():  # so that a head of the stage starts from the same weights with any losses
            self.losses = nn.ModuleDict(
                {name: losses.find(name)(own, inputs.method) for name, own in inputs.settings.losses.items()}
            )

    @classmethod
    def check(cls, settings: StageSettings, method: "Method", title: str) -> None:
        """Raise a `UserError` if the settings do not fit the method; ``title`` names the section of the recipe.

        The training calls it for all stages before the first one begins.
        """
        if settings.losses and not cls.takes_losses:
            raise UserError(f"{title}: losses cannot be added to this stage, whose images are not classified")
        for name, own in settings.losses.items():
            losses.find(name).check(own, method, f"{title}.losses.{name}")

    @abstractmethod
    def forward(self, *batch: Tensor) -> Loss:
        """The loss of one part of a step."""

    def with_losses(self, own: Callable[[], Loss], part: Part) -> Loss:
        """The stage's own loss and those that the recipe adds, each times its weight.

        Args:
            own: Computes the stage's own loss.
            part: What the added losses see.
        """
        if not self.losses:
            return own()
        weighted: list[tuple[float, Loss]] = [(self.own_weight, own())] if self.own_weight else []
        weighted += [(cast(NamedLoss, loss).weight, loss(part)) for loss in self.losses.values()]
        value = torch.stack([weight * loss.value for weight, loss in weighted]).sum()
        return Loss(value, {name: number for _, loss in weighted for name, number in loss.numbers.items()})

    def continue_from(self, before: "Objective") -> None:
        """Take over the weights of the stage before: those of the method, not those of a head."""
        self.method.load_state_dict(before.method.state_dict())

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """All parameters by the name of their group: the groups of the method, and ``head`` for all others."""
        groups = self.method.parameter_groups()
        known = {id(value) for values in groups.values() for value in values}
        others = [value for value in self.parameters() if id(value) not in known]
        return {**groups, "head": others} if others else groups


class ObjectiveWithHead(Objective):
    """An objective with a head, which is trained in this stage only and scores all training classes."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        self.dropout = nn.Dropout(inputs.dropout)
        self.head = inputs.method.head(inputs.classes)

    def logits(self, representations: Tensor) -> Tensor:
        """Scores of all training classes, ``(n, ...) -> (n, classes)``."""
        maps = representations.ndim == 4
        # Of maps, whole channels are dropped: for a head on their average, that is dropout on the average.
        drop = dropout2d if maps else dropout
        scores: Tensor = self.head(drop(representations, self.dropout.p, self.training))
        return scores


class Classification(ObjectiveWithHead):
    """Cross-entropy over all training classes, of a head on the representation."""

    Settings = BatchSettings
    Batches = ShuffledBatches
    takes_losses = True

    def forward(self, *batch: Tensor) -> Loss:
        """Images ``(n, 3, s, s)`` and labels ``(n,)``."""
        return self.with_losses(lambda: self.own_loss(*batch), self.part(*batch))

    def own_loss(self, images: Tensor, labels: Tensor) -> Loss:
        """The loss without those that the recipe adds."""
        return self.method.batch_loss(self.logits, images, labels, label_smoothing=self.label_smoothing)

    def part(self, images: Tensor, labels: Tensor) -> Part:
        """What the losses see that the recipe adds."""
        return Part(self.method, images, labels, self.predict, self._classify, self.label_smoothing)

    def predict(self, images: Tensor) -> Tensor:
        """Scores of all training classes, ``(n, 3, s, s) -> (n, classes)``."""
        return self._classify(self.method.features(images))

    def _classify(self, representations: Tensor) -> Tensor:
        return self.method.class_scores(self.logits, representations)


class Distillation(Classification):
    """Cross-entropy with the labels, and with the softened predictions of a frozen teacher in evaluation mode."""

    Settings = DistillationSettings
    needs_stage_before = True

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        settings, before = inputs.settings, inputs.before
        assert isinstance(settings, DistillationSettings)
        if not isinstance(before, Classification):
            raise UserError("distillation needs a stage before it that trains its first teacher with the same classes")
        before.requires_grad_(False)
        self._teacher = (before,)  # in a tuple, so that it is neither trained nor saved with the student
        self.starts_anew = settings.start == "random"
        self.temperature = settings.temperature
        self.distillation_weight = settings.distillation_weight

    def continue_from(self, before: Objective) -> None:
        """Take over the weights of the teacher, with those of its head, which scores the same classes."""
        super().continue_from(before)
        self.head.load_state_dict(cast(Classification, before).head.state_dict())

    def own_loss(self, images: Tensor, labels: Tensor) -> Loss:
        """The loss without those that the recipe adds."""
        asked: list[Tensor] = []

        def head(representations: Tensor) -> Tensor:
            asked.append(self.logits(representations))
            return asked[-1]

        by_labels, numbers = self.method.batch_loss(head, images, labels, label_smoothing=self.label_smoothing)
        if self.distillation_weight == 0:  # the labels alone: the teacher is not evaluated
            return Loss(by_labels, numbers)
        # A loss that mixes or rotates images asks the head about others than these.
        logits = asked[0] if len(asked) == 1 else self.logits(self.method.features(images))
        (teacher,) = self._teacher
        with evaluating(teacher), torch.no_grad():
            answers = teacher.to(images.device).logits(teacher.method.features(images))
        weight = self.distillation_weight
        by_teacher = distillation_loss(logits, answers, self.temperature)
        return Loss((1 - weight) * by_labels + weight * by_teacher, numbers)


class EpisodeTraining(Objective):
    """The method's own loss of an episode, by default the cross-entropy of its scores of the queries."""

    Settings = EpisodeSettings
    Batches = EpisodeBatches
    takes_losses = True

    def forward(self, *batch: Tensor) -> Loss:
        """The tensors of a `TrainingEpisode`."""
        episode = TrainingEpisode(*batch)
        return self.with_losses(lambda: self.own_loss(episode), self.part(episode))

    def own_loss(self, episode: TrainingEpisode) -> Loss:
        """The loss without those that the recipe adds."""
        return self.method.episode_loss(episode, label_smoothing=self.label_smoothing)

    def part(self, episode: TrainingEpisode) -> Part:
        """What the losses see that the recipe adds."""

        def predict(images: Tensor) -> Tensor:
            support, query = episode.split(self.method.embed(images))
            return self.method.classify(support, episode.support_labels, query)

        return Part(self.method, episode.images, episode.query_labels, predict, None, self.label_smoothing)


class PairedEpisodes(EpisodeTraining):
    """The method's own loss of a pair of episodes, see `PairedEpisodeBatches`."""

    Batches = PairedEpisodeBatches
    takes_losses = False  # they would take the pair for one episode
