"""The feature bank: every image of a data set embedded once, in memory or in a file that outlives the program."""

import hashlib
import json
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepbdc.backbones.base import evaluating
from deepbdc.data.dataset import ArrayDataset, Dataset
from deepbdc.data.transforms import BatchTestTransform, test_transform
from deepbdc.embedding import Embedding

BUDGET = 4 * 2**30
_FORMS = (  # what to keep of each image, best first: (whole representations or what they are made of, dtype)
    ("representations", torch.float32),
    ("reduced maps", torch.float32),
    ("representations", torch.float16),
    ("reduced maps", torch.float16),
)


@dataclass(frozen=True)
class FeatureBank:
    """Features ``(n, ...)`` of every image, and how to make representations of them."""

    features: Tensor
    kept: str
    embedding: Embedding
    data_fingerprint: str
    weights_fingerprint: str

    def __len__(self) -> int:
        return len(self.features)

    def rows(self, indices: NDArray[np.int64]) -> Tensor:
        """Representations of some images, ``(k, ...)`` in float32."""
        chosen = self.features[torch.from_numpy(indices)].float()
        if self.kept.startswith("representations"):
            return chosen
        with evaluating(self.embedding), torch.inference_mode():
            device = next(self.embedding.parameters(), chosen).device
            return self.embedding.represent(chosen.to(device)).cpu()


def build_bank(
    embedding: Embedding,
    dataset: Dataset,
    *,
    batch_size: int = 64,
    device: str | torch.device = "cpu",
    budget: int = BUDGET,
    cache: str | Path | None = None,
    progress: bool = False,
) -> FeatureBank:
    """Embed every image of ``dataset`` once.

    Args:
        embedding: Used in evaluation mode, and left in the mode in which it was.
        dataset: The images.
        batch_size: Images embedded at a time.
        device: Where to embed; the bank itself is on the CPU.
        budget: Bytes that the bank may take. If representations do not fit, what they are made of is kept instead, and
            if need be in half precision; `FeatureBank.kept` says which.
        cache: A folder for files of features. A file is found again by the weights, the pre-processing and the data, so
            a second evaluation starts at once; a damaged one is noticed and made anew.
        progress: Show a progress bar with images a second and the time left.
    """
    weights = weights_fingerprint(embedding)
    embedding = embedding.to(device)
    with evaluating(embedding), torch.inference_mode():
        form, dtype, shape = _choose_form(embedding, dataset, budget)
        kept = f"{form}, {str(dtype).removeprefix('torch.')}"
        key = hashlib.blake2b(f"{weights} {dataset.cache_key} {kept}".encode(), digest_size=16).hexdigest()
        features = None if cache is None else _read_cache(Path(cache), key, (len(dataset), *shape))
        if features is None:
            out = _Output(cache, key, (len(dataset), *shape), dtype)
            embed = embedding if form == "representations" else embedding.reduced_map
            for start, batch in _progress(_batches(embedding, dataset, batch_size), len(dataset), progress):
                out.write(start, embed(batch.to(device)))
            features = out.finish()
    return FeatureBank(features, kept, embedding, dataset.fingerprint, weights)


def weights_fingerprint(embedding: Embedding) -> str:
    """A hash of the network's structure, weights and pre-processing."""
    digest = hashlib.blake2b(f"{embedding}{embedding.preprocessing}".encode(), digest_size=12)
    for name, value in sorted(embedding.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _choose_form(embedding: Embedding, dataset: Dataset, budget: int) -> tuple[str, torch.dtype, tuple[int, ...]]:
    """The best of `_FORMS` that fits the budget, and the shape of what is kept of one image."""
    device = next(embedding.parameters(), torch.zeros(())).device
    reduced = embedding.reduced_map(_load(embedding, dataset, np.arange(1)).to(device))
    shapes = {"reduced maps": reduced.shape[1:], "representations": embedding.represent(reduced).shape[1:]}
    sizes = []
    for form, dtype in _FORMS:
        size = len(dataset) * shapes[form].numel() * dtype.itemsize
        if size <= budget:
            return form, dtype, tuple(shapes[form])
        sizes.append(size)
    raise MemoryError(
        f"the features of {len(dataset)} images need at least {min(sizes) / 2**30:.1f} GB, the budget is "
        f"{budget / 2**30:.1f} GB: raise the budget, or reduce the channels (reduce_to)"
    )


def _load(embedding: Embedding, dataset: Dataset, indices: NDArray[np.int64]) -> Tensor:
    if isinstance(dataset, ArrayDataset):
        return BatchTestTransform(embedding.preprocessing)(dataset.images[indices])
    transform = test_transform(embedding.preprocessing)
    return torch.stack([transform(dataset.image(int(index))) for index in indices])


def _batches(embedding: Embedding, dataset: Dataset, size: int) -> Iterator[tuple[int, Tensor]]:
    for start in range(0, len(dataset), size):
        yield start, _load(embedding, dataset, np.arange(start, min(start + size, len(dataset))))


def _progress(batches: Iterator[tuple[int, Tensor]], total: int, show: bool) -> Iterator[tuple[int, Tensor]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    speed = TextColumn("{task.fields[speed]}")
    columns = (TextColumn("Embedding"), BarColumn(), MofNCompleteColumn(), speed, TimeRemainingColumn())
    with Progress(*columns, transient=True, disable=not show) as bar:
        task = bar.add_task("", total=total, speed="")
        for start, batch in batches:
            yield start, batch
            bar.update(task, advance=len(batch), speed=f"{bar.tasks[0].speed or 0:.0f} images/s")


class _Output:
    """Where features are written: in memory, or into a file that gets its name when it is complete."""

    def __init__(self, cache: str | Path | None, key: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.path = None if cache is None else Path(cache) / f"{key}.npy"
        kind = np.float32 if dtype == torch.float32 else np.float16
        self.array: Any = np.empty(shape, dtype=kind)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
            self.array = np.lib.format.open_memmap(self.temporary, mode="w+", dtype=kind, shape=shape)

    def write(self, start: int, features: Tensor) -> None:
        self.array[start : start + len(features)] = features.cpu().numpy()

    def finish(self) -> Tensor:
        if self.path is not None:
            self.array.flush()
            shape = list(self.array.shape)
            del self.array
            header = json.dumps({"shape": shape, "digest": _digest(self.temporary)})
            os.replace(self.temporary, self.path)
            temporary = self.path.with_suffix(f".{os.getpid()}.json.tmp")
            temporary.write_text(header, encoding="utf-8")
            os.replace(temporary, self.path.with_suffix(".json"))
            self.array = np.load(self.path, mmap_mode="c")
        return torch.from_numpy(self.array)


def _read_cache(cache: Path, key: str, shape: tuple[int, ...]) -> Tensor | None:
    """The features of an earlier run, if the file is there and is what was written."""
    path = cache / f"{key}.npy"
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
