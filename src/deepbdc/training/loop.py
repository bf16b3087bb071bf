"""The training loop of a stage, to be read from top to bottom."""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from deepbdc import weight_files
from deepbdc.data.dataset import ArrayDataset, Dataset
from deepbdc.episodes import Episodes
from deepbdc.errors import UserError
from deepbdc.evaluation import EvaluationResult, evaluate
from deepbdc.training import checkpoint
from deepbdc.training.batches import Batch, Batches
from deepbdc.training.checkpoint import Progress
from deepbdc.training.devices import average_buffers, from_first, process_of, shard
from deepbdc.training.log import EpochRecord, NullLog, StepRecord
from deepbdc.training.optimiser import build_optimiser, rate_factor, set_rates
from deepbdc.training.recipe import Meta, Recipe
from deepbdc.training.seeds import derive
from deepbdc.training.stages import Stage, Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

LOG_EVERY = 20  # steps
CHECKPOINT_EVERY = 60.0  # seconds


class TrainingError(UserError):
    """Training cannot go on; the message says why, and what to do."""


class Interrupted(Exception):
    """Somebody asked to stop; a checkpoint was written."""


@dataclass
class Surroundings:
    """What all stages of a run share."""

    recipe: Recipe
    folder: Path
    fabric: "Fabric"
    log: NullLog
    validation: Dataset | None
    episodes: dict[int, Episodes]
    """Validation episodes for each number of shots."""
    header: dict[str, Any]
    """What every file of weights says of where they come from: recipe, data, class names."""
    stop_asked: Callable[[], bool]
    checkpoint_every: float = CHECKPOINT_EVERY

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.folder / "checkpoints"

    @property
    def last(self) -> Path:
        """The checkpoint to resume from."""
        return self.checkpoints / "last.safetensors"

    def best(self, stage: Stage, epoch: int) -> Path:
        """Weights of an epoch that was the best so far."""
        return self.checkpoints / f"{stage.name}-best-{epoch:04d}.safetensors"


def train_stage(
    around: Surroundings, stage: Stage, task: Task, batches: Batches, saved: tuple[Progress, dict[str, Tensor]] | None
) -> Progress:
    """Train ``task`` in place, from ``saved`` on if that is given. It ends with the weights of the selected epoch."""
    fabric, settings, recipe = around.fabric, stage.settings, around.recipe
    progress = Progress(stage.name, seed=recipe.seed)
    if recipe.channels_last:
        task.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if recipe.sync_batchnorm and fabric.world_size > 1:
        task = torch.nn.SyncBatchNorm.convert_sync_batchnorm(task)
    optimiser: Any = build_optimiser(task, settings)
    network, optimiser = fabric.setup(task, optimiser)
    if saved is not None:
        progress, tensors = saved
        checkpoint.restore(task, optimiser.optimizer, tensors, around.last)
        _restore_precision(fabric, progress.precision)
    network.train()
    saved_at = time.monotonic()
    workers = 0 if _in_memory(batches) else recipe.workers
    for epoch in range(progress.epoch, settings.epochs):
        pace = _Pace(batches.images_per_step, progress.step)
        for parts in batches.epoch(epoch, progress.step, workers):
            step = progress.step
            factor = rate_factor(settings, epoch, step, batches.steps)
            set_rates(optimiser, factor)
            loss, accuracy, stop = _step(around, stage, network, optimiser, parts, epoch, step)
            if not math.isfinite(loss):
                raise TrainingError(_not_finite(around, stage, batches.describe(epoch, step), f"the loss is {loss}"))
            average_buffers(fabric, task)
            progress.step += 1
            progress.losses += loss
            progress.accuracies += accuracy
            written = progress.step % LOG_EVERY == 0 or progress.step == batches.steps
            speed = pace.measure(progress.step, start_anew=written)
            record = _step_record(stage, batches, progress, epoch, loss, accuracy, factor, speed)
            (around.log.step if written else around.log.show)(record)
            if progress.step < batches.steps and (stop or time.monotonic() - saved_at > around.checkpoint_every):
                _save(around, stage, task, optimiser, progress, batches.describe(epoch, step))
                saved_at = time.monotonic()
            if stop and progress.step < batches.steps:
                raise Interrupted
        result = _validate(around, stage, task, epoch)
        _finish_epoch(around, stage, task, progress, batches.steps, result)
        _save(around, stage, task, optimiser, progress, f"the end of epoch {epoch + 1}")
        _remove_old_best(around, stage, progress)
        saved_at = time.monotonic()
        if any_process_stops(around):
            raise Interrupted
    if settings.select == "best" and progress.best_epoch is not None:
        path = around.best(stage, progress.best_epoch)
        weight_files.load_into(task, from_first(fabric, lambda: weight_files.load(path)[0]), "", path)
    return progress


def _step(
    around: Surroundings, stage: Stage, network: Any, optimiser: Any, parts: list[Batch], epoch: int, step: int
) -> tuple[float, float, bool]:
    """One step of the optimiser: mean loss and accuracy over all parts and processes, and whether to stop after it.

    A loss that is not finite leaves the weights as they are.
    """
    fabric, process = around.fabric, process_of(around.fabric)
    layout = torch.channels_last if around.recipe.channels_last else torch.contiguous_format
    sums = torch.zeros(3, device=fabric.device)
    optimiser.zero_grad()
    for number, part in enumerate(parts):
        piece = number * process.count + process.rank
        torch.manual_seed(derive(around.recipe.seed, stage.name, "model", epoch, step, piece))  # for dropout
        images, *labels = (fabric.to_device(value) for value in part)
        images = images.contiguous(memory_format=layout)
        waits = process.count > 1 and number < len(parts) - 1  # processes exchange gradients after the last part only
        with fabric.no_backward_sync(network) if waits else nullcontext():
            loss, accuracy = network(images, *labels)
            fabric.backward(loss / len(parts))
        sums[0] += loss.detach() / len(parts)
        sums[1] += accuracy / len(parts)
    sums[2] = float(around.stop_asked())
    if process.count > 1:
        sums = fabric.all_reduce(sums, reduce_op="mean")
    loss_value, accuracy_value, stop = sums.tolist()
    if math.isfinite(loss_value):
        optimiser.step()
    return loss_value, accuracy_value, stop > 0


def any_process_stops(around: Surroundings) -> bool:
    """Whether somebody asked any of the processes to stop; all get the same answer."""
    asked = torch.tensor(float(around.stop_asked()), device=around.fabric.device)
    if around.fabric.world_size > 1:
        asked = around.fabric.all_reduce(asked, reduce_op="mean")
    return bool(asked > 0)


def _validate(around: Surroundings, stage: Stage, task: Task, epoch: int) -> EvaluationResult | None:
    """Few-shot accuracy on the validation classes, in the epochs that the recipe says."""
    settings, done = stage.settings, epoch + 1
    due = done >= settings.validate_from and (done - settings.validate_from) % settings.validate_every == 0
    if around.validation is None or not (due or done == settings.epochs):
        return None
    shot = validation_shot(around.recipe, stage)
    fabric = around.fabric
    return evaluate(
        task.method.for_shot(shot),
        around.validation,
        episodes=around.episodes[shot],
        device=fabric.device,
        workers=around.recipe.workers,
        shard=shard(fabric),
    )


def validation_shot(recipe: Recipe, stage: Stage) -> int:
    """Shots of the validation episodes of a stage: as it says, else those it is trained with, else the recipe's."""
    settings = stage.settings
    if settings.validation_shot is not None:
        return settings.validation_shot
    return settings.shot if isinstance(settings, Meta) else recipe.validation.shot


def _finish_epoch(
    around: Surroundings, stage: Stage, task: Task, progress: Progress, steps: int, result: EvaluationResult | None
) -> None:
    """Note what came out of the epoch, keep its weights if it is the best, and begin the next."""
    done = progress.epoch + 1
    if result is not None and (progress.best_accuracy is None or result.mean > progress.best_accuracy):
        progress.best_epoch, progress.best_accuracy = done, result.mean
        if stage.settings.select == "best" and around.fabric.is_global_zero:
            checkpoint.save_weights(around.best(stage, done), task, {**around.header, "stage": stage.name})
    scales = task.method.embedding.pool.scales()
    around.log.epoch(
        EpochRecord(
            stage=stage.name,
            epoch=done,
            epochs=stage.settings.epochs,
            loss=progress.losses / steps,
            accuracy=progress.accuracies / steps,
            val_accuracy=None if result is None else result.mean,
            val_ci95=None if result is None else result.ci95,
            best_epoch=progress.best_epoch,
            t=scales[0].item() if scales else None,
            global_step=done * steps,
        )
    )
    progress.epoch, progress.step, progress.losses, progress.accuracies = done, 0, 0.0, 0.0


def _save(around: Surroundings, stage: Stage, task: Task, optimiser: Any, progress: Progress, where: str) -> None:
    """Write the checkpoint to resume from. Only the first process does; all have the same weights."""
    if not around.fabric.is_global_zero:
        return
    progress.seconds = around.log.seconds
    progress.precision = _precision_state(around.fabric)
    try:
        checkpoint.save_progress(around.last, task, optimiser.optimizer, progress, around.header)
    except FloatingPointError as error:
        raise TrainingError(_not_finite(around, stage, where, str(error))) from error


def _remove_old_best(around: Surroundings, stage: Stage, progress: Progress) -> None:
    """Delete weights of epochs that are no longer the best; the checkpoint that needed them is gone."""
    if around.fabric.is_global_zero:
        keep = None if progress.best_epoch is None else around.best(stage, progress.best_epoch)
        for path in around.checkpoints.glob(f"{stage.name}-best-*.safetensors"):
            if path != keep:
                path.unlink()


def _not_finite(around: Surroundings, stage: Stage, where: str, what: str) -> str:
    kept = f"The last good checkpoint is {around.last}" if around.last.is_file() else "No checkpoint was written yet"
    return (
        f"{stage.name}, {where}: {what}. {kept}. Try a smaller learning rate ({stage.name.partition('-')[0]}.lr, now "
        f"{stage.settings.lr}), a warm-up, or full precision, in a new folder (--run)."
    )


class _Pace:
    """Images a second."""

    def __init__(self, images_per_step: int, step: int) -> None:
        self._images = images_per_step
        self._step = step
        self._since = time.perf_counter()

    def measure(self, step: int, start_anew: bool) -> float:
        """Images a second, now that ``step`` steps of the epoch are done, since the last start."""
        now = time.perf_counter()
        speed = (step - self._step) * self._images / max(now - self._since, 1e-9)
        if start_anew:
            self._since, self._step = now, step
        return speed


def _step_record(
    stage: Stage,
    batches: Batches,
    progress: Progress,
    epoch: int,
    loss: float,
    accuracy: float,
    factor: float,
    speed: float,
) -> StepRecord:
    return StepRecord(
        stage=stage.name,
        epoch=epoch + 1,
        step=progress.step,
        steps=batches.steps,
        loss=loss,
        accuracy=accuracy,
        lr=stage.settings.lr * factor,
        images_per_second=speed,
        global_step=epoch * batches.steps + progress.step,
        epochs=stage.settings.epochs,
    )


def _in_memory(batches: Any) -> bool:
    return isinstance(batches.images.dataset, ArrayDataset)


def _precision_state(fabric: "Fabric") -> dict[str, Any]:
    """The state of the loss scaling, which only half precision has."""
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    return {} if scaler is None else dict(scaler.state_dict())


def _restore_precision(fabric: "Fabric", state: dict[str, Any]) -> None:
    if state:
        fabric.strategy.precision.scaler.load_state_dict(state)
