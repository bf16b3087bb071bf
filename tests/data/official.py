"""Build small archives in the official formats: the same paths and annotation files, but few and tiny images."""

import io
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from deepbdc.data import benchmarks
from deepbdc.data.benchmarks import Archive, Benchmark

Files = Mapping[str, bytes]


def picture(seed: int, size: tuple[int, int] = (40, 30), kind: str = "JPEG") -> bytes:
    """Make an image file; each seed gives another one."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def tar_bytes(files: Files, mode: str = "w") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def write_tar(path: Path, files: Files) -> Path:
    path.write_bytes(tar_bytes(files, "w" if path.suffix == ".tar" else "w:gz"))
    return path


def write_zip(path: Path, files: Files) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def write_folder(path: Path, files: Files) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def small(
    name: str, classes: Mapping[str, tuple[str, ...]], images: int | Mapping[str, int], **changes: Any
) -> Benchmark:
    """Return the benchmark with other classes and counts, and without the MD5 sums of the official files."""
    every = [label for names in classes.values() for label in names]
    per_class = dict.fromkeys(every, images) if isinstance(images, int) else dict(images)
    official = benchmarks.get(name)
    facts: dict[str, Any] = {
        "classes": classes,
        "per_class": per_class,
        "images": {split: sum(per_class[label] for label in names) for split, names in classes.items()},
        "archives": tuple(tuple(Archive(archive.name) for archive in group) for group in official.archives),
        "ranks": {},
    }
    return replace(official, **(facts | changes))


def tree(path: Path) -> dict[str, bytes]:
    """Read all files below ``path`` except hidden ones."""
    return {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and not file.name.startswith(".")
    }
