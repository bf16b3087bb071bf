"""Comparisons of networks trained from scratch on CIFAR-FS: the settings, the training and the scoring."""

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepbdc import load_dataset
from deepbdc._files import temporary, write_text
from deepbdc.backbones.base import Backbone
from deepbdc.data.dataset import ArrayDataset, Dataset
from deepbdc.embedding import Embedding
from deepbdc.episodes import Episodes, sample_episodes
from deepbdc.feature_bank import build_bank
from deepbdc.pooling import AveragePool, BDCPool, Flatten, Pool
from deepbdc.recipes import Recipe, load_recipe
from deepbdc.runs import is_finished, load_run
from deepbdc.training.devices import DeviceOptions
from deepbdc.training.run import train
from study.products import Score, logistic, normalised, products_of, prototype, right_answers
from study.sharing import alone

START = Path(__file__).parent / "start.yaml"
SHOTS = (1, 5)
EPISODES = 2000
STRENGTHS = (1.0, 3.0, 10.0, 30.0)  # C of the logistic regression
PAIRS = {
    "transfer": ("good_embed", "stl_deepbdc"),
    "meta": ("protonet", "meta_deepbdc"),
    "afterwards": (
        "good_embed",
        "good_embed",
    ),  # BDC pooling after training with average pooling
    "meta against transfer": ("good_embed", "meta_deepbdc"),  # because episodes made ProtoNet worse
}
META = ("meta.epochs=6", "meta.schedule=cosine", "meta.way=10", "meta.shot=3", "meta.query=8", "meta.episodes=240")
RATES = {"protonet": "meta.lr=0.02", "meta_deepbdc": "meta.lr=2e-3"}


@dataclass(frozen=True)
class Setting:
    """A comparison of a baseline with a method that uses BDC.

    ``both``, ``bdc`` and ``baseline`` are overrides of the recipe start.yaml: for both methods, or for one of them.
    ``scoring`` says how the two trained networks classify: a key of `score` without C, which is chosen on the
    validation classes for each network and number of shots.
    """

    name: str
    factor: str
    value: str
    both: tuple[str, ...] = ()
    bdc: tuple[str, ...] = ()
    baseline: tuple[str, ...] = ()
    pair: str = "transfer"
    scoring: tuple[str, str] = ("own, logistic", "own, logistic")
    chosen: bool = False
    """Whether the setting is also scored on the test classes."""

    def overrides(self, side: int) -> tuple[str, ...]:
        """The overrides of start.yaml for the baseline (0) or for the method with BDC (1)."""
        return (*self.both, *(self.bdc if side else self.baseline))

    def runs(self) -> "tuple[Run, Run]":
        baseline, bdc = PAIRS[self.pair]
        return Run(baseline, tuple(sorted(self.overrides(0)))), Run(bdc, tuple(sorted(self.overrides(1))))


@dataclass(frozen=True)
class Run:
    """One training: a method with overrides of start.yaml."""

    method: str
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of its files."""
        words = [text.replace("pretrain.", "").replace("backbone.", "").replace("/", "-") for text in self.overrides]
        return ",".join([self.method, *words])

    @property
    def parent(self) -> "Run | None":
        """The run whose stages are the first stages of this one, with the same seed, batches and weights."""
        if self.method in RATES:
            transfer = {"protonet": "good_embed", "meta_deepbdc": "stl_deepbdc"}[self.method]
            return Run(transfer, tuple(text for text in self.overrides if not text.startswith("meta.")))
        for text in self.overrides:
            if text.startswith("distill.generations="):
                fewer = int(text.partition("=")[2]) - 1
                others = [other for other in self.overrides if other != text]
                return Run(self.method, tuple(sorted([*others, f"distill.generations={fewer}"] if fewer else others)))
        return None

    def recipe(self) -> Recipe:
        given = list(self.overrides)
        if not self.method.endswith("deepbdc"):  # has no t
            given = ["pretrain.t_lr=null", *given]
        if self.method in RATES:
            given = [*META, RATES[self.method], *given, *(["meta.t_lr=1e-3"] if self.method == "meta_deepbdc" else [])]
        if any(text.startswith("distill.") for text in given):  # each generation is trained like the first network
            stage = load_recipe(START, [f"method={self.method}", *given, "distill.epochs=1"]).as_dict()["pretrain"]
            kept = ("epochs", "lr", "groups", "schedule", "warmup", "weight_decay", "batch_size", "validate_every")
            given = [*(f"distill.{key}={_text(stage[key])}" for key in kept), *given]
        return load_recipe(START, [f"method={self.method}", *given])


def _text(value: Any) -> str:
    return json.dumps(value)


def finished(run: Run, results: Path) -> bool:
    return (results / f"{run.name}.json").is_file() and (results / f"{run.name}.npz").is_file()


def train_and_score(run: Run, work: Path, results: Path, data: Path) -> None:
    """Train a run, score it on the validation classes and store the scores, unless this is done already."""
    if finished(run, results):
        return
    if run.parent is not None:
        train_and_score(run.parent, work, results, data)
    folder = trained(run, work, data)
    with alone(run.name, work):
        if not finished(run, results):
            print(f"scoring {run.name}", flush=True)
            save_scores(run, folder, results, data)


def trained(run: Run, work: Path, data: Path) -> Path:
    """The folder of the trained network. It is trained first if necessary."""
    folder = work / run.name
    if is_finished(folder):
        return folder
    parent = None if run.parent is None else trained(run.parent, work, data)
    with alone(run.name, work):
        if not is_finished(folder):
            if parent is not None:
                _take_stages(parent, folder)
            print(f"training {run.name}", flush=True)
            train(run.recipe(), folder, data=data, resume=True, devices=DeviceOptions(accelerator="cpu"))
    return folder


def _take_stages(parent: Path, folder: Path) -> None:
    """Copy the finished stages of the parent, so that they are not trained again."""
    target = folder / "checkpoints"
    target.mkdir(parents=True, exist_ok=True)
    for path in parent.glob("checkpoints/*.safetensors"):
        if path.name != "last.safetensors" and not (target / path.name).is_file():
            with temporary(target / path.name) as part:
                shutil.copyfile(path, part)


def save_scores(run: Run, folder: Path, results: Path, data: Path, split: str = "val") -> None:
    """Store the correct answers of each episode for each way of scoring (.npz), and the mean accuracies (.json)."""
    embedding = load_run(folder).method.embedding
    dataset = load_dataset("cifar_fs", split, root=data)
    maps, some = maps_of(embedding, dataset), maps_of(embedding, tenth(load_dataset("cifar_fs", "train", root=data)))
    episodes = {shot: sample_episodes(dataset, 5, shot, 15, EPISODES, 0) for shot in SHOTS}
    counts = score(embedding, maps, some, episodes)
    asked = len(episodes[1][0].query)
    means = {name: round(100 * float(values.mean()) / asked, 3) for name, values in counts.items()}
    stored = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    parent = run.parent
    content = {
        "method": run.method,
        "overrides": run.overrides,
        "parent": None if parent is None else parent.name,
        "split": split,
        "episodes": EPISODES,
        "queries": asked,
        "seconds": round(stored["seconds"], 1),
        "threads": torch.get_num_threads(),
        "t": float(embedding.pool.t.detach()) if isinstance(embedding.pool, BDCPool) else None,
        "numbers": embedding.out_features,
        "percent": means,
        "recipe": run.recipe().as_dict(),
    }
    results.mkdir(parents=True, exist_ok=True)
    with temporary(results / f"{run.name}.npz") as part, part.open("wb") as file:
        np.savez_compressed(file, **counts)  # type: ignore[arg-type]
    write_text(results / f"{run.name}.json", json.dumps(content, indent=1) + "\n")


def tenth(dataset: Dataset) -> ArrayDataset:
    """Every tenth image: enough for a mean vector."""
    assert isinstance(dataset, ArrayDataset)
    labels = dataset.labels.numpy()[::10]
    return ArrayDataset(dataset.images[::10], labels, dataset.class_names, f"a tenth of {dataset.name}", dataset.split)


@torch.no_grad()
def maps_of(embedding: Embedding, dataset: Dataset) -> Tensor:
    """The feature maps that the pooling layer receives, after a reduction if there is one, ``(n, d, h, w)``."""
    size = embedding.preprocessing.input_size
    shape = embedding.reduced_map(torch.zeros(1, 3, size, size)).shape[1:]
    reduced = Embedding(_Reduced(embedding, int(shape[0])), Flatten(*shape), embedding.preprocessing)
    maps: Tensor = build_bank(reduced.eval(), dataset).features.unflatten(1, shape)
    return maps


class _Reduced(Backbone):
    """The part of an embedding before the pooling."""

    def __init__(self, embedding: Embedding, channels: int) -> None:
        super().__init__(channels, embedding.preprocessing)
        self.embedding = embedding

    def forward(self, images: Tensor) -> Tensor:
        reduced: Tensor = self.embedding.reduced_map(images)
        return reduced


@torch.no_grad()
def score(
    embedding: Embedding, maps: Tensor, some: Tensor, episodes: dict[int, Episodes]
) -> dict[str, NDArray[np.uint16]]:
    """The number of correct answers in each episode, for each representation of the maps and each classifier.

    The representations are the one that the network was trained with (``own``), the other one (``other``: BDC for a
    network trained with average pooling, and vice versa), both together, and for BDC the vector weighted with √2.
    """
    pool: Pool = embedding.pool
    other: Pool = AveragePool(maps.shape[1]) if isinstance(pool, BDCPool) else BDCPool(maps.shape[1])
    counts: dict[str, NDArray[np.uint16]] = {}

    def take(title: str, products: Tensor, *similarities: str) -> None:
        ways: dict[str, Score] = {f"logistic C={C:g}": logistic(C) for C in STRENGTHS}
        ways |= {name: prototype(name) for name in similarities}
        for name, way in ways.items():
            for shot in episodes:
                counts[f"{title}, {name}, {shot}-shot"] = right_answers(products, episodes[shot], way)

    vectors = _represented(pool, maps)
    own = products_of(vectors)
    take("own", own, "euclidean", "inner_product", "cosine")
    mean = _represented(pool, some).mean(dim=0)
    take("own centred", products_of(vectors, mean), "inner_product", "cosine")
    if isinstance(pool, BDCPool) and pool.output == "triangle":
        weighted = products_of(vectors * triangle_weights(pool.dimensions))
        take("own weighted", weighted, "euclidean", "inner_product", "cosine")
    del vectors
    second = products_of(_represented(other, maps))
    take("other", second, "euclidean", "cosine")
    take("both", normalised(own) + normalised(second), "cosine")
    return counts


def _represented(pool: Pool, maps: Tensor) -> Tensor:
    return torch.cat([pool.represent(part) for part in maps.split(512)])


def triangle_weights(d: int) -> Tensor:
    """Weights for the upper triangle of a d×d matrix, row by row: 1 on the diagonal and √2 off it."""
    rows, columns = torch.triu_indices(d, d)
    return torch.where(rows == columns, 1.0, math.sqrt(2))
