"""Where an evaluation takes images from: the feature bank, which embeds each image once, or the pictures themselves."""

import hashlib
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from deepbdc._files import temporary, write_text
from deepbdc._fingerprint import weights_fingerprint
from deepbdc._memory import usable_memory
from deepbdc._modes import evaluating
from deepbdc.data.dataset import Dataset, PixelDataset
from deepbdc.data.images import BadImage
from deepbdc.data.transforms import BatchTestTransform, test_transform
from deepbdc.data.views import ViewsOfImages, fuse
from deepbdc.embedding import Embedding
from deepbdc.errors import NotEnoughMemory, UserError
from deepbdc.preprocessing import AS_USUAL, AtTestTime, Preprocessing

_FORMS = (  # what the bank can keep of each image, best first: the representation or the map it is made from
    ("representations", torch.float32),
    ("representations", torch.float16),
    ("reduced maps", torch.float32),  # pooled again for every episode, which is slower
    ("reduced maps", torch.float16),
)


@dataclass(frozen=True)
class Shard:
    """One of several processes that embed a data set together. Each embeds its share of the batches."""

    rank: int
    count: int
    gather: Callable[[Tensor], Tensor]
    """Exchanges a tensor, of the same shape in all processes: every process gets all of them, ``(count, ...)``."""


class Source(ABC):
    """What an episode is made of: rows ``(k, ...)`` for the images that its indices name."""

    kept: str
    """What the rows are, for a result."""
    data_fingerprint: str
    test_time: AtTestTime = AS_USUAL
    """What is made of each image besides the usual."""

    @abstractmethod
    def rows(self, indices: NDArray[np.int64]) -> Tensor:
        """What `Method.classify` takes of some images, ``(k, ...)`` in float32."""

    @abstractmethod
    def check(self, embedding: Embedding, dataset: Dataset) -> None:
        """Raise if this was made of other images, or by another network."""


@dataclass(frozen=True)
class FeatureBank(Source):
    """Features ``(n, ...)`` of every image, and how to make representations of them."""

    features: Tensor
    kept: str
    embedding: Embedding
    data_fingerprint: str
    weights_fingerprint: str
    test_time: AtTestTime = AS_USUAL

    def __len__(self) -> int:
        return len(self.features)

    def rows(self, indices: NDArray[np.int64]) -> Tensor:
        """Representations of some images, ``(k, ...)`` in float32."""
        chosen = self.features[torch.from_numpy(indices)].float()
        if self.kept.startswith("representations"):
            return chosen
        with evaluating(self.embedding), torch.no_grad():
            return self.embedding.represent(chosen.to(device_of(self.embedding)))

    def check(self, embedding: Embedding, dataset: Dataset) -> None:
        """Raise if this was made of other images, or by another network."""
        if self.data_fingerprint != dataset.fingerprint:
            raise UserError("the feature bank was made of another data set")
        if self.weights_fingerprint != weights_fingerprint(embedding):
            raise UserError("the feature bank was made by another network, or by this one with other weights")


class Pictures(Source):
    """The pictures themselves ``(k, 3, size, size)``, for methods that adapt their network to each task.

    Args:
        dataset: The images.
        preprocessing: How they are prepared.
    """

    kept = "pictures"

    def __init__(self, dataset: Dataset, preprocessing: Preprocessing) -> None:
        self.dataset = dataset
        self.data_fingerprint = dataset.fingerprint
        self._whole = BatchTestTransform(preprocessing)
        self._single = test_transform(preprocessing)

    def rows(self, indices: NDArray[np.int64]) -> Tensor:
        """Some pictures, prepared for the network."""
        if isinstance(self.dataset, PixelDataset):
            return self._whole(self.dataset.pixels(indices))
        return torch.stack([self._single(self.dataset.image(int(index))) for index in indices])

    def check(self, embedding: Embedding, dataset: Dataset) -> None:
        """Raise if these are other images."""
        if self.data_fingerprint != dataset.fingerprint:
            raise UserError("these pictures are of another data set")


def device_of(network: nn.Module) -> torch.device:
    """Where a network computes: the device of its first parameter; the CPU if it has none."""
    return next(network.parameters(), torch.zeros(())).device


def build_bank(
    embedding: Embedding,
    dataset: Dataset,
    *,
    batch_size: int = 64,
    device: str | torch.device = "cpu",
    budget: int | None = None,
    cache: str | Path | None = None,
    progress: bool = False,
    workers: int = 0,
    shard: Shard | None = None,
    test_time: AtTestTime = AS_USUAL,
) -> FeatureBank:
    """Embed every image of ``dataset`` once, or each of its views once.

    Args:
        embedding: Used in evaluation mode; afterwards it has its former mode.
        dataset: The images.
        batch_size: Images embedded at a time.
        device: Where to embed; the bank itself is on the CPU.
        budget: Bytes that the bank may take (default: a quarter of the memory that this process may use). If the
            representations do not fit, the bank keeps them in half precision, or else the reduced maps that they are
            made from; `FeatureBank.kept` says which.
        cache: A folder for files of features. A file is named by a hash of the weights, the pre-processing and the
            data, so a second evaluation starts at once; a damaged file is detected and replaced.
        progress: Show a progress bar with images per second and the time left.
        workers: Processes that read image files ahead.
        shard: This process's share, when several embed together; each then has the whole bank.
        test_time: How many views of each image are embedded and fused, see `deepbdc.data.views.fuse`. The bank then
            has the fused representation, and takes no more memory than without views. The rest, a power and the mean of
            the training images, is left to `prepare_source`.
    """
    test_time = replace(test_time, centre=False, power=1.0)
    embedding.check_fixed()
    weights = weights_fingerprint(embedding)
    budget = usable_memory() // 4 if budget is None else budget
    if shard is not None:  # the processes share the memory of one machine, or have machines of different sizes
        budget = int(shard.gather(torch.tensor([budget // shard.count])).min())
    embedding = embedding.to(device)
    with evaluating(embedding), torch.no_grad():
        form, dtype, shape = _choose_form(embedding, dataset, budget, test_time.crops > 1)
        kept = ", ".join([form, str(dtype).removeprefix("torch."), *test_time.in_words()])
        key = hashlib.blake2b(f"{weights} {dataset.cache_key} {kept}".encode(), digest_size=16).hexdigest()
        path = None if cache is None else Path(cache) / f"{key}.npy"
        features = None if path is None else _read_cache(path, (len(dataset), *shape))
        if shard is not None and not bool(shard.gather(torch.tensor([features is not None])).all()):
            features = None  # if one process must embed, all do
        if features is None:
            embed = embedding if form == "representations" else embedding.reduced_map
            if test_time.crops > 1:
                embed = partial(_embed_views, embedding)
            starts = list(range(0, len(dataset), batch_size))
            mine = starts if shard is None else starts[shard.rank :: shard.count]
            loaded = _batches(embedding, dataset, batch_size, mine, workers, test_time)
            batches = _progress(loaded, len(dataset), progress)
            # Only the first process writes the file; the others get the features from the exchange.
            kept_path = path if shard is None or shard.rank == 0 else None
            with _output(kept_path, (len(dataset), *shape), dtype) as array:
                failure = _embed_all(array, batches, lambda batch: embed(batch.to(device)))
                if shard is not None and bool(shard.gather(torch.tensor([failure is not None])).any()):
                    raise failure or UserError("another process could not embed its images: see its message")
                if failure is not None:
                    raise failure
                if shard is not None:
                    _exchange(array, starts, batch_size, shard)
            found = None if kept_path is None else _read_cache(kept_path, (len(dataset), *shape))
            features = torch.from_numpy(array) if found is None else found
    return FeatureBank(features, kept, embedding, dataset.fingerprint, weights, test_time)


def _embed_views(embedding: Embedding, views: Tensor) -> Tensor:
    """The fused representations of images, ``(n, views, 3, size, size) -> (n, features)``, one view after the other."""
    return fuse(torch.stack([embedding(view) for view in views.unbind(dim=1)]))


def _choose_form(
    embedding: Embedding, dataset: Dataset, budget: int, fused: bool
) -> tuple[str, torch.dtype, tuple[int, ...]]:
    """The best of `_FORMS` that fits the budget, and the shape of what is kept of one image.

    A fused representation has no map that it could be made from again.
    """
    device = device_of(embedding)
    _, first = next(_batches(embedding, dataset, size=1, starts=[0]))
    reduced = embedding.reduced_map(first.to(device))
    shapes = {"reduced maps": reduced.shape[1:], "representations": embedding.represent(reduced).shape[1:]}
    if fused and len(shapes["representations"]) > 1:
        raise UserError(
            f"several crops of an image are averaged as vectors, but this network describes an image by a feature map "
            f"{tuple(shapes['representations'])}, whose positions differ from crop to crop: leave out crops"
        )
    sizes = []
    for form, dtype in (form for form in _FORMS if not fused or form[0] == "representations"):
        size = len(dataset) * shapes[form].numel() * dtype.itemsize
        if size <= budget:
            return form, dtype, tuple(shapes[form])
        sizes.append(size)
    raise NotEnoughMemory(
        f"the features of {len(dataset)} images need at least {min(sizes) / 2**30:.1f} GB, the budget is "
        f"{budget / 2**30:.1f} GB: raise the budget, or reduce the channels (reduce_to)"
    )


class _TestBatches(TorchDataset[tuple[int, Tensor | BadImage]]):
    """Batches of prepared images. The key of a batch is the index of its first image, which is returned with it."""

    def __init__(self, embedding: Embedding, dataset: Dataset, size: int, test_time: AtTestTime) -> None:
        self.dataset = dataset
        self.size = size
        views = ViewsOfImages(embedding.preprocessing, test_time)
        one = test_time.crops == 1
        self.whole = BatchTestTransform(embedding.preprocessing) if one else views.of_arrays
        self.single = test_transform(embedding.preprocessing) if one else views.of_image

    def __getitem__(self, start: int) -> tuple[int, Tensor | BadImage]:
        try:
            return start, self._load(start)
        except BadImage as error:  # returned, not raised: the loader would wrap it in words of its own
            return start, error

    def _load(self, start: int) -> Tensor:
        stop = min(start + self.size, len(self.dataset))
        if isinstance(self.dataset, PixelDataset):
            return self.whole(self.dataset.pixels(np.arange(start, stop)))
        return torch.stack([self.single(self.dataset.image(index)) for index in range(start, stop)])


def _batches(
    embedding: Embedding,
    dataset: Dataset,
    size: int,
    starts: Sequence[int],
    workers: int = 0,
    test_time: AtTestTime = AS_USUAL,
) -> Iterator[tuple[int, Tensor]]:
    """The batches whose first images are ``starts``, each with the index of its first image."""
    batches = _TestBatches(embedding, dataset, size, test_time)
    workers = 0 if isinstance(dataset, PixelDataset) else workers
    with torch.random.fork_rng(devices=[]):  # the loader draws a number when it starts: keep the global stream
        loaded = iter(DataLoader(batches, batch_size=None, sampler=starts, num_workers=workers))
    for start, batch in loaded:
        if isinstance(batch, BadImage):
            raise batch
        yield start, batch


def _embed_all(
    array: Any, batches: Iterator[tuple[int, Tensor]], embed: Callable[[Tensor], Tensor]
) -> Exception | None:
    """Write the features of all batches into ``array``.

    An error is returned: the other processes must hear of it before anyone raises, or they wait for ever.
    """
    try:
        for start, batch in batches:
            _write(array, start, embed(batch))
    except Exception as error:
        return error
    return None


def _exchange(array: Any, starts: Sequence[int], size: int, shard: Shard) -> None:
    """Give every process the batches of all: in each round, every process contributes one of its batches."""
    for first in range(0, len(starts), shard.count):
        turn = starts[first : first + shard.count]
        part = np.zeros((size, *array.shape[1:]), dtype=array.dtype)
        if shard.rank < len(turn):
            own = array[turn[shard.rank] : turn[shard.rank] + size]
            part[: len(own)] = own
        parts = shard.gather(torch.from_numpy(part))
        for start, values in zip(turn, parts, strict=False):
            stop = min(start + size, len(array))
            array[start:stop] = values[: stop - start].numpy()


def _progress(batches: Iterator[tuple[int, Tensor]], total: int, show: bool) -> Iterator[tuple[int, Tensor]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    speed = TextColumn("{task.fields[speed]}")
    columns = (TextColumn("Embedding"), BarColumn(), MofNCompleteColumn(), speed, TimeRemainingColumn())
    with Progress(*columns, transient=True, disable=not show) as bar:
        task = bar.add_task("", total=total, speed="")
        for start, batch in batches:
            yield start, batch
            bar.update(task, advance=len(batch), speed=f"{bar.tasks[0].speed or 0:.0f} images/s")


@contextmanager
def _output(path: Path | None, shape: tuple[int, ...], dtype: torch.dtype) -> Iterator[Any]:
    """An array to write features into: in memory, or in a file that appears under its name when it is complete."""
    kind = np.float32 if dtype == torch.float32 else np.float16
    if path is None:
        yield np.empty(shape, dtype=kind)
        return
    with temporary(path) as part:
        array = np.lib.format.open_memmap(part, mode="w+", dtype=kind, shape=shape)
        yield array
        array.flush()
        header = json.dumps({"shape": list(shape), "digest": _digest(part)})
    write_text(path.with_suffix(".json"), header)


def _write(array: Any, start: int, features: Tensor) -> None:
    values = features.cpu().numpy()
    if array.dtype == np.float16 and np.abs(values).max(initial=0) > np.finfo(np.float16).max:
        raise NotEnoughMemory(
            "the features do not fit the budget, and are too large for half precision: raise the budget"
        )
    array[start : start + len(values)] = values


def _read_cache(path: Path, shape: tuple[int, ...]) -> Tensor | None:
    """The features that an earlier run wrote, if the file exists and is undamaged."""
    if not path.is_file() or not path.with_suffix(".json").is_file():
        return None
    try:
        header = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        if tuple(header["shape"]) == shape and header["digest"] == _digest(path):
            return torch.from_numpy(np.load(path, mmap_mode="c"))
    except (ValueError, KeyError, TypeError, OSError):
        pass
    warnings.warn(f"the feature file {path} is damaged: the images are embedded again", stacklevel=3)
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
