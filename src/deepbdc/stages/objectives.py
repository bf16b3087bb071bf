"""What a stage minimises: from one batch to a loss, and numbers to log."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from deepbdc._modes import evaluating
from deepbdc.errors import UserError
from deepbdc.stages.batches import Batches, EpisodeBatches, PairedEpisodeBatches, ShuffledBatches, TrainingEpisode
from deepbdc.stages.settings import BatchSettings, DistillationSettings, EpisodeSettings, StageSettings

if TYPE_CHECKING:
    from deepbdc.methods.base import Method, TrainingClasses


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


@dataclass(frozen=True)
class Inputs:
    """What an objective is made from."""

    method: "Method"
    settings: StageSettings
    classes: int
    """Number of training classes."""
    dropout: float = 0.0
    """Probability of dropout on the representation, before a head."""
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
    starts_anew: ClassVar[bool] = False
    """Whether the stage starts from random weights rather than from those of the stage before."""
    needs_stage_before: ClassVar[bool] = False
    """Whether it cannot be the first stage of a recipe."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        self.method = inputs.method
        self.label_smoothing = inputs.settings.label_smoothing

    @abstractmethod
    def forward(self, *batch: Tensor) -> Loss:
        """The loss of one part of a step."""

    def continue_from(self, before: "Objective") -> None:
        """Take over the weights of the stage before: those of the method, not those of a head."""
        self.method.load_state_dict(before.method.state_dict())

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """All parameters by the name of their group: the groups of the method, and ``head`` for all others."""
        groups = self.method.parameter_groups()
        known = {id(value) for values in groups.values() for value in values}
        others = [value for value in self.parameters() if id(value) not in known]
        return {**groups, "head": others} if others else groups


class Classification(Objective):
    """Cross-entropy over all training classes, of a head on the representation."""

    Settings = BatchSettings
    Batches = ShuffledBatches

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        self.dropout = nn.Dropout(inputs.dropout)
        self.head = inputs.method.head(inputs.classes)

    def logits(self, representations: Tensor) -> Tensor:
        """Scores of all training classes, ``(n, ...) -> (n, classes)``."""
        scores: Tensor = self.head(self.dropout(representations))
        return scores

    def forward(self, *batch: Tensor) -> Loss:
        """Images ``(n, 3, s, s)`` and labels ``(n,)``."""
        images, labels = batch
        return self.method.batch_loss(self.logits, images, labels, label_smoothing=self.label_smoothing)


class Distillation(Classification):
    """Cross-entropy with the labels, and with the softened predictions of a frozen teacher in evaluation mode."""

    Settings = DistillationSettings
    starts_anew = True
    needs_stage_before = True

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        settings, before = inputs.settings, inputs.before
        assert isinstance(settings, DistillationSettings)
        if not isinstance(before, Classification):
            raise UserError("distillation needs a stage before it that trains its first teacher with the same classes")
        before.requires_grad_(False)
        self._teacher = (before,)  # in a tuple, so that it is neither trained nor saved with the student
        self.temperature = settings.temperature
        self.distillation_weight = settings.distillation_weight

    def forward(self, *batch: Tensor) -> Loss:
        """Images ``(n, 3, s, s)`` and labels ``(n,)``."""
        images, labels = batch
        asked: list[Tensor] = []

        def head(representations: Tensor) -> Tensor:
            asked.append(self.logits(representations))
            return asked[-1]

        by_labels, numbers = self.method.batch_loss(head, images, labels, label_smoothing=self.label_smoothing)
        # A loss that mixes or rotates images asks the head about others than these.
        logits = asked[0] if len(asked) == 1 else self.logits(self.method.embedding(images))
        (teacher,) = self._teacher
        with evaluating(teacher), torch.no_grad():
            answers = teacher.to(images.device).logits(teacher.method.embedding(images))
        weight = self.distillation_weight
        by_teacher = distillation_loss(logits, answers, self.temperature)
        return Loss((1 - weight) * by_labels + weight * by_teacher, numbers)


def distillation_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² · KL(softmax(teacher / T) ‖ softmax(student / T)), the mean over images: ``(n, classes) -> ()``."""
    expected = functional.log_softmax(teacher / temperature, dim=1)
    given = functional.log_softmax(student / temperature, dim=1)
    return temperature**2 * functional.kl_div(given, expected, reduction="batchmean", log_target=True)


class EpisodeTraining(Objective):
    """The method's own loss of an episode, by default the cross-entropy of its scores of the queries."""

    Settings = EpisodeSettings
    Batches = EpisodeBatches

    def forward(self, *batch: Tensor) -> Loss:
        """The tensors of a `TrainingEpisode`."""
        return self.method.episode_loss(TrainingEpisode(*batch), label_smoothing=self.label_smoothing)


class PairedEpisodes(EpisodeTraining):
    """The method's own loss of a pair of episodes, see `PairedEpisodeBatches`."""

    Batches = PairedEpisodeBatches
