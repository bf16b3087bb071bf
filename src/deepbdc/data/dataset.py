"""Data sets: the images, labels and class names of one split."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepbdc.data.images import load_image
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from PIL import Image


class Dataset(ABC):
    """Images and labels of one split; ``labels`` ``(n,)`` index ``class_names``, which is sorted."""

    def __init__(self, name: str, split: str, class_names: Sequence[str], labels: NDArray[np.int64]) -> None:
        order = sorted(range(len(class_names)), key=lambda index: class_names[index])
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        self.name = name
        self.split = split
        self.class_names = tuple(class_names[index] for index in order)
        self.labels: Tensor = torch.from_numpy(rank[labels])
        _check_classes(self)

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def image(self, index: int) -> "Image.Image":
        """Return the image at ``index`` in RGB."""

    @cached_property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that identifies the data set on every machine."""

    @property
    def cache_key(self) -> str:
        """A hash for caches on this machine: like `fingerprint`, but it also changes when a file is modified."""
        return self.fingerprint

    @abstractmethod
    def content_ids(self) -> NDArray[np.int64]:
        """For each image, the index of the first image with the same content, ``(n,)``."""

    def counts(self) -> dict[str, int]:
        """Return the number of images of each class."""
        numbers = torch.bincount(self.labels, minlength=len(self.class_names)).tolist()
        return dict(zip(self.class_names, numbers, strict=True))

    def __repr__(self) -> str:
        return f"<{self.name} {self.split}: {len(self)} images of {len(self.class_names)} classes>"


Pixels = NDArray[np.uint8] | Sequence[NDArray[np.uint8]]
"""Images of one size ``(n, h, w, 3)``, or images of different sizes, each ``(h, w, 3)``."""


class PixelDataset(Dataset):
    """Images whose pixels are at hand: nothing is decoded on access, so processes that read ahead gain nothing."""

    @abstractmethod
    def pixels(self, indices: NDArray[np.int64]) -> Pixels:
        """The pixels of some images in RGB."""


class ArrayDataset(PixelDataset):
    """Small images of one size, held in memory: ``images`` uint8 ``(n, h, w, 3)``."""

    def __init__(
        self, images: NDArray[np.uint8], labels: NDArray[np.int64], class_names: Sequence[str], name: str, split: str
    ) -> None:
        if images.ndim != 4 or len(images) != len(labels):
            raise UserError(
                f"{name}: images (n, h, w, 3) and labels (n,) needed, got {images.shape} and {labels.shape}"
            )
        super().__init__(name, split, class_names, labels)
        self.images = np.ascontiguousarray(images)

    def image(self, index: int) -> "Image.Image":
        """Return the image at ``index`` in RGB."""
        from PIL import Image

        return Image.fromarray(self.images[index])

    def pixels(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The pixels of some images, ``(n, h, w, 3)``."""
        return self.images[indices]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of class names, labels and pixels."""
        return _hash([*self.class_names], self.labels.numpy().tobytes(), self.images.data)

    def content_ids(self) -> NDArray[np.int64]:
        """For each image, the index of the first image with the same pixels, ``(n,)``."""
        return _first_equal([hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in self.images])


class FolderDataset(Dataset):
    """Image files, decoded on each access."""

    def __init__(
        self, files: Sequence[Path], labels: NDArray[np.int64], class_names: Sequence[str], name: str, split: str
    ) -> None:
        super().__init__(name, split, class_names, labels)
        self.files = tuple(files)
        self._stats = [file.stat() for file in self.files]
        self._check_files()

    def _check_files(self) -> None:
        seen: dict[tuple[int, int], Path] = {}
        for file, stat in zip(self.files, self._stats, strict=True):
            if stat.st_ino and (other := seen.setdefault((stat.st_dev, stat.st_ino), file)) != file:
                raise UserError(f"{self.name} {self.split} contains the same image file twice: {other} and {file}")

    def image(self, index: int) -> "Image.Image":
        """Return the image at ``index`` in RGB."""
        return load_image(self.files[index])

    @cached_property
    def fingerprint(self) -> str:
        """A hash of class names, file names and file sizes."""
        sized = zip(self.files, self._stats, strict=True)
        parts = [f"{file.parent.name}/{file.name}:{stat.st_size}" for file, stat in sized]
        return _hash([*self.class_names, *parts], self.labels.numpy().tobytes())

    @property
    def cache_key(self) -> str:
        """A hash of `fingerprint` and the current sizes and times of the files."""
        now = [file.stat() for file in self.files]
        return _hash([self.fingerprint, *(f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}" for stat in now)])

    def content_ids(self) -> NDArray[np.int64]:
        """For each file, the index of the first file with the same bytes, ``(n,)``."""
        return _first_equal([hashlib.blake2b(file.read_bytes(), digest_size=16).digest() for file in self.files])


def concatenate(parts: Sequence[Dataset], name: str, split: str) -> Dataset:
    """Join data sets with different classes into one: either arrays of one image size, or folders."""
    if len(parts) == 1:
        return parts[0]
    names = [class_name for part in parts for class_name in part.class_names]
    offsets = np.cumsum([0, *(len(part.class_names) for part in parts)])
    labels = np.concatenate([part.labels.numpy() + offset for part, offset in zip(parts, offsets, strict=False)])
    if all(isinstance(part, FolderDataset) for part in parts):
        files = [file for part in parts for file in part.files]  # type: ignore[attr-defined]
        return FolderDataset(files, labels, names, name, split)
    if all(isinstance(part, ArrayDataset) for part in parts):
        images = np.concatenate([part.images for part in parts])  # type: ignore[attr-defined]
        return ArrayDataset(images, labels, names, name, split)
    raise UserError(f"{name}: folders and arrays cannot be joined into one data set")


def _check_classes(dataset: Dataset) -> None:
    title = f"{dataset.name} {dataset.split}".strip()
    if not dataset.class_names:
        raise UserError(f"{title} has no classes")
    twice = sorted({name for name in dataset.class_names if dataset.class_names.count(name) > 1})
    if twice:
        raise UserError(f"{title} has a class twice: {', '.join(twice)}")
    empty = [name for name, count in dataset.counts().items() if count == 0]
    if empty:
        raise UserError(f"{title} has classes without images: {', '.join(empty[:5])}")


def _first_equal(digests: Sequence[bytes]) -> NDArray[np.int64]:
    first: dict[bytes, int] = {}
    return np.array([first.setdefault(digest, index) for index, digest in enumerate(digests)], dtype=np.int64)


def _hash(texts: Sequence[str], *buffers: "bytes | memoryview") -> str:
    digest = hashlib.blake2b("\0".join(texts).encode(), digest_size=12)
    for buffer in buffers:
        digest.update(buffer)
    return digest.hexdigest()
