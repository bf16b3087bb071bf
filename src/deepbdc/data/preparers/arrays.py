"""CIFAR-100 (for CIFAR-FS and FC100) and Omniglot: small images, stored in one file of arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np

from deepbdc.data.benchmarks import SPLITS, Benchmark
from deepbdc.data.images import load_image
from deepbdc.data.preparers.cifar_pickle import load_pickle
from deepbdc.data.preparers.source import PrepareError, Source, how_to_get

Arrays = dict[str, np.ndarray[Any, Any]]
Step = Callable[[int], None]
"""Called with the number of images done so far."""

_OMNIGLOT_SIZE = 28


def cifar(source: Source, step: Step) -> Arrays:
    """Read all images of CIFAR-100, training and test parts together, from the python or the binary version."""
    found = _read_one_version(source)
    if {"meta", "train", "test"} <= found.keys():
        label_names, parts = _from_pickles(found)
    elif {"fine_label_names.txt", "train.bin", "test.bin"} <= found.keys():
        label_names = found["fine_label_names.txt"].decode().split()
        parts = [_from_binary(name, found[name]) for name in ("train.bin", "test.bin")]
    else:
        raise PrepareError(
            f"{source.path} has {', '.join(sorted(found)) or 'nothing'} of CIFAR-100, but meta, train and test (or "
            f"fine_label_names.txt, train.bin and test.bin) are needed. {how_to_get(source.benchmark)}"
        )
    flat = np.concatenate([images for images, _ in parts])
    labels = np.concatenate([labels for _, labels in parts])
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(label_names):
        raise PrepareError(f"labels run from {labels.min()} to {labels.max()}, but there are {len(label_names)} names.")
    step(len(flat))
    # Each row holds the red, then the green, then the blue plane.
    images = np.ascontiguousarray(flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    names = _with_trees(label_names, source.benchmark)
    return assemble(images, [names[label] for label in labels], source.benchmark)


def _with_trees(names: list[str], benchmark: Benchmark) -> list[str]:
    """Use the official class names: some copies, and the home page, say ``oak`` instead of ``oak_tree``."""
    known = benchmark.split_of()
    return [f"{name}_tree" if name not in known and f"{name}_tree" in known else name for name in names]


def _read_one_version(source: Source) -> dict[str, bytes]:
    """Read files until those of the python or of the binary version are complete."""
    python, binary = ("meta", "train", "test"), ("fine_label_names.txt", "train.bin", "test.bin")
    found: dict[str, bytes] = {}
    for member in source.members():
        if member.base in (*python, *binary):
            found[member.base] = member.read()
        if found.keys() >= set(python) or found.keys() >= set(binary):
            break
    return found


def _from_pickles(found: dict[str, bytes]) -> tuple[list[str], list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]]:
    label_names = load_pickle(found["meta"], "meta").get("fine_label_names")
    if not isinstance(label_names, list):
        raise PrepareError("the file meta of CIFAR-100 has no list fine_label_names.")
    parts = []
    for name in ("train", "test"):
        content = load_pickle(found[name], name)
        images, labels = content.get("data"), content.get("fine_labels")
        if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != 3072:
            raise PrepareError(f"the file {name} of CIFAR-100 has no array data of shape (n, 3072).")
        if not isinstance(labels, list) or len(labels) != len(images):
            raise PrepareError(f"the file {name} of CIFAR-100 has no fine_labels for its {len(images)} images.")
        parts.append((images, np.array(labels, dtype=np.int64)))
    return [str(label) for label in label_names], parts


def _from_binary(name: str, content: bytes) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Read rows of 3,074 bytes: one for the super-class, one for the class, and 3,072 for the image."""
    if len(content) % 3074:
        raise PrepareError(f"{name} is {len(content):,} bytes long, which is not a multiple of 3,074: it is truncated.")
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3074)
    return rows[:, 2:], rows[:, 1].astype(np.int64)


def omniglot(source: Source, step: Step) -> Arrays:
    """Read ``images_background/Greek/character01/0394_01.png`` etc., resized to 28×28, with ink = 255 and paper = 0."""
    from PIL import Image

    wanted = source.benchmark.split_of()
    found: dict[tuple[str, str], np.ndarray[Any, Any]] = {}
    for member in source.members():
        class_name = "/".join(member.name.split("/")[-3:-1])
        if class_name not in wanted or not member.base.endswith(".png") or member.base.startswith("."):
            continue
        ink = load_image(member.read(), title=member.name).convert("L").point(lambda grey: 255 - grey)
        small = ink.resize((_OMNIGLOT_SIZE, _OMNIGLOT_SIZE), Image.Resampling.BILINEAR)
        found[class_name, member.base] = np.asarray(small)
        step(len(found))
    order = sorted(found)
    images = np.stack([found[key] for key in order])[..., None] if order else np.zeros((0, 28, 28, 1), np.uint8)
    return assemble(images, [class_name for class_name, _ in order], source.benchmark)


def assemble(images: np.ndarray[Any, Any], names: list[str], benchmark: Benchmark) -> Arrays:
    """Build the standard arrays, with classes in sorted order and without images of classes that are in no split."""
    split_of = benchmark.split_of()
    class_names = sorted(split_of)
    number = {name: index for index, name in enumerate(class_names)}
    labels = np.array([number.get(name, -1) for name in names], dtype=np.int64)
    keep = labels >= 0
    return {
        "images": images[keep],
        "labels": labels[keep],
        "class_names": np.array(class_names),
        "class_split": np.array([split_of[name] for name in class_names]),
    }


def counts(arrays: Arrays) -> dict[str, dict[str, int]]:
    """Count the images of each class of each split."""
    per_class = np.bincount(arrays["labels"], minlength=len(arrays["class_names"]))
    found: dict[str, dict[str, int]] = {split: {} for split in SPLITS}
    for name, split, count in zip(arrays["class_names"], arrays["class_split"], per_class, strict=True):
        if count:
            found[str(split)][str(name)] = int(count)
    return found
