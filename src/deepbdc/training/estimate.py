"""What a training will cost, for ``--dry-run``: parameters, data, time and memory, measured in a few real steps."""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from deepbdc._memory import keep_freed_memory
from deepbdc.data import benchmarks
from deepbdc.data.benchmarks import SPLITS
from deepbdc.data.dataset import ArrayDataset, Dataset
from deepbdc.data.loading import find_data, list_datasets, load_splits
from deepbdc.episodes import sample_episodes
from deepbdc.evaluation import evaluate
from deepbdc.feature_bank import FeatureBank, Source
from deepbdc.methods import Method
from deepbdc.methods.base import TrainingClasses
from deepbdc.recipes import Evaluation, Recipe, Validation, build_method
from deepbdc.stages import Batches, Objective, Process, StageSettings
from deepbdc.training.devices import DeviceOptions, start
from deepbdc.training.loop import Trainer, remember
from deepbdc.training.run import build_batches, build_objective

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from rich.console import RenderableType

_MOST_STEPS = 20
_ENOUGH_SECONDS = 3.0
_EPISODES = 100
_IMAGES = 32


@dataclass(frozen=True)
class SplitSize:
    """Classes and images of a split."""

    classes: int
    images: int


@dataclass(frozen=True)
class StageEstimate:
    """What a stage costs; numbers that depend on unknown data are None.

    Attributes:
        name: Name of the stage in the log.
        epochs: Epochs of the recipe.
        full_epochs: How many epochs with images of full size would take as long.
        steps: Steps per epoch.
        images_per_step: Images per step in all processes together.
        step_seconds: Duration of a step, measured.
        validations: Number of epochs that are validated.
        validation_seconds: Duration of one validation.
    """

    name: str
    epochs: int
    full_epochs: float
    steps: int | None
    images_per_step: int
    step_seconds: float
    validations: int
    validation_seconds: float | None

    @property
    def epoch_seconds(self) -> float | None:
        """Training of one epoch with images of full size, without validation."""
        return None if self.steps is None else self.steps * self.step_seconds

    @property
    def seconds(self) -> float | None:
        """The whole stage."""
        if self.epoch_seconds is None:
            return None
        return self.full_epochs * self.epoch_seconds + self.validations * (self.validation_seconds or 0.0)


@dataclass(frozen=True)
class Estimate:
    """What a recipe costs on this machine.

    Attributes:
        parameters: Learnable numbers of the method: backbone, pooling layer and classifier.
        head_parameters: Largest number of learnable numbers that a stage has besides, such as those of its linear head.
        data: The name or path of the data set.
        data_source: ``"here"`` (counted), ``"facts"`` (the images are not here yet) or ``"unknown"``.
        splits: The sizes of the splits that exist.
        stages: The stages in their order.
        evaluation_seconds: Duration of the final evaluation on the test classes, None if unknown.
        device: ``cpu`` or ``cuda``.
        processes: Number of processes that share each step.
        memory: Measured peak memory of one process in bytes; None where the system does not tell.
        bank: Bytes of the representations of the largest split that is evaluated.
        data_in_memory: Whether ``memory`` includes the images.
        busy: Whether other programs kept the machine busy, so that the measured times are too long.
    """

    parameters: int
    head_parameters: int
    data: str
    data_source: str
    splits: Mapping[str, SplitSize]
    stages: tuple[StageEstimate, ...]
    evaluation_seconds: float | None
    device: str
    processes: int
    memory: int | None
    bank: int
    data_in_memory: bool
    busy: bool = False

    @property
    def seconds(self) -> float | None:
        """Of the whole run, None if unknown."""
        parts = [stage.seconds for stage in self.stages]
        known = [part for part in parts if part is not None]
        return sum(known) + (self.evaluation_seconds or 0.0) if len(known) == len(parts) else None


def estimate(recipe: Recipe, options: DeviceOptions, *, data: str | Path | None = None) -> Estimate:
    """Measure some steps of each stage on random images, and extrapolate to the whole training.

    Nothing is written, except that ``glyphs`` are drawn and kept if they were never used before.

    Args:
        recipe: The training.
        options: Its devices. Only one process is started, which measures its own share of a step: the time in which
            processes exchange gradients, or wait for a core that they share, is not counted.
        data: As for `train`.
    """
    busy = _is_busy()
    source, sizes, datasets = _look_at_data(recipe, data)
    name, _ = find_data(recipe.data, data)
    processes = _count_processes(options)
    with torch.random.fork_rng():
        fabric = start(replace(options, devices=1, num_nodes=1, strategy="auto"), recipe.precision)
        keep_freed_memory(large_blocks=True)
        if fabric.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(fabric.device)
        in_memory = _in_memory(str(name), datasets)
        at_hand = in_memory or recipe.shrink_to is not None  # shrunk images are decoded before the training
        method = build_method(recipe)
        scoring = _Scoring(fabric, method)
        stages, head = _measure_stages(recipe, fabric, sizes, at_hand, Process(0, processes), scoring)
        evaluation = None
        if "test" in sizes and recipe.evaluation is not None:
            evaluation = scoring.seconds(sizes["test"].images, recipe.evaluation, recipe.evaluation.shots)
    evaluated = [sizes[split].images for split in ("val", "test") if split in sizes]
    return Estimate(
        parameters=_count(method),
        head_parameters=head if "train" in sizes else 0,
        data=str(name),
        data_source=source,
        splits=sizes,
        stages=tuple(stages),
        evaluation_seconds=evaluation,
        device=fabric.device.type,
        processes=processes,
        memory=_peak_memory(fabric),
        bank=max(evaluated, default=0) * scoring.numbers_per_image * 4,
        data_in_memory=bool(datasets) and in_memory,
        busy=busy,
    )


def describe(estimate: Estimate) -> "RenderableType":
    """The estimate as lines and a table, for rich to print."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("stage", "epochs", "steps per epoch", "images per step", "epoch", "validation", "in all"):
        # On a narrow terminal, long headings are folded and numbers are not.
        table.add_column(heading, justify="left" if heading == "stage" else "right", no_wrap=" per " not in heading)
    for stage in estimate.stages:
        steps = "unknown" if stage.steps is None else f"{stage.steps:,}"
        validation = "" if stage.validation_seconds is None else _time(stage.validation_seconds)
        times = (_time(stage.epoch_seconds), validation, _time(stage.seconds))
        table.add_row(stage.name, str(stage.epochs), steps, f"{stage.images_per_step:,}", *times)
    table.add_row("evaluation", "", "", "", "", "", _time(estimate.evaluation_seconds), end_section=True)
    table.add_row("all", "", "", "", "", "", _time(estimate.seconds))
    return Group(*(Text(line) for line in _facts_in_words(estimate)), table)


def _facts_in_words(estimate: Estimate) -> list[str]:
    head = f" + {estimate.head_parameters:,} of the head that only some stages have" if estimate.head_parameters else ""
    sizes = [f"{split} {size.classes:,} classes, {size.images:,} images" for split, size in estimate.splits.items()]
    source = {
        "here": "; ".join(sizes),
        "facts": "; ".join(sizes) + " (as published: the images are not here yet)",
        "unknown": "not here, so its size is unknown",
    }
    processes = f", {estimate.processes} processes (their exchange is not counted)" if estimate.processes > 1 else ""
    busy = "; the machine is busy with other work, alone it is faster" if estimate.busy else ""
    files = "" if estimate.data_in_memory else ", without the images" if estimate.device == "cpu" else ""
    memory = "unknown" if estimate.memory is None else f"{_size(estimate.memory)} at most in these steps{files}"
    return [
        f"Parameters: {estimate.parameters:,}{head}",
        f"Data: {estimate.data}: {source[estimate.data_source]}",
        f"Memory: {memory}, and up to {_size(estimate.bank)} for the features of an evaluation",
        f"Time: measured now in a few steps on {estimate.device}{processes}{busy}",
    ]


def _time(seconds: float | None) -> str:
    """For people.

    >>> _time(0.42), _time(92), _time(7384), _time(400_000), _time(None)
    ('0.4 s', '1:32 min', '2:03 h', '4.6 days', 'unknown')
    """
    if seconds is None:
        return "unknown"
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02} min"
    return f"{minutes // 60}:{minutes % 60:02} h" if minutes < 48 * 60 else f"{seconds / 86400:.1f} days"


def _size(count: int) -> str:
    """Bytes for people.

    >>> _size(350_000_000), _size(2_500_000_000)
    ('350 MB', '2.5 GB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _look_at_data(recipe: Recipe, data: str | Path | None) -> tuple[str, dict[str, SplitSize], list[Dataset]]:
    """Where the sizes come from, the sizes, and the data sets (kept, because a run keeps them in memory as well)."""
    name, root = find_data(recipe.data, data)
    try:
        found = load_splits(name, root)
    except FileNotFoundError:
        if str(name) not in list_datasets():
            return "unknown", {}, []
        return "facts", {split: _facts(str(name), split) for split in SPLITS}, []
    sizes = {split: SplitSize(len(dataset.class_names), len(dataset)) for split, dataset in found.items()}
    return "here", sizes, list(found.values())


def _facts(name: str, split: str) -> SplitSize:
    """The published size of a benchmark, which is known without its images."""
    parts = [(benchmarks.get(part), where) for part, where in benchmarks.sources(name, split)]
    classes = sum(len(benchmark.classes[where]) for benchmark, where in parts)
    return SplitSize(classes, sum(benchmark.images[where] for benchmark, where in parts))


def _in_memory(name: str, datasets: list[Dataset]) -> bool:
    """Whether the images are arrays in memory; otherwise worker processes read them from files."""
    if datasets:
        return isinstance(datasets[0], ArrayDataset)
    known = name in list_datasets()
    return known and all(benchmarks.get(part).layout == "arrays" for part in benchmarks.components(name))


def _is_busy() -> bool:
    """Whether other programs used more than half of the cores in the last minute."""
    try:
        return os.getloadavg()[0] > 0.5 * (os.cpu_count() or 1)
    except (AttributeError, OSError):  # the system does not tell
        return False


def _count_processes(options: DeviceOptions) -> int:
    """Processes of the whole run."""
    devices = str(options.devices)
    if devices == "auto":
        on_gpus = options.accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available()
        here = torch.cuda.device_count() if on_gpus else 1
    else:
        here = int(devices) if devices.isdecimal() else len([part for part in devices.split(",") if part.strip()])
    return max(1, here) * options.num_nodes


class _Imagined(ArrayDataset):
    """A data set of random noise with ``pictures`` different images; a single one is repeated without using memory."""

    def __init__(self, size: SplitSize, side: int, pictures: int = 1) -> None:
        labels = np.arange(size.images, dtype=np.int64) % size.classes
        Dataset.__init__(self, "imagined", "train", [f"{label:06}" for label in range(size.classes)], labels)
        noise = np.random.default_rng(0).integers(0, 256, (pictures, side, side, 3), dtype=np.uint8)
        self.images = noise if pictures == size.images else np.broadcast_to(noise, (size.images, side, side, 3))

    @property
    def fingerprint(self) -> str:
        """Tells two of these data sets apart; it is never stored."""
        return f"imagined {len(self)}"

    def content_ids(self) -> NDArray[np.int64]:
        """Treats all images as different."""
        return np.arange(len(self), dtype=np.int64)


def _measure_stages(
    recipe: Recipe,
    fabric: "Fabric",
    sizes: Mapping[str, SplitSize],
    at_hand: bool,
    process: Process,
    scoring: "_Scoring",
) -> tuple[list[StageEstimate], int]:
    """Estimates of all stages, and the largest number of parameters that one has besides those of the method.

    The trainings of one section, such as the generations of a distillation, are alike: only the first is measured.
    """
    known = sizes.get("train")
    imagined = _Imagined(known or SplitSize(64, 64 * 100), scoring.method.embedding.preprocessing.input_size)
    measured: dict[str, float] = {}
    estimates: list[StageEstimate] = []
    before: Objective | None = None
    head = 0
    for stage in recipe.trainings:
        batches = build_batches(recipe, stage, imagined, scoring.method, process)
        if stage.section not in measured:
            before = build_objective(recipe, stage, len(imagined.class_names), before)
            head = max(head, _count(before) - _count(before.method))
            measured[stage.section] = _measure_step(Trainer(fabric, recipe, stage, before), batches, at_hand)
        settings, val = stage.settings, sizes.get("val")
        seconds = None
        if val is not None:
            seconds = scoring.seconds(val.images, recipe.validation, [recipe.validation_shot(stage)])
        steps = None if known is None and batches.steps_depend_on_data else batches.steps
        count = 0 if val is None else _count_validations(settings)
        step = measured[stage.section]
        full = settings.full_epochs(scoring.method.embedding.preprocessing.input_size)
        estimates.append(
            StageEstimate(stage.name, settings.epochs, full, steps, batches.images_per_step, step, count, seconds)
        )
    return estimates, head


def _count_validations(settings: StageSettings) -> int:
    """Number of epochs that are validated; the last one always is."""
    due = set(range(settings.validate_from, settings.epochs + 1, settings.validate_every))
    return len(due | {settings.epochs})


def _measure_step(trainer: Trainer, batches: Batches, at_hand: bool) -> float:
    """Duration of a step of the last epoch in seconds. Loading counts if the training process does it itself."""
    last = trainer.stage.settings.epochs - 1

    def load() -> list[tuple[Any, ...]]:
        return [batches.load(last, 0, part) for part in range(batches.parts)]

    ahead = None if at_hand else load()

    def step() -> None:
        trainer.step(load() if ahead is None else ahead, 0, 0)
        if trainer.fabric.device.type == "cuda":
            torch.cuda.synchronize(trainer.fabric.device)

    return shortest_seconds(step)


def shortest_seconds(work: Callable[[], object], enough: float = _ENOUGH_SECONDS) -> float:
    """The shortest duration of several repetitions: other programs only make them longer.

    The first repetition also initialises much, so it counts only if it takes so long that this hardly matters.
    """
    times: list[float] = []
    while len(times) <= _MOST_STEPS and sum(times) < enough:
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times[1:] or times)


class _Scoring:
    """The cost of validation and evaluation: seconds per image to embed it, and per episode to classify its queries."""

    def __init__(self, fabric: "Fabric", method: Method) -> None:
        self.method = method.to(fabric.device)
        self._device = fabric.device
        self._side = method.embedding.preprocessing.input_size
        self._episode: dict[tuple[int, int, int], float] = {}
        images = _Imagined(SplitSize(1, _IMAGES), self._side, pictures=_IMAGES)
        self._image = shortest_seconds(lambda: self._source(images)) / _IMAGES
        kept = self._source(images)
        self.numbers_per_image = kept.rows(np.arange(1)).numel() if isinstance(kept, FeatureBank) else 0
        remember(method, TrainingClasses(images, device=fabric.device))

    def _source(self, images: Dataset) -> Source:
        return self.method.source(images, device=self._device)

    def seconds(self, images: int, chosen: Validation | Evaluation, shots: Sequence[int]) -> float:
        """Duration of embedding all images once, and of classifying the episodes for each number of shots."""
        an_episode = sum(self._episode_seconds(chosen.way, shot, chosen.query) for shot in shots)
        return images * self._image + chosen.episodes * an_episode

    def _episode_seconds(self, way: int, shot: int, query: int) -> float:
        key = way, shot, query
        if key not in self._episode:
            count = way * (shot + query)
            dataset = _Imagined(SplitSize(way, count), self._side, pictures=count)
            source = self._source(dataset)
            # A method that adapts its network to each task takes so long that few episodes are enough.
            drawn = sample_episodes(dataset, *key, _EPISODES if isinstance(source, FeatureBank) else 2, 0)
            whole = shortest_seconds(lambda: evaluate(self.method, dataset, episodes=drawn, bank=source))
            self._episode[key] = whole / len(drawn)
        return self._episode[key]


def _count(network: nn.Module) -> int:
    return sum(value.numel() for value in network.parameters() if value.requires_grad)


def _peak_memory(fabric: "Fabric") -> int | None:
    """The largest memory that this process, or its GPU, held so far."""
    if fabric.device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(fabric.device))
    try:
        import resource
    except ModuleNotFoundError:  # on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
