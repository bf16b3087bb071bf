"""How much time BDC adds to training, how much the loading of data takes, and how fast Conv4-64 trains at 84 pixels.

    python benchmarks/training.py [--output FILE]

The recipes are real, the images random but of the right size. Timed is a whole training step, from the augmented batch
to the updated weights. Both sides run alternately in one process. The ratios carry over to other machines, the
milliseconds do not.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import torch

from deepbdc._memory import keep_freed_memory
from deepbdc.data.dataset import ArrayDataset
from deepbdc.recipes import load_recipe
from deepbdc.stages import Batches, Process
from deepbdc.stages.batches import Batch
from deepbdc.training.devices import DeviceOptions, start
from deepbdc.training.loop import Trainer
from deepbdc.training.run import build_batches, build_objective
from measure import verdict

CLASSES = 64
CIFAR_FS = ("protonet", "good_embed", "meta_deepbdc", "stl_deepbdc")
MOST_ADDED, LEAST_MODEL = 15.0, 90.0  # percent


@dataclass
class Training:
    """A stage of a recipe, ready for steps."""

    trainer: Trainer
    batches: Batches

    def load(self, step: int) -> list[Batch]:
        return [self.batches.load(0, step, part) for part in range(self.batches.parts)]

    def step(self, parts: list[Batch]) -> None:
        self.trainer.step(parts, 0, 0)


def prepare(recipe_name: str, stage: str, per_class: int, *overrides: str) -> Training:
    """A stage of a recipe on random pictures."""
    recipe = load_recipe(recipe_name, overrides)
    chosen = next(entry for entry in recipe.trainings if entry.name == stage)
    first = build_objective(recipe, recipe.trainings[0], CLASSES)
    objective = build_objective(recipe, chosen, CLASSES, first)
    size = objective.method.embedding.preprocessing.input_size
    pictures = np.random.default_rng(0).integers(0, 256, (CLASSES * per_class, size, size, 3), dtype=np.uint8)
    names = [f"{label:02d}" for label in range(CLASSES)]
    data = ArrayDataset(pictures, np.arange(CLASSES).repeat(per_class), names, "random", "train")
    batches = build_batches(recipe, chosen, data, objective.method, Process())
    fabric = start(DeviceOptions(accelerator="cpu", devices=1), recipe.precision)
    return Training(Trainer(fabric, recipe, chosen, objective), batches)


def milliseconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def added_by_bdc(title: str, sides: list[Training], repeats: int, out: TextIO) -> None:
    """Compare alternating training steps of two sides: the first with average pooling, the second with BDC."""
    average, bdc = sides
    times: dict[str, list[float]] = {"average": [], "bdc": []}
    for repeat in range(repeats + 1):
        for name, side in (("average", average), ("bdc", bdc)):
            parts = side.load(repeat % side.batches.steps)
            elapsed = milliseconds(lambda side=side, parts=parts: side.step(parts))  # type: ignore[misc]
            if repeat > 0:
                times[name].append(elapsed)
    before, after = (statistics.median(times[name]) for name in ("average", "bdc"))
    ratios = [b / a for a, b in zip(times["average"], times["bdc"], strict=True)]
    added = 100 * (statistics.median(ratios) - 1)
    line = (
        f"{title}: average pooling {before:.0f} ms, BDC {after:.0f} ms, adds {added:+.1f} % (median of {repeats} pairs)"
    )
    print(f"{line}, at most {MOST_ADDED:.0f} %: {verdict(added <= MOST_ADDED)}", file=out, flush=True)


def share_of_the_model(recipe: str, stage: str, repeats: int, out: TextIO) -> None:
    """Measure which share of a step the model takes, and which the loading and augmentation of images."""
    training = prepare(recipe, stage, 600)
    loading, computing = [], []
    for repeat in range(repeats + 3):
        start = time.perf_counter()
        parts = training.load(repeat)
        middle = time.perf_counter()
        training.step(parts)
        if repeat >= 3:
            loading.append(middle - start)
            computing.append(time.perf_counter() - middle)
    share = 100 * sum(computing) / (sum(loading) + sum(computing))
    line = f"{recipe} {stage}: data {1e3 * statistics.median(loading):.1f} ms, "
    line += f"model {1e3 * statistics.median(computing):.1f} ms per step, model {share:.1f} %"
    print(f"{line}, at least {LEAST_MODEL:.0f} %: {verdict(share >= LEAST_MODEL)}", file=out, flush=True)


def full_and_mixed(recipe: str, repeats: int, out: TextIO) -> None:
    """Compare alternating training steps at 84 pixels in float32 and in bf16."""
    sides = {name: prepare(recipe, "pretrain", 4, f"precision={name}") for name in ("32-true", "bf16-mixed")}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(repeats + 1):
        for name, side in sides.items():
            parts = side.load(repeat % side.batches.steps)
            elapsed = milliseconds(lambda side=side, parts=parts: side.step(parts))  # type: ignore[misc]
            if repeat > 0:
                times[name].append(elapsed)
    full, mixed = times.values()
    ratio = statistics.median(a / b for a, b in zip(full, mixed, strict=True))
    images = sides["32-true"].batches.images_per_step
    speeds = ", ".join(f"{name} {1e3 * images / statistics.median(found):.0f}" for name, found in times.items())
    line = f"{recipe} pretrain, images/s: {speeds}, {ratio:.2f} times as fast (median of {repeats} pairs)"
    print(line, file=out, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "training.txt")
    given = parser.parse_args()
    keep_freed_memory(large_blocks=True)
    torch.manual_seed(0)
    lines: list[str] = []

    class Both:
        def write(self, text: str) -> int:
            lines.append(text)
            return sys.stdout.write(text)

        def flush(self) -> None:
            sys.stdout.flush()

    out: TextIO = Both()  # type: ignore[assignment]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads", file=out)
    small = [prepare(f"cifar_fs/{name}", "pretrain", 20) for name in ("good_embed", "stl_deepbdc")]
    added_by_bdc("Conv4-64, 32 px, batch 64, d=64", small, repeats=40, out=out)
    for name in CIFAR_FS:
        share_of_the_model(f"cifar_fs/{name}", "pretrain", 40, out)
    for name, stage in (("protonet", "meta"), ("good_embed", "distill-1")):
        share_of_the_model(f"cifar_fs/{name}", stage, 40, out)
    large = [
        prepare(f"miniimagenet/{name}_1shot", "pretrain", 1, "pretrain.batch_size=32")
        for name in ("protonet", "meta_deepbdc")
    ]
    added_by_bdc("ResNet-12, 84 px, batch 32, d=640 with its reduction", large, repeats=4, out=out)
    for name in ("protonet", "stl_deepbdc"):
        full_and_mixed(f"miniimagenet_cpu/{name}", repeats=10, out=out)
    given.output.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
