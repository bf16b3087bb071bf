"""Episodes together with batches of ordinary classification, which become rarer in the course of the stage."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepbdc._seeds import derive
from deepbdc.errors import UserError
from deepbdc.stages.batches import AugmentedImages, Batch, EpisodeBatches, Process
from deepbdc.stages.objectives import Classification, EpisodeTraining, Loss, Objective, ObjectiveWithHead
from deepbdc.stages.settings import EpisodeSettings, StageSettings, check_counts


@dataclass(frozen=True, kw_only=True)
class CoTrainingSettings(EpisodeSettings):
    """Episodic training, with a batch of ordinary classification in some of the steps."""

    auxiliary_batch: int = 64
    """Images in such a batch, over all episodes of the step and all processes."""
    auxiliary_decay: float = 0.9
    """The probability that a step has such a batch is ``auxiliary_decay`` at the start, and is multiplied by it after
    each period. With 0 there are none."""
    auxiliary_periods: int = 20
    """Periods of equal length in the whole stage."""

    def check(self, title: str) -> None:
        """Raise a `UserError` if a value makes no sense."""
        super().check(title)
        check_counts(self, title, ("auxiliary_batch", "auxiliary_periods"))
        if not 0 <= self.auxiliary_decay <= 1:
            raise UserError(f"{title}.auxiliary_decay must be 0 to 1, got {self.auxiliary_decay}")


class CoTrainingBatches(EpisodeBatches):
    """The tensors of a `TrainingEpisode`, and images ``(n, 3, s, s)`` with labels ``(n,)`` over all training classes.

    In steps without a batch of ordinary classification n is 0. If a step has several episodes, each comes with an
    equal part of the batch.
    """

    def __init__(
        self, images: AugmentedImages, settings: StageSettings, name: str, seed: int, process: Process
    ) -> None:
        assert isinstance(settings, CoTrainingSettings)
        super().__init__(images, settings, name, seed, process)
        self.settings = settings
        wanted = min(settings.auxiliary_batch, len(images.dataset))
        self.images_per_part = max(1, wanted // self.per_step)
        self.images_per_step += self.images_per_part * self.per_step

    def probability(self, epoch: int, step: int) -> float:
        """The probability that a step has a batch of ordinary classification."""
        periods = self.settings.auxiliary_periods
        passed = periods * (epoch * self.steps + step) // (self.settings.epochs * self.steps)
        return float(self.settings.auxiliary_decay ** (passed + 1))

    def load(self, epoch: int, step: int, part: int) -> Batch:
        """Load one episode of this process, and its part of the batch."""
        episode = super().load(epoch, step, part)
        piece = part * self.process.count + self.process.rank
        indices = self._drawn(epoch, step)[piece * self.images_per_part : (piece + 1) * self.images_per_part]
        images = episode[0].new_empty(0, *episode[0].shape[1:])
        if len(indices):
            images = self.images.load(indices, derive(self.seed, self.name, "auxiliary images", epoch, step, piece))
        return *episode, images, self.images.dataset.labels[torch.from_numpy(indices)]

    def _drawn(self, epoch: int, step: int) -> NDArray[np.int64]:
        """The images of the batch of a step, over all its parts; empty if it has none."""
        generator = torch.Generator().manual_seed(derive(self.seed, self.name, "auxiliary", epoch, step))
        if torch.rand((), generator=generator) >= self.probability(epoch, step):
            return np.zeros(0, dtype=np.int64)
        return torch.randperm(len(self.images.dataset), generator=generator).numpy()


class CoTraining(ObjectiveWithHead, EpisodeTraining):
    """The method's loss of an episode, plus its loss of a batch of ordinary classification in steps that have one."""

    Settings = CoTrainingSettings
    Batches = CoTrainingBatches

    def continue_from(self, before: Objective) -> None:
        """Take over the weights of the method, and the head if the stage before trained one for the same classes."""
        super().continue_from(before)
        if isinstance(before, Classification):
            self.head.load_state_dict(before.head.state_dict())

    def forward(self, *batch: Tensor) -> Loss:
        """The tensors of a `TrainingEpisode`, images ``(n, 3, s, s)`` and labels ``(n,)``; n may be 0."""
        *episode, images, labels = batch
        value, numbers = super().forward(*episode)
        auxiliary = value.new_zeros(())
        if len(labels):
            auxiliary, _ = self.method.batch_loss(self.logits, images, labels, label_smoothing=self.label_smoothing)
        return Loss(value + auxiliary, {**numbers, "auxiliary": auxiliary.detach()})
