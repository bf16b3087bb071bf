"""Image files decoded and shrunk once: their pixels lie in one memory-mapped file, so that an epoch decodes nothing.

The pixels of all images follow each other in a hidden file ``.shrunk-SIDE-KEY.pixels`` beside the images, or in the
cache folder if that place cannot be written. A second file has their sizes, because each image keeps its aspect ratio.
The key is a hash of the names, sizes and times of the image files, so changed images are decoded anew. The files can be
deleted at any time.
"""

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from deepbdc._files import cache_folder, make_folder, temporary
from deepbdc.data.dataset import Dataset, FolderDataset, PixelDataset, Pixels
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

_FORMAT = 1
"""Part of the key: a change of the rule by which images are shrunk needs another number."""
_AT_ONCE = 256
"""Images that are decoded ahead of the writing."""


class ShrunkDataset(PixelDataset):
    """The images of a folder, decoded, with a shorter side of at most ``side`` pixels. Smaller images are unchanged.

    Args:
        source: The image files.
        side: The limit of the shorter side in pixels.
        values: The pixels of all images, one after the other, uint8.
        sizes: Height and width of each image, ``(n, 2)``.
    """

    def __init__(self, source: FolderDataset, side: int, values: NDArray[np.uint8], sizes: NDArray[np.int64]) -> None:
        super().__init__(source.name, source.split, source.class_names, source.labels.numpy())
        self.source = source
        self.side = side
        self._values = values
        self._sizes = sizes
        self._starts = np.concatenate([[0], np.cumsum(3 * sizes.prod(axis=1))])
        self._stacked: NDArray[np.uint8] | None = None
        if (sizes == sizes[0]).all():
            self._stacked = values.reshape(len(sizes), *sizes[0], 3)

    def pixels(self, indices: NDArray[np.int64]) -> Pixels:
        """The pixels of some images: ``(n, h, w, 3)`` if all images of the data set have one size, else a list."""
        if self._stacked is not None:
            return self._stacked[indices]
        return [self._one(int(index)) for index in indices]

    def _one(self, index: int) -> NDArray[np.uint8]:
        """The pixels of an image, ``(h, w, 3)``."""
        return self._values[self._starts[index] : self._starts[index + 1]].reshape(*self._sizes[index], 3)

    def image(self, index: int) -> "Image.Image":
        """Return the image at ``index`` in RGB."""
        from PIL import Image

        return Image.fromarray(self._one(index))

    @cached_property
    def fingerprint(self) -> str:
        """That of the image files: the same episodes fit both, and results on both can be paired."""
        return self.source.fingerprint

    @property
    def cache_key(self) -> str:
        """A hash of the files as they are now, and of the limit."""
        return _hash(self.source.cache_key, f"{self.side} {_FORMAT}")

    def content_ids(self) -> NDArray[np.int64]:
        """For each image, the index of the first one with the same file content, ``(n,)``."""
        return self.source.content_ids()


def shrunk(dataset: Dataset, side: int | None, *, progress: bool = False) -> Dataset:
    """The same images with a shorter side of at most ``side`` pixels, decoded once and kept in a memory-mapped file.

    Args:
        dataset: Image files. The images of any other data set are at hand already, and it is returned as it is.
        side: The limit of the shorter side in pixels; None returns the data set as it is.
        progress: Show a progress bar, or a line where there is no terminal, if the images must be decoded first.
    """
    if side is None or not isinstance(dataset, FolderDataset):
        return dataset
    name = f".shrunk-{side}-{_key(dataset, side)}.pixels"
    folders = _folders(dataset)
    for folder in folders:
        found = _read(dataset, side, folder / name)
        if found is not None:
            return found
    problems = []
    for folder in folders:
        try:
            make_folder(folder)
            with FileLock(folder / f"{name}.lock"):  # several trainings may start at the same time
                found = _read(dataset, side, folder / name)
                return _build(dataset, side, folder / name, progress) if found is None else found
        except OSError as error:
            if isinstance(error, FileNotFoundError):  # an image file has vanished
                raise
            problems.append(f"{folder} ({error.strerror or error})")
    raise UserError(
        f"the shrunk images of {dataset.name} {dataset.split} could not be written to {' or to '.join(problems)}: "
        "make room there, or set shrink_to=null, which decodes the files in every epoch"
    )


def _key(dataset: FolderDataset, side: int) -> str:
    times = " ".join(str(file.stat().st_mtime_ns) for file in dataset.files)
    return _hash(dataset.fingerprint, times, f"{side} {_FORMAT}")


def _hash(*texts: str) -> str:
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=8).hexdigest()


def _folders(dataset: FolderDataset) -> list[Path]:
    """Where the pixels can be: in the folder that holds all of the images, or else in the cache folder."""
    try:
        beside = [Path(os.path.commonpath([file.resolve().parent for file in dataset.files]))]
    except ValueError:  # on Windows, the files may be on several drives
        beside = []
    return [*beside, cache_folder() / "shrunk"]


def _read(dataset: FolderDataset, side: int, path: Path) -> ShrunkDataset | None:
    """The images that an earlier run wrote, if both files are there and complete."""
    try:
        sizes = np.load(_sizes_of(path))
        if sizes.shape != (len(dataset), 2) or path.stat().st_size != 3 * int(sizes.prod(axis=1).sum()):
            return None
        # Copy on write: torch warns about arrays that cannot be written.
        return ShrunkDataset(dataset, side, np.memmap(path, dtype=np.uint8, mode="c"), sizes)
    except (OSError, ValueError, EOFError):
        return None


def _sizes_of(path: Path) -> Path:
    return path.with_suffix(".sizes.npy")


def _build(dataset: FolderDataset, side: int, path: Path, progress: bool) -> ShrunkDataset:
    """Decode and shrink all images, and write their pixels and then their sizes."""
    sizes = np.empty((len(dataset), 2), dtype=np.int64)

    def load(index: int) -> NDArray[np.uint8]:
        return np.asarray(_shrink(dataset.image(index), side))

    with (
        temporary(path) as part,
        part.open("wb") as stream,
        ThreadPoolExecutor(os.cpu_count()) as pool,  # Pillow releases the GIL
        _progress(dataset, side, progress) as advance,
    ):
        for start in range(0, len(dataset), _AT_ONCE):
            several = range(start, min(start + _AT_ONCE, len(dataset)))
            for index, pixels in zip(several, pool.map(load, several), strict=True):
                sizes[index] = pixels.shape[:2]
                stream.write(pixels.tobytes())
            advance(len(several))
    with temporary(_sizes_of(path)) as part, part.open("wb") as stream:
        np.save(stream, sizes)
    found = _read(dataset, side, path)
    assert found is not None
    return found


def _shrink(image: "Image.Image", side: int) -> "Image.Image":
    """Resize the shorter side to ``side`` if it is longer, as `test_transform` resizes it."""
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional as v2

    if min(image.size) <= side:
        return image
    resized: Image.Image = v2.resize(image, [side], interpolation=InterpolationMode.BILINEAR)
    return resized


@contextmanager
def _progress(dataset: FolderDataset, side: int, show: bool) -> Iterator[Callable[[int], None]]:
    """Show what is done; the function that this yields is called with the number of images done since the last call."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(file=sys.stderr)
    text = f"Decoding the images of {dataset.name} {dataset.split} once, to a shorter side of at most {side} pixels"
    if show and not console.is_terminal:
        console.print(f"{text}: {len(dataset):,} images", markup=False, highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not show or not console.is_terminal) as bar:
        task = bar.add_task(text, total=len(dataset))
        yield lambda count: bar.update(task, advance=count)
