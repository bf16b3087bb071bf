"""Pictures of a data set that went through the default network of `FewShotClassifier` once, kept in a folder."""

import argparse
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepbdc import FewShotClassifier, load_dataset
from deepbdc.estimator import EmbeddedImage
from deepbdc.own_images.networks import find_embedding
from deepbdc.own_images.reading import map_fingerprint


@dataclass(frozen=True)
class Embedded:
    """Pictures of some classes, each embedded once."""

    name: str
    pictures: list[EmbeddedImage]
    labels: NDArray[np.int64]
    """The class of each picture, from 0."""


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options that say which pictures to take."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="data sets: names, .npz files or folders")
    parser.add_argument("--root", help="the folder of the prepared data sets")
    parser.add_argument("--cache", type=Path, required=True, help="where embedded pictures are kept")
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--pictures", type=int, default=40, help="per class")
    parser.add_argument("--repeats", type=int, default=20)
    return parser


def embedded(name: str, root: str | None, classes: int, per_class: int, cache: Path) -> Embedded:
    """Random pictures of random classes of the test split, always the same ones."""
    dataset = load_dataset(name, "test", root=root)
    random = np.random.default_rng(0)
    every = dataset.labels.numpy()
    chosen = sorted(random.permutation(len(dataset.class_names))[:classes].tolist())
    indices = np.concatenate([random.permutation(np.flatnonzero(every == label))[:per_class] for label in chosen])
    labels = np.searchsorted(chosen, every[indices])
    network = map_fingerprint(find_embedding(FewShotClassifier().backbone, None, None, "cpu"))
    key = hashlib.sha256(f"{dataset.name} {dataset.split} {indices.tolist()} {network}".encode()).hexdigest()[:16]
    file = cache / f"{dataset.name}_{key}.pt"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        made = FewShotClassifier().embed([dataset.image(index) for index in indices.tolist()])
        torch.save(
            {"maps": torch.stack([one.features for one in made]), "thumbs": [one.thumbnail for one in made]}, file
        )
    kept = torch.load(file, weights_only=True)
    maps: Tensor = kept["maps"]
    pictures = [
        EmbeddedImage(f"{label}/{index}", features, thumbnail, network)
        for label, index, features, thumbnail in zip(labels, indices, maps, kept["thumbs"], strict=True)
    ]
    return Embedded(dataset.name, pictures, labels)
