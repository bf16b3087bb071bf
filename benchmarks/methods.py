"""The latency of all methods on one 5-way task, as in the paper's tables 3 and S-latency.

    python benchmarks/methods.py [--methods NAME ...] [--repeats COUNT] [--output FILE]

Every method has a ResNet-12 at 84 pixels and the options of its miniImageNet recipe. Timed are one test task (5 or 25
support images and 75 queries, with and without the network) and one step of episodic training with the same task, from
the augmented images to the updated weights. All methods run in turn, round by round. A ratio is the median over rounds
of the time of a method divided by the time of ProtoNet in the same round. Ratios carry over to other machines,
milliseconds do not.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from deepbdc._memory import keep_freed_memory
from deepbdc._modes import evaluating
from deepbdc.backbones import create_backbone
from deepbdc.methods import Method, create_method
from deepbdc.methods.base import methods
from deepbdc.recipes import Recipe, list_recipes, load_recipe, read_recipe
from measure import verdict
from training import prepare

WAY, QUERY, SIZE = 5, 15, 84
TEST, TASK, TRAINING = "test task", "test task without the network", "training step"
PAPER = {  # milliseconds on a GPU: test with 1 and 5 shots, training with 1 and 5 shots
    "protonet": {TEST: (115, 143), TRAINING: (304, 365)},
    "adm": {TEST: (199, 221), TRAINING: (908, 967)},
    "covnet": {TEST: (120, 144), TRAINING: (310, 374)},
    "deepemd": {TEST: (457, 12617), TRAINING: (80_000, 1_000_000)},
    "meta_deepbdc": {TEST: (161, 198), TRAINING: (505, 623)},
    "stl_deepbdc": {TEST: (184, 245)},
}
AIMS = {  # the largest ratio with 1 and 5 shots that we want to see
    ("covnet", TEST): (1.1, 1.1),
    ("meta_deepbdc", TEST): (1.15, 1.15),
    ("meta_deepbdc", TRAINING): (1.3, 1.3),
    ("stl_deepbdc", TEST): (1.15, 1.15),
    ("adm", TEST): (1.5, 1.5),
    ("frn", TEST): (1.3, 1.3),
    ("deepemd", TEST): (2.0, 10.0),
}


def recipe_of(name: str, shot: int) -> Recipe:
    """The miniImageNet recipe of a method, with a ResNet-12 and the task that is timed."""
    known = set(list_recipes())
    names = (f"miniimagenet/{name}_{shot}shot", f"miniimagenet/{name}", f"miniimagenet/{name}_5shot")
    found = next((entry for entry in names if entry in known), f"miniimagenet/protonet_{shot}shot")
    overrides = [f"method={name}", "backbone={name: resnet12}", f"size={SIZE}", "precision=32-true"]
    if read_recipe(found).get("meta"):
        task = {"way": WAY, "shot": shot, "query": QUERY, "episodes_per_step": 1, "accumulate": 1}
        overrides += [f"meta.{key}={value}" for key, value in task.items()]
    return load_recipe(found, overrides)


@dataclass(frozen=True)
class Task:
    """The images of one task, support before query, and the labels of the support."""

    images: Tensor
    labels: Tensor

    @classmethod
    def random(cls, shot: int) -> "Task":
        generator = torch.Generator().manual_seed(shot)
        images = torch.randn(WAY * (shot + QUERY), 3, SIZE, SIZE, generator=generator)
        return cls(images, torch.arange(WAY).repeat(shot))

    def classify(self, method: Method, representations: Tensor) -> Tensor:
        support, query = representations.split([len(self.labels), len(representations) - len(self.labels)])
        return method.classify(support, self.labels, query)


def test_sides(names: list[str], shot: int) -> dict[tuple[str, str], Callable[[], object]]:
    """What is timed of the test task, by method and title. All methods share the weights of one network."""
    task = Task.random(shot)
    backbone = create_backbone("resnet12")
    backbone(torch.randn(32, 3, SIZE, SIZE))  # fills the running statistics of batch norm
    sides: dict[tuple[str, str], Callable[[], object]] = {}
    for name in names:
        method = create_method(name, backbone, shot, **recipe_of(name, shot).options).eval()
        with torch.no_grad():
            known = method.embed(task.images)

        def whole(method: Method = method) -> Tensor:
            with evaluating(method), torch.no_grad():
                return task.classify(method, method.embed(task.images))

        def alone(method: Method = method, known: Tensor = known) -> Tensor:
            with evaluating(method), torch.no_grad():
                return task.classify(method, known)

        sides[name, TEST], sides[name, TASK] = whole, alone
    return sides


def training_sides(names: list[str], shot: int) -> dict[tuple[str, str], Callable[[], object]]:
    """One step of episodic training of each method that has such a stage."""
    sides: dict[tuple[str, str], Callable[[], object]] = {}
    for name in names:
        recipe = recipe_of(name, shot)
        if "meta" not in recipe.stages:
            continue
        training = prepare(recipe, "meta", shot + QUERY)
        parts = training.load(0)
        sides[name, TRAINING] = lambda training=training, parts=parts: training.step(parts)  # type: ignore[misc]
    return sides


def rounds(sides: dict[tuple[str, str], Callable[[], object]], repeats: int) -> dict[tuple[str, str], list[float]]:
    """Milliseconds of each side in each round, after one round to warm up."""
    times: dict[tuple[str, str], list[float]] = {key: [] for key in sides}
    for repeat in range(repeats + 1):
        for key, run in sides.items():
            print(f"\r\033[Kround {repeat} of {repeats}: {' '.join(key)}", end="", file=sys.stderr, flush=True)
            start = time.perf_counter()
            run()
            if repeat > 0:
                times[key].append((time.perf_counter() - start) * 1e3)
    print("\r\033[K", end="", file=sys.stderr)
    return times


def lines(title: str, times: dict[int, dict[tuple[str, str], list[float]]]) -> list[str]:
    """The table of one title: milliseconds, ratio to ProtoNet, the paper's ratio and our aim, for 1 and 5 shots."""
    head = f"{'ms 1-shot':>10}{'ratio':>8}{'paper':>8}{'aim':>14}{'ms 5-shot':>12}{'ratio':>8}{'paper':>8}{'aim':>14}"
    table = ["", f"{title}", f"{'method':<18}{head}"]
    names = [name for name, what in times[1] if what == title]
    for name in names:
        text = f"{name:<18}"
        for place, shot in enumerate((1, 5)):
            own, base = times[shot][name, title], times[shot]["protonet", title]
            ratio = statistics.median(a / b for a, b in zip(own, base, strict=True))
            published = PAPER.get(name, {}).get(title)
            theirs = "" if published is None else f"{published[place] / PAPER['protonet'][title][place]:.2f}"
            aim = AIMS.get((name, title))
            wanted = "" if aim is None else f"{aim[place]:.2f} {verdict(ratio <= aim[place])}"
            text += f"{statistics.median(own):>{10 if shot == 1 else 12}.1f}{ratio:>8.2f}{theirs:>8}{wanted:>14}"
        table.append(text.rstrip())
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=methods.names(), help="which methods (default: all)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of the test task")
    parser.add_argument("--training-repeats", type=int, default=3, help="rounds of the training step; 0 leaves it out")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "methods.txt")
    given = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(0)
    names = ["protonet", *(name for name in given.methods if name != "protonet")]
    machine = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    text = [f"{machine}, ResNet-12, {SIZE} px, {WAY}-way, {QUERY} queries per class"]
    tested = {shot: rounds(test_sides(names, shot), given.repeats) for shot in (1, 5)}
    text += [line for title in (TEST, TASK) for line in lines(title, tested)]
    if given.training_repeats:
        trained = {shot: rounds(training_sides(names, shot), given.training_repeats) for shot in (1, 5)}
        text += lines(TRAINING, trained)
    print("\n".join(text))
    given.output.write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
