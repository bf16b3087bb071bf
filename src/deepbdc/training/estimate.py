"""What a training would take, for ``--dry-run``: parameters, data, time and memory, measured in a few real steps."""

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
from deepbdc._modes import evaluating
from deepbdc.data import benchmarks
from deepbdc.data.benchmarks import SPLITS
from deepbdc.data.dataset import ArrayDataset, Dataset
from deepbdc.data.loading import find_data, list_datasets, load_splits
from deepbdc.episodes import sample_episodes
from deepbdc.evaluation import evaluate
from deepbdc.feature_bank import build_bank
from deepbdc.methods import Method
from deepbdc.training.batches import Batches, Images, Process
from deepbdc.training.devices import DeviceOptions, start
from deepbdc.training.loop import validation_shot
from deepbdc.training.optimiser import build_optimiser
from deepbdc.training.recipe import Evaluation, Optimisation, Recipe, Validation
from deepbdc.training.stages import PretrainTask, Stage, Task, build_batches, build_method, build_task, stages_of

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
    """What a stage takes; numbers that depend on unknown data are None.

    Attributes:
        name: As in the log.
        epochs: Of the recipe.
        steps: An epoch.
        images_per_step: In all processes together.
        step_seconds: Measured.
        validations: Epochs that are validated.
        validation_seconds: Of one validation.
    """

    name: str
    epochs: int
    steps: int | None
    images_per_step: int
    step_seconds: float
    validations: int
    validation_seconds: float | None

    @property
    def epoch_seconds(self) -> float | None:
        """Training of one epoch, without validation."""
        return None if self.steps is None else self.steps * self.step_seconds

    @property
    def seconds(self) -> float | None:
        """The whole stage."""
        if self.epoch_seconds is None:
            return None
        return self.epochs * self.epoch_seconds + self.validations * (self.validation_seconds or 0.0)


@dataclass(frozen=True)
class Estimate:
    """What a recipe takes on this machine.

    Attributes:
        embedding_parameters: Numbers that are learnt, of the backbone and the pooling layer.
        head_parameters: Of the linear head of pretrain and distill; 0 without these stages.
        data: The name or path of the data set.
        data_source: ``"here"`` (counted), ``"facts"`` (the images are not here yet) or ``"unknown"``.
        splits: The sizes of the splits that there are.
        stages: In their order.
        evaluation_seconds: Of the final evaluation on the test classes, None if unknown.
        device: ``cpu`` or ``cuda``.
        processes: That share each step.
        memory: Peak in bytes of one process, measured; None where the system does not tell.
        bank: Bytes of the features of the largest split that is evaluated.
        data_in_memory: Whether ``memory`` includes the images.
        busy: Whether the machine was at work on something else, so that the times are longer than they would be.
    """

    embedding_parameters: int
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
    """Measure some steps of each stage on random images, and say what the whole training takes.

    Nothing is written, except that ``glyphs`` are drawn and kept if they were never used before.

    Args:
        recipe: What would be trained.
        options: Where. Only one process is started: it measures its own share of a step, so the time in which processes
            exchange gradients, or wait for a core that they share, is not counted.
        data: As for `train`.
    """
    busy = _is_busy()
    source, sizes, datasets = _look_at_data(recipe, data)
    name, _ = find_data(recipe.data, data)
    processes = _count_processes(options)
    with torch.random.fork_rng():
        fabric = start(replace(options, devices=1, num_nodes=1, strategy="auto"), recipe.precision)
        keep_freed_memory()
        if fabric.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(fabric.device)
        in_memory = _in_memory(str(name), datasets)
        method = build_method(recipe)
        scoring = _Scoring(fabric, method)
        stages = _measure_stages(recipe, fabric, sizes, in_memory, Process(0, processes), scoring)
        evaluation = None
        if "test" in sizes and recipe.evaluation is not None:
            evaluation = scoring.seconds(sizes["test"].images, recipe.evaluation, recipe.evaluation.shots)
    evaluated = [sizes[split].images for split in ("val", "test") if split in sizes]
    classes = sizes["train"].classes if "train" in sizes else 0
    has_head = any(stage.name != "meta" for stage in stages)
    return Estimate(
        embedding_parameters=_count(method.embedding),
        head_parameters=(method.embedding.out_features + 1) * classes if has_head else 0,
        data=str(name),
        data_source=source,
        splits=sizes,
        stages=tuple(stages),
        evaluation_seconds=evaluation,
        device=fabric.device.type,
        processes=processes,
        memory=_peak_memory(fabric),
        bank=max(evaluated, default=0) * method.embedding.out_features * 4,
        data_in_memory=bool(datasets) and in_memory,
        busy=busy,
    )


def describe(estimate: Estimate) -> "RenderableType":
    """The estimate as lines and a table, to be printed by rich."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("stage", "epochs", "steps an epoch", "images a step", "an epoch", "validation", "in all"):
        # On a narrow terminal the headings of several words are folded, and no number is.
        table.add_column(heading, justify="left" if heading == "stage" else "right", no_wrap=" a" not in heading)
    for stage in estimate.stages:
        steps = "unknown" if stage.steps is None else f"{stage.steps:,}"
        validation = "" if stage.validation_seconds is None else _time(stage.validation_seconds)
        times = (_time(stage.epoch_seconds), validation, _time(stage.seconds))
        table.add_row(stage.name, str(stage.epochs), steps, f"{stage.images_per_step:,}", *times)
    table.add_row("evaluation", "", "", "", "", "", _time(estimate.evaluation_seconds), end_section=True)
    table.add_row("all", "", "", "", "", "", _time(estimate.seconds))
    return Group(*(Text(line) for line in _facts_in_words(estimate)), table)


def _facts_in_words(estimate: Estimate) -> list[str]:
    head = f" + {estimate.head_parameters:,} of the linear head" if estimate.head_parameters else ""
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
        f"Parameters: {estimate.embedding_parameters:,} of the embedding{head}",
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
    """Where the sizes come from, the sizes, and the data sets (kept, as a run keeps them in memory, too)."""
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
    """What a benchmark has, as it is known before a single image is there."""
    parts = [(benchmarks.get(part), where) for part, where in benchmarks.sources(name, split)]
    classes = sum(len(benchmark.classes[where]) for benchmark, where in parts)
    return SplitSize(classes, sum(benchmark.images[where] for benchmark, where in parts))


def _in_memory(name: str, datasets: list[Dataset]) -> bool:
    """Whether the images are arrays in memory; otherwise worker processes read them ahead from files."""
    if datasets:
        return isinstance(datasets[0], ArrayDataset)
    known = name in list_datasets()
    return known and all(benchmarks.get(part).layout == "arrays" for part in benchmarks.components(name))


def _is_busy() -> bool:
    """Whether, in the last minute, other work took more than half of the cores."""
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
    """A data set of random noise. One of many images repeats a single picture, which takes no room."""

    def __init__(self, size: SplitSize, side: int, pictures: int = 1) -> None:
        labels = np.arange(size.images, dtype=np.int64) % size.classes
        Dataset.__init__(self, "imagined", "train", [f"{label:06}" for label in range(size.classes)], labels)
        noise = np.random.default_rng(0).integers(0, 256, (pictures, side, side, 3), dtype=np.uint8)
        self.images = noise if pictures == size.images else np.broadcast_to(noise, (size.images, side, side, 3))

    @property
    def fingerprint(self) -> str:
        """Of no meaning outside."""
        return f"imagined {len(self)}"

    def content_ids(self) -> NDArray[np.int64]:
        """As if all images were different."""
        return np.arange(len(self), dtype=np.int64)


def _measure_stages(
    recipe: Recipe,
    fabric: "Fabric",
    sizes: Mapping[str, SplitSize],
    in_memory: bool,
    process: Process,
    scoring: "_Scoring",
) -> list[StageEstimate]:
    """All stages; generations of distillation are alike, so only the first is measured."""
    preprocessing = scoring.method.embedding.preprocessing
    known = sizes.get("train")
    imagined = _Imagined(known or SplitSize(64, 64 * 100), preprocessing.input_size)
    images = Images(imagined, preprocessing, recipe.augmentation)
    measured: dict[str, float] = {}
    estimates: list[StageEstimate] = []
    teacher: PretrainTask | None = None
    for stage in stages_of(recipe):
        kind = stage.name.partition("-")[0]
        batches = build_batches(recipe, stage, images, process)
        if kind not in measured:
            task = build_task(recipe, stage, len(imagined.class_names), teacher)
            measured[kind] = _measure_step(recipe, fabric, stage, task, batches, in_memory)
            teacher = task if isinstance(task, PretrainTask) else None
        settings, val = stage.settings, sizes.get("val")
        seconds = None
        if val is not None:
            seconds = scoring.seconds(val.images, recipe.validation, [validation_shot(recipe, stage)])
        steps = batches.steps if known is not None or kind == "meta" else None
        count = 0 if val is None else _count_validations(settings)
        estimates.append(
            StageEstimate(stage.name, settings.epochs, steps, batches.images_per_step, measured[kind], count, seconds)
        )
    return estimates


def _count_validations(settings: Optimisation) -> int:
    """Epochs that are validated; the last always is."""
    due = set(range(settings.validate_from, settings.epochs + 1, settings.validate_every))
    return len(due | {settings.epochs})


def _measure_step(
    recipe: Recipe, fabric: "Fabric", stage: Stage, task: Task, batches: Batches, in_memory: bool
) -> float:
    """Seconds of a step. Making a batch counts where the training process does it itself."""
    if recipe.channels_last:
        task.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    network: Any
    network, optimiser = fabric.setup(task, build_optimiser(task, stage.settings))
    network.train()

    def load() -> list[tuple[Any, ...]]:
        return [batches.load(0, 0, part) for part in range(batches.parts)]

    ahead = None if in_memory else load()

    def step() -> None:
        optimiser.zero_grad()
        parts = load() if ahead is None else ahead
        for part in parts:
            images, *labels = (fabric.to_device(value) for value in part)
            if recipe.channels_last:
                images = images.contiguous(memory_format=torch.channels_last)
            loss, _ = network(images, *labels)
            fabric.backward(loss / len(parts))
        optimiser.step()
        if fabric.device.type == "cuda":
            torch.cuda.synchronize(fabric.device)

    return _seconds(step)


def _seconds(work: Callable[[], object]) -> float:
    """The shortest time of some repetitions: other work only makes them longer.

    The first does not count, as much is made ready in it, unless it takes so long that this hardly matters.
    """
    times: list[float] = []
    while len(times) <= _MOST_STEPS and sum(times) < _ENOUGH_SECONDS:
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times[1:] or times)


class _Scoring:
    """What validation and evaluation cost: so much an image to embed it, so much an episode to classify its queries."""

    def __init__(self, fabric: "Fabric", method: Method) -> None:
        self.method = method
        self._device = fabric.device
        self._side = method.embedding.preprocessing.input_size
        self._episode: dict[tuple[int, int, int], float] = {}
        embedding = method.embedding.to(fabric.device)
        images = torch.rand(_IMAGES, 3, self._side, self._side, device=fabric.device)
        with evaluating(embedding), torch.inference_mode():
            self._image = _seconds(lambda: embedding(images).sum().item()) / _IMAGES  # item: waits for a GPU

    def seconds(self, images: int, chosen: Validation | Evaluation, shots: Sequence[int]) -> float:
        """Embed all images once, then classify the episodes for each number of shots."""
        an_episode = sum(self._episode_seconds(chosen.way, shot, chosen.query) for shot in shots)
        return images * self._image + chosen.episodes * an_episode

    def _episode_seconds(self, way: int, shot: int, query: int) -> float:
        key = way, shot, query
        if key not in self._episode:
            count = way * (shot + query)
            dataset = _Imagined(SplitSize(way, count), self._side, pictures=count)
            drawn = sample_episodes(dataset, *key, _EPISODES, 0)
            bank = build_bank(self.method.embedding, dataset, device=self._device)
            method = self.method.for_shot(shot)
            self._episode[key] = _seconds(lambda: evaluate(method, dataset, episodes=drawn, bank=bank)) / _EPISODES
        return self._episode[key]


def _count(network: nn.Module) -> int:
    return sum(value.numel() for value in network.parameters() if value.requires_grad)


def _peak_memory(fabric: "Fabric") -> int | None:
    """The most that this process, or its GPU, held so far."""
    if fabric.device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(fabric.device))
    try:
        import resource
    except ModuleNotFoundError:  # on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
