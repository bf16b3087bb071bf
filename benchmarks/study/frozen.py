"""Compare representations made from the feature maps of a frozen EfficientNet-Lite0, without any training."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import timm
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deepbdc import BDCPool, load_dataset
from deepbdc._files import temporary, write_text
from deepbdc.backbones.base import Backbone
from deepbdc.backbones.efficientnet_lite import PREPROCESSING, imagenet_weights
from deepbdc.data.dataset import ArrayDataset
from deepbdc.embedding import Embedding
from deepbdc.episodes import Episodes, sample_episodes
from deepbdc.feature_bank import build_bank
from deepbdc.pooling import Flatten
from study.products import Score, logistic, normalised, products_of, prototype, right_answers, svm
from study.sharing import alone

DATASETS = ("cifar_fs", "omniglot")
SIZES = (224, 160, 96)  # the first is the one that `FewShotClassifier` uses
WHOLE = (224, 160)  # sizes at which both maps together, 20 classes and, on the last map, the SVM are measured
STAGES = {"last": (320, 32), "before": (112, 16)}  # channels, and pixels of the image per position of the map
MAPS = (*STAGES, "both")  # both: the representations of the two maps side by side, each scaled to length 1
REPRESENTATIONS = ("average", "average - mean", "second moment", "bdc", "bdc - mean", "average + bdc")
SHOTS = (1, 2, 5, 10)
WAYS = {5: 1000, 20: 100}  # number of classes: number of episodes
VALIDATION_EPISODES = 300
STRENGTHS = {"logistic": (1.0, 10.0, 100.0), "svm": (1.0, 10.0)}  # values of C, chosen on the validation classes
IMAGES = {"test": 4000, "val": 2000, "mean": 500}
QUERIES = 10


class LastMaps(Backbone):
    """The last two maps of the network, flattened and concatenated."""

    def __init__(self, size: int) -> None:
        self.sides = {name: math.ceil(size / pixels) for name, (_, pixels) in STAGES.items()}
        super().__init__(sum(STAGES[name][0] * side**2 for name, side in self.sides.items()), PREPROCESSING)
        self.network: nn.Module = timm.create_model("tf_efficientnet_lite0", features_only=True, out_indices=(3, 4))
        kept = {name: value for name, value in imagenet_weights().items() if name in self.network.state_dict()}
        self.network.load_state_dict(kept)

    def forward(self, images: Tensor) -> Tensor:
        before, last = self.network(images)
        return torch.cat([last.flatten(1), before.flatten(1)], dim=1)[..., None, None]

    def maps(self, rows: Tensor, stage: str) -> Tensor:
        """The map of a stage, ``(n, channels, side, side)``."""
        sizes = [STAGES[name][0] * side**2 for name, side in self.sides.items()]
        part = rows.split(sizes, dim=1)[list(STAGES).index(stage)]
        maps: Tensor = part.unflatten(1, (STAGES[stage][0], self.sides[stage], self.sides[stage]))
        return maps


@dataclass(frozen=True)
class Unit:
    """What is computed together and has one result file: one split of a data set at one size, on one map or both."""

    dataset: str
    split: str
    size: int
    maps: str

    @property
    def name(self) -> str:
        return f"{self.dataset},{self.split},{self.size},{self.maps}"

    @property
    def validation(self) -> "Unit":
        """The unit on which C is chosen."""
        return replace(self, split="val")


def units() -> Iterator[Unit]:
    """All units. Validation classes come before test classes, because C is chosen on them."""
    for size in SIZES:
        for dataset in DATASETS:
            for split in ("val", "test"):
                for maps in MAPS if size in WHOLE else STAGES:
                    yield Unit(dataset, split, size, maps)


def average(maps: Tensor) -> Tensor:
    return maps.mean(dim=(2, 3))


def second_moment(maps: Tensor) -> Tensor:
    """The signed square roots of the upper triangle of XXᵀ / positions."""
    x = maps.flatten(2)
    moments = x @ x.transpose(1, 2) / x.shape[2]
    rows, columns = torch.triu_indices(x.shape[1], x.shape[1])
    triangle = moments[:, rows, columns]
    return triangle.sign() * triangle.abs().sqrt()


@torch.no_grad()
def bdc(maps: Tensor) -> Tensor:
    pooled: Tensor = BDCPool(maps.shape[1])(maps)
    return pooled


POOLS: dict[str, Callable[[Tensor], Tensor]] = {"average": average, "second moment": second_moment, "bdc": bdc}


def run_unit(unit: Unit, work: Path, results: Path, data: Path) -> None:
    """Compute a unit, and the validation unit on which its C is chosen, unless their results exist."""
    if unit.split == "test":
        run_unit(unit.validation, work, results, data)  # C is chosen on it
    with alone(unit.name, work):
        if not finished(unit, results):
            save_scores(unit, results, data)


def save_scores(unit: Unit, results: Path, data: Path) -> None:
    """Embed the images, classify all episodes, and store the number of correct answers of each."""
    print(f"embedding {unit.name}", flush=True)
    backbone, images, rows, others = embedded(unit.dataset, unit.split, unit.size, data)
    counts: dict[str, NDArray[np.uint16]] = {}
    chosen: dict[str, float] = {}
    for name, products in representations(backbone, rows, others, unit.maps):
        print(f"  {name}", flush=True)
        for way, shot, episodes in tasks(images, unit):
            for classifier, score in classifiers(unit, results, name, shot).items():
                counts[f"{name}, {classifier}, {way}-way {shot}-shot"] = right_answers(products, episodes, score)
    percent = {
        title: round(100 * float(values.mean()) / (QUERIES * int(title.rpartition(", ")[2].partition("-")[0])), 3)
        for title, values in counts.items()
    }
    if unit.split == "val":
        chosen = best_strengths(percent)
    content = {
        "dataset": unit.dataset,
        "split": unit.split,
        "size": unit.size,
        "maps": unit.maps,
        "images": len(images),
        "classes": len(images.class_names),
        "queries": QUERIES,
        "percent": percent,
        "C": chosen,
    }
    results.mkdir(parents=True, exist_ok=True)
    if unit.split == "test":
        with temporary(results / f"{unit.name}.npz") as part, part.open("wb") as file:
            np.savez_compressed(file, **counts)  # type: ignore[arg-type]
    write_text(results / f"{unit.name}.json", json.dumps(content, indent=1) + "\n")


def finished(unit: Unit, results: Path) -> bool:
    return (results / f"{unit.name}.json").is_file()


def subset(name: str, split: str, data: Path, count: int, start: int = 0) -> ArrayDataset:
    """About ``count`` images, after the first ``start``: some of every class (CIFAR-FS), or all of some classes."""
    whole = load_dataset(name, split, root=data)
    assert isinstance(whole, ArrayDataset)
    labels = whole.labels.numpy()
    many = len(whole) // len(whole.class_names)  # images per class
    if name == "cifar_fs":
        each = -(-count // len(whole.class_names))
        first = start // len(whole.class_names)
        kept = np.concatenate([np.flatnonzero(labels == label)[first : first + each] for label in np.unique(labels)])
    else:
        first, last = start // many, min((start + count) // many, len(whole.class_names))
        kept = np.flatnonzero((labels >= first) & (labels < last))
    used, own = np.unique(labels[kept], return_inverse=True)
    names = [whole.class_names[label] for label in used]
    return ArrayDataset(whole.images[kept], own, names, name, split)


@lru_cache(maxsize=1)
def embedded(dataset: str, split: str, size: int, data: Path) -> tuple[LastMaps, ArrayDataset, Tensor, Tensor]:
    """The network, the images, their maps, and the maps of the images whose mean vector is subtracted."""
    backbone = LastMaps(size).eval()
    embedding = Embedding(backbone, Flatten(backbone.out_channels, 1, 1), PREPROCESSING.resized(size))
    images = subset(dataset, split, data, IMAGES[split])
    others = subset(dataset, "val", data, IMAGES["mean"], start=IMAGES["val"])
    rows = [
        build_bank(embedding, part, batch_size=32, budget=2**33, progress=True).features for part in (images, others)
    ]
    return backbone, images, rows[0], rows[1]


def representations(backbone: LastMaps, rows: Tensor, others: Tensor, maps: str) -> Iterator[tuple[str, Tensor]]:
    """The name of each representation, and the inner products of all images in it.

    ``others`` are the maps of the images whose mean vector is subtracted.
    """
    if maps != "both":
        yield from _representations(backbone, rows, others, maps)
        return
    pairs = zip(*(_representations(backbone, rows, others, stage) for stage in STAGES), strict=True)
    for (name, first), (_, second) in pairs:
        yield name, normalised(first) + normalised(second)


def _representations(backbone: LastMaps, rows: Tensor, others: Tensor, stage: str) -> Iterator[tuple[str, Tensor]]:
    kept: dict[str, Tensor] = {}
    for name, pool in POOLS.items():
        vectors = torch.cat([pool(backbone.maps(part, stage)) for part in rows.split(128)])
        plain = products_of(vectors)
        yield name, plain
        if name != "second moment":
            mean = torch.cat([pool(backbone.maps(part, stage)) for part in others.split(128)]).mean(dim=0)
            shift = vectors @ mean
            yield f"{name} - mean", plain - shift - shift.unsqueeze(-1) + mean @ mean
            kept[name] = normalised(plain)
        del vectors, plain
    yield "average + bdc", kept["average"] + kept["bdc"]


def tasks(images: ArrayDataset, unit: Unit) -> Iterator[tuple[int, int, Episodes]]:
    """The way, the shot and the episodes of each task of a unit.

    Tasks with 20 classes are left out at some sizes, and on validation classes, of which CIFAR-FS has only 16.
    """
    for way, episodes in WAYS.items():
        if way != 5 and (unit.split == "val" or unit.size not in WHOLE):
            continue
        count = VALIDATION_EPISODES if unit.split == "val" else episodes
        for shot in SHOTS:
            if shot + QUERIES <= len(images) // len(images.class_names):
                yield way, shot, sample_episodes(images, way, shot, QUERIES, count, 0)


def classifiers(unit: Unit, results: Path, name: str, shot: int) -> dict[str, Score]:
    """The classifiers of a cell: with every C on the validation classes, with the chosen one on the test classes."""
    found: dict[str, Score] = {"prototypes": prototype("cosine")}
    kinds: dict[str, Callable[[float], Score]] = {"logistic": logistic}
    if unit.size in WHOLE and unit.maps == "last":
        kinds["svm"] = svm  # slow
    if unit.split == "val":
        return found | {f"{kind} C={C:g}": make(C) for kind, make in kinds.items() for C in STRENGTHS[kind]}
    strengths = json.loads((results / f"{unit.validation.name}.json").read_text(encoding="utf-8"))["C"]
    return found | {kind: make(strengths[f"{name}, {kind}, {shot}-shot"]) for kind, make in kinds.items()}


def best_strengths(percent: dict[str, float]) -> dict[str, float]:
    """The C with the best accuracy on the validation classes, for each cell."""
    best: dict[str, tuple[float, float]] = {}
    for title, value in percent.items():
        name, classifier, task = title.split(", ")
        kind, _, C = classifier.partition(" C=")
        if C:
            cell = f"{name}, {kind}, {task.split()[1]}"
            best[cell] = max(best.get(cell, (-1.0, 0.0)), (value, -float(C)))  # of equally good ones, the smallest
    return {cell: -C for cell, (_, C) in best.items()}
