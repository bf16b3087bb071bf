"""The training loop of a stage, to be read from top to bottom."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from deepbdc import weight_files
from deepbdc._modes import evaluating, to_channels_last
from deepbdc._seeds import derive
from deepbdc.data.dataset import Dataset
from deepbdc.episodes import Episodes
from deepbdc.errors import NotFinite, UserError
from deepbdc.evaluation import EvaluationResult, evaluate
from deepbdc.methods.base import Method, TrainingClasses
from deepbdc.recipes import Recipe, Stage
from deepbdc.runs import CHECKPOINTS
from deepbdc.stages import Batches, Loss, Objective
from deepbdc.stages.batches import Batch
from deepbdc.training import checkpoint
from deepbdc.training.checkpoint import Progress, Saved
from deepbdc.training.devices import average_buffers, from_first, in_all, process_of, shard
from deepbdc.training.log import EpochRecord, NullLog, StepRecord
from deepbdc.training.optimiser import build_optimiser, rate_factor, set_rates

if TYPE_CHECKING:
    from lightning_fabric import Fabric

LOG_EVERY = 20  # steps
CHECKPOINT_EVERY = 60.0  # seconds


class TrainingError(UserError):
    """Training cannot continue; the message says why, and what to do."""


class Interrupted(Exception):
    """Somebody asked to stop; a checkpoint was written."""


@dataclass
class RunContext:
    """What all stages of a run share."""

    recipe: Recipe
    folder: Path
    fabric: "Fabric"
    log: NullLog
    training_classes: TrainingClasses
    validation: Dataset | None
    episodes: dict[int, Episodes]
    """Validation episodes for each number of shots."""
    header: dict[str, Any]
    """What every file of weights says about its origin: recipe, data, class names."""
    stop_asked: Callable[[], bool]
    checkpoint_every: float = CHECKPOINT_EVERY
    reuse: tuple[Path, ...] = ()
    """Folders of runs whose finished stages may be taken over."""

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.folder / CHECKPOINTS

    @property
    def last(self) -> Path:
        """The checkpoint to resume from."""
        return self.checkpoints / "last.safetensors"

    def best(self, stage: Stage, epoch: int) -> Path:
        """The weights of an epoch that was the best so far."""
        return self.checkpoints / f"{stage.name}-best-{epoch:04d}.safetensors"


@dataclass(frozen=True)
class StepResult:
    """What came out of one step, averaged over its parts and over all processes."""

    loss: float
    numbers: dict[str, float]
    stop: bool = False
    """Whether somebody asked one of the processes to stop."""
    save: bool = False
    """Whether a checkpoint is due in one of the processes."""


class Trainer:
    """An objective and its optimiser on the devices, ready for steps.

    Args:
        fabric: The devices and processes.
        recipe: Precision, memory layout and seed.
        stage: The stage that is trained.
        objective: What is minimised; it is trained in place.
    """

    def __init__(self, fabric: "Fabric", recipe: Recipe, stage: Stage, objective: Objective) -> None:
        self.fabric, self.recipe, self.stage = fabric, recipe, stage
        if recipe.channels_last:
            to_channels_last(objective)
        if recipe.sync_batchnorm and fabric.world_size > 1:
            objective = torch.nn.SyncBatchNorm.convert_sync_batchnorm(objective)
        self.objective = objective
        optimiser = build_optimiser(objective, stage.settings, stage.section)
        self.network: Any
        self.optimiser: Any
        self.network, self.optimiser = fabric.setup(objective, optimiser)
        self.begin_epoch(0)

    def begin_epoch(self, epoch: int) -> None:
        """Put all layers into training mode, but batch norm into evaluation mode where it is frozen."""
        self.network.train()
        first = self.stage.settings.freeze_batchnorm_from
        all_frozen = first is not None and epoch + 1 >= first
        for module in self.objective.modules():
            if isinstance(module, _BatchNorm):
                frozen = module.weight is not None and not module.weight.requires_grad  # its group is frozen
                module.train(not (all_frozen or frozen))

    def step(self, parts: list[Batch], epoch: int, step: int, *, stop: bool = False, save: bool = False) -> StepResult:
        """One step of the optimiser. A loss that is not finite leaves the weights as they are.

        Args:
            parts: What is computed one after the other.
            epoch, step: The position, which seeds dropout.
            stop, save: What this process wants afterwards; the result says whether any process does.
        """
        fabric, process = self.fabric, process_of(self.fabric)
        self.optimiser.zero_grad()
        *early, (last_number, last_part) = enumerate(parts)

        def compute() -> list[Loss]:
            losses = []
            for number, part in early:
                # Processes exchange gradients after the last part only.
                with fabric.no_backward_sync(self.network) if process.count > 1 else nullcontext():
                    losses.append(self._loss(part, epoch, step, number))
                    fabric.backward(losses[-1].value / len(parts))
            return [*losses, self._loss(last_part, epoch, step, last_number)]

        losses = in_all(fabric, compute)
        fabric.backward(losses[-1].value / len(parts))
        names = sorted({name for loss in losses for name in loss.numbers})
        sums = torch.zeros(3 + len(names), device=fabric.device)
        sums[0], sums[1] = float(stop), float(save)
        for loss in losses:
            values = [loss.value.detach(), *(loss.numbers.get(name, sums.new_zeros(())) for name in names)]
            for place, value in enumerate(values, start=2):
                sums[place] += value / len(parts)
        if process.count > 1:
            sums = fabric.all_reduce(sums, reduce_op="mean")
        stop_sum, save_sum, value, *others = sums.tolist()
        if math.isfinite(value):
            self._clip()
            self.optimiser.step()
        average_buffers(fabric, self.objective)
        return StepResult(value, dict(zip(names, others, strict=True)), stop_sum > 0, save_sum > 0)

    def _clip(self) -> None:
        """Limit the gradient as the settings say."""
        settings = self.stage.settings
        if settings.clip_value is None and settings.clip_norm is None:
            return
        precision = self.fabric.strategy.precision
        precision.unscale_gradients(self.optimiser)
        parameters = [value for group in self.optimiser.param_groups for value in group["params"]]
        if settings.clip_value is not None:
            nn.utils.clip_grad_value_(parameters, settings.clip_value)
        if settings.clip_norm is not None:
            norm = nn.utils.clip_grad_norm_(parameters, settings.clip_norm)
            scaled = getattr(precision, "scaler", None) is not None  # then a step that overflows is skipped
            if not scaled and not bool(norm.isfinite()):
                raise NotFinite(f"the norm of the gradient is {float(norm)}")

    def _loss(self, part: Batch, epoch: int, step: int, number: int) -> Loss:
        """The loss of one part of a step."""
        process, recipe = process_of(self.fabric), self.recipe
        piece = number * process.count + process.rank
        torch.manual_seed(derive(recipe.seed, self.stage.name, "model", epoch, step, piece))  # for dropout
        layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
        images, *labels = (self.fabric.to_device(value) for value in part)
        loss: Loss = self.network(images.contiguous(memory_format=layout), *labels)
        return loss


def train_stage(
    context: RunContext, stage: Stage, objective: Objective, batches: Batches, saved: Saved | None
) -> Progress:
    """Train ``objective`` in place, from the checkpoint ``saved`` on if there is one.

    At the end the objective has the weights of the selected epoch.
    """
    fabric, settings, recipe = context.fabric, stage.settings, context.recipe
    progress = Progress(stage.name, seed=recipe.seed, processes=fabric.world_size)
    trainer = Trainer(fabric, recipe, stage, objective)
    objective = trainer.objective
    if saved is not None:
        checkpoint.restore(objective, trainer.optimiser.optimizer, saved, context.last)
        _restore_precision(fabric, saved.progress.precision)
        progress = saved.progress
        _note_other_processes(context, progress)
    clock = _Clock(context.checkpoint_every)
    for epoch in range(progress.epoch, settings.epochs):
        _train_epoch(context, trainer, batches, progress, epoch, clock)
        place = f"the end of epoch {epoch + 1}"
        with _divergence_in_words(context, stage, place):
            validated = _validate(context, stage, objective.method, epoch)
        _finish_epoch(context, stage, objective, progress, batches.steps, validated)
        _save(context, trainer, progress, place)
        _remove_old_best(context, stage, progress)
        clock.restart()
        if any_process_stops(context):
            raise Interrupted
    if settings.select == "best" and progress.best_epoch is not None:
        path = context.best(stage, progress.best_epoch)
        weight_files.load_into(objective, from_first(fabric, lambda: weight_files.load(path)[0]), "", path)
    return progress


def _train_epoch(
    context: RunContext, trainer: Trainer, batches: Batches, progress: Progress, epoch: int, clock: "_Clock"
) -> None:
    """The steps of an epoch that are left, with a checkpoint from time to time."""
    fabric, stage = context.fabric, trainer.stage
    trainer.begin_epoch(epoch)
    throughput = Throughput(batches.images_per_step, progress.step)
    loaded = batches.epoch(epoch, progress.step, context.recipe.workers)
    for step in range(progress.step, batches.steps):
        place = batches.describe(epoch, step)
        parts = in_all(fabric, lambda: next(loaded))
        factor = rate_factor(stage.settings, epoch, step, batches.steps)
        set_rates(trainer.optimiser, factor)
        with _divergence_in_words(context, stage, place):
            result = trainer.step(parts, epoch, step, stop=context.stop_asked(), save=clock.is_due())
            if not math.isfinite(result.loss):
                raise NotFinite(f"the loss is {result.loss}")
        progress.add({"loss": result.loss, **result.numbers})
        written = progress.step % LOG_EVERY == 0 or progress.step == batches.steps
        speed = throughput.measure(progress.step, start_anew=written)
        record = _step_record(stage, batches, progress, epoch, result, factor, speed)
        (context.log.step if written else context.log.show)(record)
        if progress.step < batches.steps:
            if result.stop or result.save:
                _save(context, trainer, progress, place)
                clock.restart()
            if result.stop:
                raise Interrupted


class _Clock:
    """Says when the next checkpoint within an epoch is due."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.restart()

    def restart(self) -> None:
        """Begin to count again."""
        self._since = time.monotonic()

    def is_due(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() - self._since > self._seconds


@contextmanager
def _divergence_in_words(context: RunContext, stage: Stage, place: str) -> Iterator[None]:
    """Numbers that are no longer finite end the training with the last good checkpoint and advice."""
    try:
        yield
    except NotFinite as error:
        raise TrainingError(_not_finite(context, stage, place, str(error))) from error


def any_process_stops(context: RunContext) -> bool:
    """Whether somebody asked any of the processes to stop; all get the same answer."""
    asked = torch.tensor(float(context.stop_asked()), device=context.fabric.device)
    if context.fabric.world_size > 1:
        asked = context.fabric.all_reduce(asked, reduce_op="mean")
    return bool(asked > 0)


def source_options(fabric: "Fabric", recipe: Recipe) -> dict[str, Any]:
    """How a method embeds a data set during the training."""
    return {"device": fabric.device, "workers": recipe.workers, "shard": shard(fabric)}


@torch.no_grad()
def remember(method: Method, base: TrainingClasses) -> None:
    """Let a method keep what it needs of the training classes."""
    with evaluating(method):
        method.remember(base)


def _validate(context: RunContext, stage: Stage, method: Method, epoch: int) -> EvaluationResult | None:
    """Few-shot accuracy on the validation classes, in the epochs that the recipe says."""
    settings, done = stage.settings, epoch + 1
    due = done >= settings.validate_from and (done - settings.validate_from) % settings.validate_every == 0
    if context.validation is None or not (due or done == settings.epochs):
        return None
    validation, episodes = context.validation, context.episodes[context.recipe.validation_shot(stage)]

    def measure() -> EvaluationResult:
        remember(method, context.training_classes)
        return evaluate(method, validation, episodes=episodes, **source_options(context.fabric, context.recipe))

    return in_all(context.fabric, measure)


def _finish_epoch(
    context: RunContext,
    stage: Stage,
    objective: Objective,
    progress: Progress,
    steps: int,
    result: EvaluationResult | None,
) -> None:
    """Log the epoch, keep its weights if it is the best so far, and begin the next."""
    done = progress.epoch + 1
    if result is not None and (progress.best_accuracy is None or result.mean > progress.best_accuracy):
        progress.best_epoch, progress.best_accuracy = done, result.mean
        if stage.settings.select == "best" and context.fabric.is_global_zero:
            checkpoint.save_weights(context.best(stage, done), objective, {**context.header, "stage": stage.name})
    means = {name: value / steps for name, value in progress.sums.items()}
    context.log.epoch(
        EpochRecord(
            stage=stage.name,
            epoch=done,
            epochs=stage.settings.epochs,
            loss=means.pop("loss"),
            accuracy=means.pop("accuracy", None),
            val_accuracy=None if result is None else result.mean,
            val_ci95=None if result is None else result.ci95,
            best_epoch=progress.best_epoch,
            numbers={**means, **scalar_parameters(objective.method)},
            global_step=done * steps,
            transductive=result is not None and result.transductive,
        )
    )
    progress.finish_epoch()


def scalar_parameters(network: nn.Module) -> dict[str, float]:
    """The learnable parameters that are single numbers, such as the scale of BDC pooling, by their shortest name."""
    found = {name: value.item() for name, value in network.named_parameters() if value.dim() == 0}
    short = [name.rpartition(".")[2] for name in found]
    return {
        last if short.count(last) == 1 else name: value
        for (name, value), last in zip(found.items(), short, strict=True)
    }


def _save(context: RunContext, trainer: Trainer, progress: Progress, place: str) -> None:
    """Write the checkpoint to resume from. The first process writes it, as all have the same weights."""

    def write() -> None:
        if not context.fabric.is_global_zero:
            return
        progress.seconds = context.log.seconds
        progress.precision = _precision_state(context.fabric)
        progress.processes = context.fabric.world_size
        try:
            optimiser = trainer.optimiser.optimizer
            checkpoint.save_progress(context.last, trainer.objective, optimiser, progress, context.header)
        except FloatingPointError as error:
            raise TrainingError(_not_finite(context, trainer.stage, place, str(error))) from error

    in_all(context.fabric, write)


def _remove_old_best(context: RunContext, stage: Stage, progress: Progress) -> None:
    """Delete the weights of epochs that are no longer the best; the checkpoint no longer refers to them."""
    if context.fabric.is_global_zero:
        keep = None if progress.best_epoch is None else context.best(stage, progress.best_epoch)
        for path in context.checkpoints.glob(f"{stage.name}-best-*.safetensors"):
            if path != keep:
                path.unlink()


def _not_finite(context: RunContext, stage: Stage, place: str, what: str) -> str:
    kept = f"The last good checkpoint is {context.last}" if context.last.is_file() else "No checkpoint was written yet"
    return (
        f"{stage.name}, {place}: {what.rstrip('.')}. {kept}. Try a smaller learning rate ({stage.section}.lr, now "
        f"{stage.settings.lr}), a warm-up, or full precision, in a new folder (--run)."
    )


def _note_other_processes(context: RunContext, progress: Progress) -> None:
    """Say that a run continues with another number of processes than it was begun with."""
    now = context.fabric.world_size
    if progress.processes != now:
        context.log.message(
            f"This run was trained by {progress.processes} processes and continues with {now}: the result will not be "
            "bit for bit that of an uninterrupted run, because batch norm and augmentation see other parts of a batch."
        )


class Throughput:
    """Images per second."""

    def __init__(self, images_per_step: int, step: int) -> None:
        self._images = images_per_step
        self._step = step
        self._since = time.perf_counter()

    def measure(self, step: int, start_anew: bool) -> float:
        """Images per second since the last start, when ``step`` steps of the epoch are done."""
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
    result: StepResult,
    factor: float,
    speed: float,
) -> StepRecord:
    return StepRecord(
        stage=stage.name,
        epoch=epoch + 1,
        step=progress.step,
        steps=batches.steps,
        loss=result.loss,
        accuracy=result.numbers.get("accuracy"),
        lr=stage.settings.lr * factor,
        images_per_second=speed,
        global_step=epoch * batches.steps + progress.step,
        epochs=stage.settings.epochs,
    )


def _precision_state(fabric: "Fabric") -> dict[str, Any]:
    """The state of the loss scaling, which only half precision has."""
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    return {} if scaler is None else dict(scaler.state_dict())


def _restore_precision(fabric: "Fabric", state: dict[str, Any]) -> None:
    if state:
        fabric.strategy.precision.scaler.load_state_dict(state)
