"""The standard array format: ``images``, ``labels``, ``class_names`` and ``class_split`` in one ``.npz`` file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deepbdc._files import read_npz
from deepbdc.data.benchmarks import SPLITS
from deepbdc.errors import UserError

KEYS = ("images", "labels", "class_names", "class_split")


def read_arrays(path: Path) -> tuple[Any, Any, list[str], list[str]]:
    """Read and check images ``(n, h, w[, c])``, labels ``(n,)``, and the name and split of each class."""
    arrays = read_npz(path)
    missing = sorted(set(KEYS) - set(arrays))
    if missing:
        raise UserError(f"{path} lacks the arrays {', '.join(missing)}")
    images, labels = arrays["images"], arrays["labels"]
    names, splits = ([str(value) for value in arrays[key].reshape(-1)] for key in ("class_names", "class_split"))
    _check_arrays(path, images, labels, names, splits)
    return images, labels.astype(np.int64), names, splits


def _check_arrays(
    path: Path, images: np.ndarray, labels: np.ndarray, class_names: Sequence[str], class_split: Sequence[str]
) -> None:
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] not in (1, 3)):
        raise UserError(
            f"{path}: images must be uint8 of shape (n, h, w), (n, h, w, 1) or (n, h, w, 3), "
            f"got {images.dtype} {images.shape}"
        )
    if labels.shape != (len(images),):
        raise UserError(f"{path}: {len(images)} images but labels of shape {labels.shape}")
    if len(class_names) != len(class_split):
        raise UserError(f"{path}: {len(class_names)} class names but {len(class_split)} entries in class_split")
    if labels.dtype.kind not in "iu":
        raise UserError(f"{path}: labels must be integers, got {labels.dtype}")
    unknown = sorted(set(class_split) - set(SPLITS))
    if unknown:
        raise UserError(f"{path}: class_split must be {', '.join(SPLITS)}, got {', '.join(unknown)}")
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(class_names):
        raise UserError(
            f"{path}: labels run from {labels.min()} to {labels.max()}, but there are {len(class_names)} class names"
        )
