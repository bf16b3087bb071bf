"""What is recorded of a training: its state after a step, and the results of an epoch."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StepRecord:
    """The state of the training after a step.

    Attributes:
        stage: ``pretrain``, ``distill-1``, ..., ``meta``.
        epoch: Counted from 1.
        step: Steps done of this epoch.
        steps: Steps per epoch.
        loss: Training loss.
        accuracy: Training accuracy in percent, None if the objective has none.
        lr: Learning rate of the network.
        images_per_second: Speed of the training.
        global_step: Steps done of the whole stage.
        epochs: Epochs of the stage; for the terminal, not written to the file.
        seconds: Since the beginning of the run, without the time of interruptions (default: by the clock of the log).
    """

    stage: str
    epoch: int
    step: int
    steps: int
    loss: float
    accuracy: float | None
    lr: float
    images_per_second: float
    global_step: int
    epochs: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class EpochRecord:
    """The results of an epoch.

    Attributes:
        stage: As in `StepRecord`.
        epoch: Counted from 1.
        epochs: Epochs of the stage.
        loss: Mean of the training loss over the epoch.
        accuracy: Mean of the training accuracy over the epoch, in percent.
        val_accuracy: Few-shot accuracy on the validation classes in percent, None if it was not measured.
        val_ci95: Half of its 95 % interval.
        best_epoch: The epoch with the best validation so far.
        numbers: What else is known of the epoch: means of other numbers of the objective, and learnable parameters that
            are single numbers, such as the scale ``t`` of BDC pooling.
        global_step: Steps done of the whole stage.
        seconds: As in `StepRecord`.
        transductive: Whether the validation is that of a transductive method.
    """

    stage: str
    epoch: int
    epochs: int
    loss: float
    accuracy: float | None
    val_accuracy: float | None
    val_ci95: float | None
    best_epoch: int | None
    numbers: Mapping[str, float]
    global_step: int
    seconds: float | None = None
    transductive: bool = False
