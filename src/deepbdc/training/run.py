"""From a recipe to a trained, evaluated model in a folder of its own."""

import errno
import json
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock, Timeout

from deepbdc import weight_files
from deepbdc._files import write_json, write_text
from deepbdc._memory import keep_freed_memory
from deepbdc._modes import to_channels_last
from deepbdc._seeds import derive
from deepbdc.data.dataset import Dataset
from deepbdc.episodes import Episodes, sample_episodes
from deepbdc.errors import UserError
from deepbdc.evaluation import EvaluationResult, evaluate
from deepbdc.methods import Method
from deepbdc.methods.base import TrainingClasses
from deepbdc.provenance import origin, record_look
from deepbdc.recipes import Recipe, Stage, build_method, load_recipe
from deepbdc.recipes.recipe import objectives_of
from deepbdc.runs import CHECKPOINTS, CURVE, MODEL, RECIPE, RESULT, is_finished
from deepbdc.sources import prepare_source
from deepbdc.stages import AugmentedImages, Batches, Inputs, Objective, Process
from deepbdc.training import checkpoint, sharing
from deepbdc.training.checkpoint import Saved
from deepbdc.training.curve import draw_curve
from deepbdc.training.devices import DeviceOptions, from_first, in_all, process_of, slow_precision, start
from deepbdc.training.log import FILE_NAME, NullLog, RunLog, truncate_log
from deepbdc.training.loop import (
    CHECKPOINT_EVERY,
    Interrupted,
    RunContext,
    TrainingError,
    any_process_stops,
    remember,
    source_options,
    train_stage,
)

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Interrupted", "TrainingError", "TrainingResult", "train"]


@dataclass(frozen=True)
class TrainingResult:
    """The results of a run, one for each number of shots.

    There is none if the data has no test classes, or if the recipe leaves them alone.
    """

    folder: Path
    results: tuple[EvaluationResult, ...]
    seconds: float


@dataclass(frozen=True)
class _Data:
    """The splits that a run needs."""

    train: Dataset
    val: Dataset | None
    test: Dataset | None


def train(
    recipe: Recipe,
    folder: str | Path,
    *,
    data: str | Path | None = None,
    resume: bool = False,
    devices: DeviceOptions | None = None,
    quiet: bool = False,
    checkpoint_every: float = CHECKPOINT_EVERY,
    reuse: Iterable[Path] = (),
) -> TrainingResult:
    """Train all stages of a recipe, evaluate the model on the test classes, and keep everything in ``folder``.

    Args:
        recipe: What to do.
        folder: The folder of the run. It must be new or empty, unless ``resume``.
        data: The folder that holds prepared benchmarks, or a data set to use in place of the recipe's.
        resume: Continue an interrupted run from its last checkpoint; start it, if there is none yet. On the CPU the
            result is bit for bit that of a run which was never interrupted.
        devices: Where to compute.
        quiet: Print nothing.
        checkpoint_every: Seconds between checkpoints within an epoch. There is also one after each epoch.
        reuse: Folders of other runs. A stage that one of them has trained in exactly the same way is taken from there.
    """
    folder = Path(folder)
    stages = recipe.trainings
    if not stages:
        known = " and ".join(objectives_of(recipe.method, "the recipe"))
        raise UserError(f"the recipe has no stage: give it one of {known}")
    template = build_method(recipe)  # finds mistakes in the recipe before anything is started
    for stage in stages:
        objectives_of(recipe.method, "the recipe")[stage.section].check(stage.settings, template, stage.section)
    _check_folder(folder, recipe, resume)
    fabric = start(devices or DeviceOptions(), recipe.precision)
    keep_freed_memory(large_blocks=True)
    if from_first(fabric, lambda: is_finished(folder)):
        return from_first(fabric, lambda: _read_result(folder))
    # Everything that can show a mistake comes before the first step, not after hours.
    show = fabric.is_global_zero and not quiet
    splits = in_all(fabric, lambda: _load_data(recipe, data, stages, show))
    test_episodes = _test_episodes(recipe, splits.test)
    if splits.test is not None:
        template.check_test_time(recipe.evaluation_settings.test_time)
    validation_episodes = _validation_episodes(recipe, stages, splits.val)
    batches = {stage.name: build_batches(recipe, stage, splits.train, template, process_of(fabric)) for stage in stages}
    header = _header(recipe, splits.train, data)
    with _in_words(folder), _only_user(fabric, folder), _stop_signals() as stop, torch.random.fork_rng(devices=[]):
        saved = from_first(fabric, lambda: _read_progress(folder, header))
        with _open_log(fabric, folder, stages, recipe, saved, quiet) as log:
            if (advice := slow_precision(fabric, recipe.precision)) is not None:
                log.message(advice)
            context = RunContext(
                recipe=recipe,
                folder=folder,
                fabric=fabric,
                log=log,
                training_classes=TrainingClasses(splits.train, **source_options(fabric, recipe)),
                validation=splits.val,
                episodes=validation_episodes,
                header=header,
                stop_asked=stop.is_set,
                checkpoint_every=checkpoint_every,
                reuse=tuple(reuse),
            )
            objective: Objective | None = None
            for stage in stages:
                objective = _run_stage(context, stage, batches[stage.name], objective, saved)
                if any_process_stops(context):
                    raise Interrupted
            assert objective is not None
            return _finish(context, stages[-1], objective, splits.test, test_episodes)


def build_objective(
    recipe: Recipe,
    stage: Stage,
    classes: int,
    before: Objective | None = None,
    base: TrainingClasses | None = None,
) -> Objective:
    """The objective of a stage, with the initial weights that the seed determines."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(recipe.seed, stage.name, "weights"))
        kind = objectives_of(recipe.method, "the recipe")[stage.section]
        return kind(Inputs(build_method(recipe), stage.settings, classes, recipe.dropout, before, base))


def build_batches(recipe: Recipe, stage: Stage, dataset: Dataset, method: Method, process: Process) -> Batches:
    """The batches of a stage, prepared for the network of a method."""
    augmentation = stage.settings.augmentation or recipe.augmentation
    images = AugmentedImages(dataset, method.embedding.preprocessing, augmentation)
    kind = objectives_of(recipe.method, "the recipe")[stage.section].Batches
    return kind(images, stage.settings, stage.name, recipe.seed, process)


def _run_stage(
    context: RunContext, stage: Stage, batches: Batches, before: Objective | None, saved: Saved | None
) -> Objective:
    """Train one stage, or load its result if it is complete. ``before`` is the stage before."""
    classes = len(context.header["class_names"])
    objective = build_objective(context.recipe, stage, classes, before, context.training_classes)
    path = context.checkpoints / f"{stage.name}.safetensors"
    if from_first(context.fabric, path.is_file):
        weight_files.load_into(objective, from_first(context.fabric, lambda: weight_files.load(path)[0]), "", path)
        return objective
    if before is not None and not objective.starts_anew:
        objective.continue_from(before)
    fingerprint = context.header["data_fingerprint"]
    identity = from_first(
        context.fabric, lambda: sharing.identify(context.recipe, stage, objective, batches, fingerprint)
    )
    begun = saved if saved is not None and saved.progress.stage == stage.name else None
    taken = None if begun is not None else _take_over(context, stage, objective, identity)
    if taken is None:
        progress = train_stage(context, stage, objective, batches, begun)
        best = stage.settings.select == "best" and progress.best_epoch is not None
        selected = progress.best_epoch if best else stage.settings.epochs
        assert selected is not None
    else:
        selected = taken
    in_all(context.fabric, lambda: remember(objective.method, context.training_classes))
    if context.fabric.is_global_zero:
        context.log.stage(stage.name, selected)
        header = {**context.header, **({} if identity is None else identity.header)}
        checkpoint.save_weights(path, objective, {**header, "stage": stage.name, "epoch": selected})
        draw_curve(context.folder / FILE_NAME, context.folder / CURVE)
        for old in context.checkpoints.glob(f"{stage.name}-best-*.safetensors"):
            old.unlink()
    context.fabric.barrier()
    return objective


def _take_over(
    context: RunContext, stage: Stage, objective: Objective, identity: sharing.Identity | None
) -> int | None:
    """Load the stage from a run that has trained the same, if there is one, and return the epoch that it kept."""
    if not context.reuse or identity is None:
        return None
    found = from_first(context.fabric, lambda: sharing.find(context.reuse, stage, identity))
    if found is None:
        return None
    tensors, header = from_first(context.fabric, lambda: weight_files.load(found))
    sharing.take_over(objective, identity, tensors, header)
    if context.recipe.channels_last:
        to_channels_last(objective)
    precision = header["recipe"]["precision"]
    other = f" (trained with precision {precision})" if precision != context.recipe.precision else ""
    context.log.message(f"{stage.name} is the same as in {found.parent.parent}, and is taken from there{other}")
    epoch: int = header["epoch"]
    return epoch


def _finish(
    context: RunContext, stage: Stage, objective: Objective, test: Dataset | None, drawn: list[Episodes]
) -> TrainingResult:
    """Write the model of the last stage, and evaluate it on the test classes."""
    fabric, folder, log = context.fabric, context.folder, context.log
    if fabric.is_global_zero:
        checkpoint.save_weights(folder / MODEL, objective, {**context.header, "stage": stage.name})
        draw_curve(folder / FILE_NAME, folder / CURVE)
    if test is not None:
        log.message(f"Evaluating on {len(test):,} images of {len(test.class_names)} new classes")
    results = in_all(fabric, lambda: _evaluate(context, objective.method, test, drawn))
    result = TrainingResult(folder, tuple(results), log.seconds)
    if fabric.is_global_zero:
        _write_result(folder, context.recipe, result, context.header["data_fingerprint"])
    fabric.barrier()
    return result


def _header(recipe: Recipe, dataset: Dataset, data: str | Path | None) -> dict[str, Any]:
    """What every file of weights says about its origin."""
    place = None if data is None else str(Path(data).resolve() if Path(data).exists() else data)
    return {
        "recipe": recipe.as_dict(),
        "class_names": list(dataset.class_names),
        "data": place,
        "data_fingerprint": dataset.fingerprint,
    }


def _read_progress(folder: Path, header: dict[str, Any]) -> Saved | None:
    """The last checkpoint, if there is one. One that was made with other data is an error.

    Incomplete files that a killed process left behind are removed.
    """
    files = folder / CHECKPOINTS
    for left in files.glob(".*.part"):
        left.unlink()
    saved = checkpoint.read_progress(files / "last.safetensors")
    if saved is not None and saved.header["data_fingerprint"] != header["data_fingerprint"]:
        old = saved.header
        raise UserError(
            f"the run in {folder} was begun with other images (its data was {old['data'] or old['recipe']['data']}): "
            "give the same --data, or choose another folder (--run)"
        )
    return saved


@contextmanager
def _only_user(fabric: "Fabric", folder: Path) -> Iterator[None]:
    """Lock the folder, so that a second training of the same run does not delete the files of the first."""
    lock = FileLock(folder / ".lock")

    def acquire() -> None:
        if fabric.is_global_zero:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                raise UserError(
                    f"another process is training the run in {folder}: wait for it, or choose another folder (--run)"
                ) from None

    in_all(fabric, acquire)
    try:
        yield
    finally:
        lock.release()


def _check_folder(folder: Path, recipe: Recipe, resume: bool) -> None:
    """Raise if the folder holds another run, or something else."""
    written = folder / RECIPE
    if not written.is_file():
        content = [entry for entry in folder.iterdir() if entry.name != ".lock"] if folder.is_dir() else []
        if content and not resume:
            raise FileExistsError(f"{folder} is not empty, and holds no run: choose another folder with --run")
        return
    if not resume:
        raise FileExistsError(f"{folder} holds a run already: continue it (--resume), or choose another folder (--run)")
    old, new = load_recipe(written).as_dict(), recipe.as_dict()
    free = ("workers",)  # does not change the result
    changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key) and key not in free)
    if changed:
        raise UserError(
            f"the run in {folder} was begun with another recipe; different are: {', '.join(changed)}. "
            f"Give the same, or choose another folder (--run). The recipe it was begun with is {written}"
        )


def _open_log(
    fabric: "Fabric", folder: Path, stages: list[Stage], recipe: Recipe, saved: Saved | None, quiet: bool
) -> NullLog:
    """The log of a run; the log of a resumed run is cut back to its checkpoint."""
    seconds = None if saved is None else saved.progress.seconds
    if not fabric.is_global_zero:
        return NullLog(resume_from=seconds)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / RECIPE, recipe.as_yaml())
    if saved is not None:
        names, progress = [stage.name for stage in stages], saved.progress
        done = (folder / CHECKPOINTS / f"{progress.stage}.safetensors").is_file()
        following = names.index(progress.stage) + 1 if progress.stage in names else len(names)
        if not done:
            truncate_log(folder / FILE_NAME, names, progress.stage, progress.epoch + 1, progress.step)
        elif following < len(names):
            truncate_log(folder / FILE_NAME, names, names[following], 1, 0)
    return RunLog(folder, quiet=quiet, resume_from=seconds)


def _load_data(recipe: Recipe, data: str | Path | None, stages: list[Stage], show: bool) -> _Data:
    from deepbdc.data.loading import find_data, load_splits
    from deepbdc.data.shrunk import shrunk

    name, root = find_data(recipe.data, data)
    there = load_splits(name, root)
    choosing = [stage.section for stage in stages if stage.settings.select == "best"]
    if "val" not in there and choosing:
        values = " ".join(f"{section}.select=last" for section in dict.fromkeys(choosing))
        raise UserError(
            f"{name} has no validation classes to choose the best epoch by: add a folder val, or give {values}"
        )
    needed = [split for split in there if split != "test" or recipe.evaluation is not None]
    found = {split: shrunk(there[split], recipe.shrink_to, progress=show) for split in needed}
    return _Data(found["train"], found.get("val"), found.get("test"))


def _validation_episodes(recipe: Recipe, stages: list[Stage], dataset: Dataset | None) -> dict[int, Episodes]:
    if dataset is None:
        return {}
    chosen = recipe.validation
    shots = {recipe.validation_shot(stage) for stage in stages}
    return {
        shot: sample_episodes(dataset, chosen.way, shot, chosen.query, chosen.episodes, recipe.seed) for shot in shots
    }


def _test_episodes(recipe: Recipe, dataset: Dataset | None) -> list[Episodes]:
    if dataset is None:
        return []
    chosen = recipe.evaluation_settings
    kind: dict[str, Any] = {"unbalanced": chosen.unbalanced, "dirichlet": chosen.dirichlet}
    return [
        sample_episodes(dataset, chosen.way, shot, chosen.query, chosen.episodes, chosen.seed, **kind)
        for shot in chosen.shots
    ]


def _evaluate(
    context: RunContext, method: Method, dataset: Dataset | None, drawn: list[Episodes]
) -> list[EvaluationResult]:
    """Evaluate on the test classes. Every image is embedded once."""
    if dataset is None:
        return []
    shown = context.log.interactive
    options = source_options(context.fabric, context.recipe)
    test_time = context.recipe.evaluation_settings.test_time
    source = prepare_source(method, dataset, test_time, context.training_classes, **options, progress=shown)
    return [evaluate(method, dataset, episodes=episodes, bank=source, progress=shown) for episodes in drawn]


def _write_result(folder: Path, recipe: Recipe, result: TrainingResult, training_data: str) -> None:
    """Write the results and where they come from, and count the look at the test classes."""
    content = {
        **origin(),
        "method": recipe.method,
        "data": recipe.data,
        "training_data_fingerprint": training_data,
        "training_seed": recipe.seed,
        "seconds": result.seconds,
        "looks": record_look(folder, "train", result.results),
        "results": [one.as_json() for one in result.results],
    }
    write_json(folder / RESULT, content)


def _read_result(folder: Path) -> TrainingResult:
    content = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    results = tuple(EvaluationResult.from_json(one) for one in content["results"])
    return TrainingResult(folder, results, content["seconds"])


@contextmanager
def _in_words(folder: Path) -> Iterator[None]:
    """Explain an interruption, or a full disk, in words."""
    again = "Continue with the same command and --resume"
    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        raise Interrupted(f"interrupted. Everything up to the last checkpoint is kept in {folder}. {again}.") from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise TrainingError(
            f"there is no space left to write {folder} ({error.strerror}). The last checkpoint is complete. "
            f"Free some space. {again}."
        ) from error


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Ctrl-C, or the SIGTERM of a cluster, stops after the current step; a second one stops at once."""
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        print("\nStopping after this step. Press Ctrl-C again to stop at once.", file=sys.stderr, flush=True)

    if threading.current_thread() is not threading.main_thread():
        yield asked  # Python handles signals in the main thread only
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
