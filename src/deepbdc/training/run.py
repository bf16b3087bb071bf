"""A run: from a recipe to a trained, evaluated model in a folder of its own, and back from the folder to the model."""

import errno
import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from deepbdc import weight_files
from deepbdc._files import write_text
from deepbdc._memory import keep_freed_memory
from deepbdc.data.dataset import Dataset
from deepbdc.episodes import Episodes, sample_episodes
from deepbdc.errors import UserError
from deepbdc.evaluation import EvaluationResult, evaluate
from deepbdc.feature_bank import build_bank
from deepbdc.methods import Method
from deepbdc.training import checkpoint
from deepbdc.training.batches import Batches, Images
from deepbdc.training.devices import DeviceOptions, from_first, process_of, shard, start
from deepbdc.training.log import FILE_NAME, NullLog, RunLog, draw_curve, truncate_log
from deepbdc.training.loop import (
    CHECKPOINT_EVERY,
    Interrupted,
    Surroundings,
    TrainingError,
    any_process_stops,
    train_stage,
    validation_shot,
)
from deepbdc.training.recipe import Recipe, recipe_from_dict
from deepbdc.training.stages import PretrainTask, Stage, Task, build_batches, build_method, build_task, stages_of

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Interrupted", "Run", "TrainingError", "TrainingResult", "is_finished", "load_run", "train"]

MODEL, RESULT, RECIPE, CURVE = "model.safetensors", "result.json", "recipe.yaml", "curve.png"


@dataclass(frozen=True)
class TrainingResult:
    """What came out of a run: one result for each number of shots.

    There is none if the data has no test classes, or the recipe leaves them alone.
    """

    folder: Path
    results: tuple[EvaluationResult, ...]
    seconds: float


@dataclass(frozen=True)
class Run:
    """A trained model and where it comes from."""

    folder: Path
    name: str
    recipe: Recipe
    method: Method
    class_names: tuple[str, ...]
    """Of the classes that it was trained on."""
    data: str | None
    """Where the data was, if that was said."""


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
) -> TrainingResult:
    """Train all stages of a recipe, evaluate the model on the test classes, and keep everything in ``folder``.

    Args:
        recipe: What to do.
        folder: Of the run. It must be new or empty, unless ``resume``.
        data: The folder in which prepared benchmarks lie, or a data set to use in place of the recipe's.
        resume: Go on with an interrupted run, from its last checkpoint; start, if there is nothing yet. On the CPU the
            result is bit for bit that of a run which was never interrupted.
        devices: Where to compute.
        quiet: Print nothing.
        checkpoint_every: Seconds from one checkpoint to the next within an epoch. There is one after each epoch, too.
    """
    folder = Path(folder)
    stages = stages_of(recipe)
    template = build_method(recipe)  # finds mistakes in the recipe before anything is started
    _check_folder(folder, recipe, resume)
    fabric = start(devices or DeviceOptions(), recipe.precision)
    keep_freed_memory()
    if from_first(fabric, lambda: is_finished(folder)):
        return from_first(fabric, lambda: _read_result(folder))
    # Everything that can show a mistake comes before the first step, not after hours.
    splits = _load_data(recipe, data, stages)
    test_episodes = _test_episodes(recipe, splits.test)
    validation_episodes = _validation_episodes(recipe, stages, splits.val)
    images = Images(splits.train, template.embedding.preprocessing, recipe.augmentation)
    batches = {stage.name: build_batches(recipe, stage, images, process_of(fabric)) for stage in stages}
    header = _header(recipe, splits.train, data)
    with _in_words(folder), _stop_signals() as stop, torch.random.fork_rng(devices=[]):
        saved = from_first(fabric, lambda: _read_progress(folder, header))
        log = _open_log(fabric, folder, stages, recipe, saved, quiet)
        with log:
            around = Surroundings(
                recipe=recipe,
                folder=folder,
                fabric=fabric,
                log=log,
                validation=splits.val,
                episodes=validation_episodes,
                header=header,
                stop_asked=stop.is_set,
                checkpoint_every=checkpoint_every,
            )
            task: Task | None = None
            for stage in stages:
                task = _run_stage(around, stage, batches[stage.name], task, saved)
                if any_process_stops(around):
                    raise Interrupted
            assert task is not None
            if fabric.is_global_zero:
                checkpoint.save_weights(folder / MODEL, task, {**header, "stage": stages[-1].name})
                draw_curve(folder / FILE_NAME, folder / CURVE)
            if splits.test is not None:
                log.message(f"Evaluating on {len(splits.test):,} images of {len(splits.test.class_names)} new classes")
            results = _evaluate(around, task.method, splits.test, test_episodes)
            result = TrainingResult(folder, tuple(results), log.seconds)
            if fabric.is_global_zero:
                _write_result(folder, recipe, result)
            fabric.barrier()
            return result


def is_finished(folder: str | Path) -> bool:
    """Whether a run is complete."""
    return (Path(folder) / RESULT).is_file() and (Path(folder) / MODEL).is_file()


def load_run(path: str | Path) -> Run:
    """The trained model of a run, in evaluation mode, from its folder or from one of its files of weights."""
    path = Path(path)
    file = path / MODEL if path.is_dir() else path
    if not file.is_file():
        unfinished = path.is_dir() and (path / "checkpoints").is_dir()
        hint = "; the run is not finished: train it with --resume" if unfinished else ""
        raise FileNotFoundError(f"{path} holds no trained model ({MODEL}){hint}")
    tensors, header = weight_files.load(file)
    if header.get("kind") != "weights" or "recipe" not in header:
        raise UserError(f"{file} is a checkpoint to resume from, not a trained model: take {MODEL} of the same run")
    recipe = recipe_from_dict(header["recipe"], str(file))
    with torch.random.fork_rng(devices=[]):
        method = build_method(recipe)
    weight_files.load_into(method, tensors, "method.", file, ignore=("head.",))
    method.embedding.preprocessing = weight_files.read_preprocessing(header)
    folder = path if path.is_dir() else path.parent
    name = folder.name if path.is_dir() else path.stem
    return Run(folder, name, recipe, method.eval(), tuple(header["class_names"]), header["data"])


def _run_stage(
    around: Surroundings,
    stage: Stage,
    batches: Batches,
    before: Task | None,
    saved: tuple[checkpoint.Progress, dict[str, torch.Tensor]] | None,
) -> Task:
    """Train one stage, or take its result if it is there. ``before`` is the stage before."""
    assert before is None or isinstance(before, PretrainTask)
    task = build_task(around.recipe, stage, len(around.header["class_names"]), before)
    path = around.checkpoints / f"{stage.name}.safetensors"
    if from_first(around.fabric, path.is_file):
        weight_files.load_into(task, from_first(around.fabric, lambda: weight_files.load(path)[0]), "", path)
        return task
    if stage.start is not None and before is not None:
        task.method.embedding.load_state_dict(before.method.embedding.state_dict())
    own = saved if saved is not None and saved[0].stage == stage.name else None
    progress = train_stage(around, stage, task, batches, own)
    best = stage.settings.select == "best" and progress.best_epoch is not None
    selected = progress.best_epoch if best else stage.settings.epochs
    assert selected is not None
    if around.fabric.is_global_zero:
        around.log.stage(stage.name, selected)
        checkpoint.save_weights(path, task, {**around.header, "stage": stage.name, "epoch": selected})
        draw_curve(around.folder / FILE_NAME, around.folder / CURVE)
        for old in around.checkpoints.glob(f"{stage.name}-best-*.safetensors"):
            old.unlink()
    around.fabric.barrier()
    return task


def _header(recipe: Recipe, dataset: Dataset, data: str | Path | None) -> dict[str, Any]:
    """What every file of weights says of where they come from."""
    place = None if data is None else str(Path(data).resolve() if Path(data).exists() else data)
    return {
        "recipe": recipe.as_dict(),
        "class_names": list(dataset.class_names),
        "data": place,
        "data_fingerprint": dataset.fingerprint,
    }


def _read_progress(folder: Path, header: dict[str, Any]) -> tuple[checkpoint.Progress, dict[str, torch.Tensor]] | None:
    """The last checkpoint, if there is one; an error, if it is of other data. What a kill left behind is removed."""
    files = folder / "checkpoints"
    for left in files.glob(".*.part"):
        left.unlink()
    found = checkpoint.read_progress(files / "last.safetensors")
    if found is None:
        return None
    progress, tensors, old = found
    if old["data_fingerprint"] != header["data_fingerprint"]:
        raise UserError(
            f"the run in {folder} was begun with other images (its data was {old['data'] or old['recipe']['data']}): "
            "give the same --data, or choose another folder (--run)"
        )
    return progress, tensors


def _check_folder(folder: Path, recipe: Recipe, resume: bool) -> None:
    """Refuse to mix two runs."""
    written = folder / RECIPE
    if not written.is_file():
        if folder.is_dir() and any(folder.iterdir()) and not resume:
            raise FileExistsError(f"{folder} is not empty, and holds no run: choose another folder with --run")
        return
    if not resume:
        raise FileExistsError(
            f"{folder} holds a run already: go on with it (--resume), or choose another folder (--run)"
        )
    from deepbdc.training.recipe import load_recipe

    old, new = load_recipe(written).as_dict(), recipe.as_dict()
    free = ("workers",)  # changes nothing of the result
    changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key) and key not in free)
    if changed:
        raise UserError(
            f"the run in {folder} was begun with another recipe; different are: {', '.join(changed)}. "
            f"Give the same, or choose another folder (--run). The recipe it was begun with is {written}"
        )


def _open_log(
    fabric: "Fabric",
    folder: Path,
    stages: list[Stage],
    recipe: Recipe,
    saved: tuple[checkpoint.Progress, Any] | None,
    quiet: bool,
) -> NullLog:
    """The log of a run; that of a resumed one is cut back to where it goes on."""
    seconds = None if saved is None else saved[0].seconds
    if not fabric.is_global_zero:
        return NullLog(resume_from=seconds)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / RECIPE, recipe.as_yaml())
    if saved is not None:
        names, progress = [stage.name for stage in stages], saved[0]
        done = (folder / "checkpoints" / f"{progress.stage}.safetensors").is_file()
        following = names.index(progress.stage) + 1 if progress.stage in names else len(names)
        if not done:
            truncate_log(folder / FILE_NAME, names, progress.stage, progress.epoch + 1, progress.step)
        elif following < len(names):
            truncate_log(folder / FILE_NAME, names, names[following], 1, 0)
    return RunLog(folder, quiet=quiet, resume_from=seconds)


def _load_data(recipe: Recipe, data: str | Path | None, stages: list[Stage]) -> _Data:
    from deepbdc.data.loading import find_data, load_splits

    name, root = find_data(recipe.data, data)
    there = load_splits(name, root)
    found = _Data(there["train"], there.get("val"), None if recipe.evaluation is None else there.get("test"))
    if found.val is None and any(stage.settings.select == "best" for stage in stages):
        raise UserError(
            f"{name} has no validation classes to choose the best epoch by: add a folder val, or select=last"
        )
    return found


def _validation_episodes(recipe: Recipe, stages: list[Stage], dataset: Dataset | None) -> dict[int, Episodes]:
    if dataset is None:
        return {}
    chosen = recipe.validation
    shots = {validation_shot(recipe, stage) for stage in stages}
    return {
        shot: sample_episodes(dataset, chosen.way, shot, chosen.query, chosen.episodes, recipe.seed) for shot in shots
    }


def _test_episodes(recipe: Recipe, dataset: Dataset | None) -> list[Episodes]:
    if dataset is None:
        return []
    chosen = recipe.evaluation_settings
    return [
        sample_episodes(dataset, chosen.way, shot, chosen.query, chosen.episodes, chosen.seed) for shot in chosen.shots
    ]


def _evaluate(
    around: Surroundings, method: Method, dataset: Dataset | None, drawn: list[Any]
) -> list[EvaluationResult]:
    """Evaluate on the test classes, every image embedded once."""
    if dataset is None:
        return []
    fabric, workers = around.fabric, around.recipe.workers
    bank = build_bank(method.embedding, dataset, device=fabric.device, workers=workers, shard=shard(fabric))
    return [
        evaluate(method.for_shot(episodes.settings.shot), dataset, episodes=episodes, bank=bank) for episodes in drawn
    ]


def _write_result(folder: Path, recipe: Recipe, result: TrainingResult) -> None:
    content = {
        "method": recipe.method,
        "data": recipe.data,
        "seconds": result.seconds,
        "results": [one.as_json() for one in result.results],
    }
    write_text(folder / RESULT, json.dumps(content, indent=1) + "\n")


def _read_result(folder: Path) -> TrainingResult:
    content = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    results = tuple(EvaluationResult.from_json(one) for one in content["results"])
    return TrainingResult(folder, results, content["seconds"])


@contextmanager
def _in_words(folder: Path) -> Iterator[None]:
    """Say what happened when the machine, or a person, stops a run."""
    again = "Go on by the same command with --resume"
    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        raise Interrupted(f"interrupted; what was done is kept in {folder}. {again}.") from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise TrainingError(
            f"there is no space left to write {folder} ({error.strerror}). The last checkpoint is whole. "
            f"Make room. {again}."
        ) from error


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Ctrl-C, or a cluster's SIGTERM, asks to stop after the step; a second one stops at once."""
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        print("\nStopping after this step; once more to stop at once.", file=sys.stderr, flush=True)

    if threading.current_thread() is not threading.main_thread():
        yield asked  # signals can be handled in the main thread only
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
