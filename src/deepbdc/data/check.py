"""Check every image of a data set, and report each problem with its remedy."""

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepbdc._words import counted
from deepbdc.data import benchmarks
from deepbdc.data.benchmarks import MARKER, SPLITS
from deepbdc.data.images import IMAGE_SUFFIXES, BadImage, load_image
from deepbdc.data.npz import read_arrays
from deepbdc.data.prepare import OnProgress, differences
from deepbdc.errors import UserError

_SHRUNK = (84, 84)
# A few photos may be 84×84 by chance; if more than this share is, somebody has resized the data set.
_SHRUNK_SHARE = 0.01
_REPLACE = "Replace them with the originals."


@dataclass(frozen=True)
class Problem:
    """One problem of a data set.

    Attributes:
        kind: ``"broken"``, ``"counts"``, ``"shared"``, ``"twice"``, ``"shrunk"``, ``"format"`` or ``"empty"``.
        text: A description of the problem.
        remedy: How to fix it.
        items: All files or classes that have the problem.
        serious: Whether the data set should not be used before the problem is fixed.
    """

    kind: str
    text: str
    remedy: str
    items: tuple[str, ...] = ()
    serious: bool = True


@dataclass(frozen=True)
class Report:
    """The result of a check. ``counts`` maps split to class to number of images."""

    path: Path
    benchmark: str | None
    counts: Mapping[str, Mapping[str, int]]
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether there are no serious problems."""
        return not any(problem.serious for problem in self.problems)


@dataclass(frozen=True)
class _Seen:
    """One checked image: its name in messages, split, class, a digest of its content, and its size or the error."""

    name: str
    split: str
    class_name: str
    digest: bytes
    size: tuple[int, int] | None = None
    error: str | None = None


def check(
    path: str | Path, progress: OnProgress | None = None, *, benchmark: benchmarks.Benchmark | None = None
) -> Report:
    """Check every image of a folder (``train|val|test/CLASS/IMAGE`` or ``CLASS/IMAGE``) or of an ``.npz`` file.

    Args:
        path: The folder or file. If this library prepared it, or if it is named like a benchmark, the number of images
            is compared with the official one.
        progress: Called with the number of images checked so far and the total.
        benchmark: The benchmark to compare with, if it cannot be recognised by the marker or the name.

    Raises:
        FileNotFoundError: ``path`` does not exist.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {path}")
    if path.is_file() and path.suffix != ".npz":
        raise UserError(f"{path} is neither a folder of images nor an .npz file of arrays.")
    benchmark = benchmark or _recognise(path)
    report = progress or (lambda done, total: None)
    try:
        classes, seen = _look_at_arrays(path) if path.is_file() else _look_at_folder(path, report)
    except _Unusable as error:
        return Report(path, benchmark.name if benchmark else None, {}, (error.problem,))
    counts = _count(classes, seen)
    wrong = list(_wrong_counts(counts, benchmark)) if benchmark else []
    found = [
        *_broken(seen),
        *wrong,
        *_empty(counts, serious=path.is_dir()),
        *_shared(classes),
        *_twice(seen, official=benchmark is not None and not wrong),
        *_shrunk(seen),
    ]
    return Report(path, benchmark.name if benchmark else None, counts, tuple(found))


class _Unusable(Exception):
    """The arrays are not in the standard format, so their images cannot be checked."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        remedy = "Needed: images uint8 (n, h, w[, c]), labels (n,), class_names and class_split, without pickles."
        self.problem = Problem("format", text, remedy)


def _recognise(path: Path) -> benchmarks.Benchmark | None:
    """Find the benchmark by the marker of a prepared folder, else by the name of the path."""
    name = path.stem
    if (path / MARKER).is_file():
        with suppress(ValueError, KeyError, TypeError):  # ignore a damaged marker
            name = json.loads((path / MARKER).read_text(encoding="utf-8"))["benchmark"]
    if name not in benchmarks.names() or len(benchmarks.components(name)) > 1:
        return None
    found = benchmarks.get(name)
    return None if found.layout == "embedded" else found


Classes = dict[str, list[str]]
"""The classes of each split, including those without images."""


def _look_at_folder(path: Path, progress: OnProgress) -> tuple[Classes, list[_Seen]]:
    parts = {split: path / split for split in SPLITS if (path / split).is_dir()} or {"all": path}
    classes = {split: [folder.name for folder in _visible(part) if folder.is_dir()] for split, part in parts.items()}
    files = [
        (file, split, name)
        for split, names in classes.items()
        for name in names
        for file in _visible(parts[split] / name)
        if file.is_file()
    ]

    def look(entry: tuple[Path, str, str]) -> _Seen:
        return _look_at_file(entry[0], path, *entry[1:])

    seen: list[_Seen] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # image decoders release the GIL
        for start in range(0, len(files), 256):
            seen += pool.map(look, files[start : start + 256])
            progress(len(seen), len(files))
    return classes, seen


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _look_at_file(file: Path, root: Path, split: str, class_name: str) -> _Seen:
    content = file.read_bytes()
    digest = hashlib.blake2b(content, digest_size=16).digest()
    name = file.relative_to(root).as_posix()
    if file.suffix.lower() not in IMAGE_SUFFIXES:
        error = f"{file.suffix} is not the suffix of an image format" if file.suffix else "it has no suffix"
        return _Seen(name, split, class_name, digest, error=error)
    try:
        return _Seen(name, split, class_name, digest, size=load_image(content).size)
    except BadImage as error:
        return _Seen(name, split, class_name, digest, error=str(error).removeprefix("image bytes: "))


def _look_at_arrays(path: Path) -> tuple[Classes, list[_Seen]]:
    try:
        images, labels, names, splits = read_arrays(path)
    except ValueError as error:
        raise _Unusable(str(error)) from error
    classes: Classes = defaultdict(list)
    for name, split in zip(names, splits, strict=True):
        classes[str(split)].append(str(name))
    size = (images.shape[2], images.shape[1])
    seen = [
        _Seen(
            f"image {i}", str(splits[label]), str(names[label]), hashlib.blake2b(image, digest_size=16).digest(), size
        )
        for i, (image, label) in enumerate(zip(np.ascontiguousarray(images), labels, strict=True))
    ]
    return dict(classes), seen


def _count(classes: Classes, seen: Iterable[_Seen]) -> dict[str, dict[str, int]]:
    order = [split for split in SPLITS if split in classes] + [split for split in classes if split not in SPLITS]
    counts = {split: dict.fromkeys(classes[split], 0) for split in order}
    for image in seen:
        counts[image.split][image.class_name] += 1
    return counts


def _broken(seen: list[_Seen]) -> Iterator[Problem]:
    broken = tuple(f"{image.name}: {image.error}" for image in seen if image.error)
    if broken:
        yield Problem(
            "broken",
            f"{counted(len(broken), 'file is not a readable image', 'files are not readable images')}",
            _REPLACE,
            broken,
        )


def _wrong_counts(counts: Mapping[str, Mapping[str, int]], benchmark: benchmarks.Benchmark) -> Iterator[Problem]:
    wrong = tuple(differences(counts, benchmark))
    if wrong:
        remedy = f"Prepare it again from the official data: deepbdc data prepare {benchmark.name} --source ..."
        yield Problem("counts", f"the data differ from the official {benchmark.name}", remedy, wrong)


def _empty(counts: Mapping[str, Mapping[str, int]], serious: bool) -> Iterator[Problem]:
    """Report classes without images. In arrays they are not serious: the file of one split may name all classes."""
    empty = tuple(f"{split}/{name}" for split, names in counts.items() for name, count in names.items() if not count)
    if empty:
        yield Problem(
            "empty",
            f"{counted(len(empty), 'class has', 'classes have')} no images",
            "Add some, or remove the classes.",
            empty,
            serious,
        )
    if not any(sum(names.values()) for names in counts.values()):
        yield Problem("empty", "there are no images", "Give a folder train|val|test/CLASS/IMAGE or CLASS/IMAGE.")


def _shared(classes: Classes) -> Iterator[Problem]:
    splits_of: dict[str, list[str]] = defaultdict(list)
    for split, names in classes.items():
        for name in names:
            splits_of[name].append(split)
    shared = tuple(f"{name} ({', '.join(splits)})" for name, splits in sorted(splits_of.items()) if len(splits) > 1)
    if shared:
        remedy = "Keep each class in one split only: few-shot learning is tested on classes not seen in training."
        yield Problem(
            "shared",
            f"{counted(len(shared), 'class is', 'classes are')} listed twice or in more than one split",
            remedy,
            shared,
        )


def _twice(seen: list[_Seen], official: bool) -> Iterator[Problem]:
    """Report images with the same content. Some official data sets have a few; there they are not a serious problem."""
    same: dict[bytes, list[str]] = defaultdict(list)
    for image in seen:
        label = image.name if "/" in image.name else f"{image.name} ({image.split}, {image.class_name})"
        same[image.digest].append(label)
    twice = tuple(" = ".join(names) for names in same.values() if len(names) > 1)
    if twice:
        remedy = (
            "The official data have them: nothing to do."
            if official
            else "Keep one of each; otherwise an image can be both support and query."
        )
        yield Problem(
            "twice",
            f"{counted(len(twice), 'image occurs', 'images occur')} more than once",
            remedy,
            twice,
            serious=not official,
        )


def _shrunk(seen: list[_Seen]) -> Iterator[Problem]:
    small = tuple(image.name for image in seen if image.size == _SHRUNK)
    if small and len(small) > _SHRUNK_SHARE * len(seen):
        yield Problem(
            "shrunk",
            f"{len(small)} of {len(seen)} images are exactly 84×84: somebody has resized them",
            "The paper crops and resizes images of the original size; on resized ones, accuracy is some points lower. "
            "Prepare the data from the official archive: deepbdc data prepare NAME --source ...",
            small,
        )
