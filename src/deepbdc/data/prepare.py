"""Convert the official archive of a benchmark to the standard layout, and verify the result.

Image files are copied unchanged (except for ``aircraft`` and ``cub_cropped``, whose images are cropped). Each file is
written atomically: a file with its final name is complete, and after an interruption a second call writes only the
missing files. A marker is written when all counts are right; without it, the benchmark does not count as prepared. If
the source is a folder on the same file system, its files are hard-linked, which takes almost no time and space.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from deepbdc import __version__
from deepbdc._files import sync_folder, temporary, write_text
from deepbdc.data import benchmarks
from deepbdc.data.archives import members
from deepbdc.data.benchmarks import MARKER, SPLITS, Benchmark, prepared_folder_name
from deepbdc.data.preparers import arrays, folders, imagenet
from deepbdc.data.preparers.source import Placement, PrepareError, Source, how_to_get

__all__ = ["PrepareError", "prepare"]

OnProgress = Callable[[int, int], None]
"""Called with the number of images done so far and the total."""

Counts = Mapping[str, Mapping[str, int]]
"""Maps split to class to number of images."""

_TO_FOLDER: dict[str, Callable[[Source], Iterator[Placement]]] = {
    "miniimagenet": imagenet.imagenet,
    "tieredimagenet": imagenet.imagenet,
    "cub": folders.cub,
    "cub_cropped": folders.cub_cropped,
    "aircraft": folders.aircraft,
    "cars": folders.cars,
}
_TO_ARRAYS: dict[str, Callable[[Source, arrays.Step], arrays.Arrays]] = {
    "cifar_fs": arrays.cifar,
    "fc100": arrays.cifar,
    "omniglot": arrays.omniglot,
}


def prepare(
    name: str,
    source: str | Path,
    root: str | Path | None = None,
    progress: OnProgress | None = None,
    *,
    benchmark: Benchmark | None = None,
) -> Path:
    """Convert the images of a benchmark to the standard layout in the folder ``root``.

    Args:
        name: The benchmark, like ``"cub"``.
        source: The official archive, or the folder that it unpacks to (for miniImageNet and tieredImageNet, also a
            folder of ImageNet with one subfolder per class), or a folder that contains the archives. A folder that is
            already in the standard layout is accepted too, and verified.
        root: The folder of the prepared benchmarks, see :func:`deepbdc.data.benchmarks.data_root`.
        progress: Called with the number of images done so far and the total.
        benchmark: The facts to verify against, if they are not those of ``name``.

    Returns:
        The prepared folder or ``.npz`` file. If it is already complete, nothing is done.

    Raises:
        PrepareError: Images are missing or differ from the facts. The files written so far are kept for the next call.
        UnsafeArchive: The archive holds something that could do harm.
    """
    benchmark = benchmark or benchmarks.get(name)
    target = benchmarks.prepared_path(name, root)
    # An array benchmark that exists only in parts is prepared again, as one file.
    arrays = benchmark.layout == "arrays"
    if target.is_file() if arrays else benchmarks.is_prepared(name, root) and _is_still_whole(target):
        return target
    given = Source(source, benchmark)
    given.verify_checksums()
    report = progress or (lambda done, total: None)
    if benchmark.layout == "arrays":
        _prepare_arrays(_TO_ARRAYS[name], given, target, report)
    else:
        standard = _is_standard_layout(given.path, benchmark)
        _prepare_folder(_from_standard_layout if standard else _TO_FOLDER[name], given, target, report)
    return target


def _prepare_folder(
    placements: Callable[[Source], Iterator[Placement]], source: Source, target: Path, progress: OnProgress
) -> None:
    total = sum(source.benchmark.images.values())
    done, planned = 0, set()
    for done, placement in enumerate(placements(source), start=1):
        path = target / placement.split / prepared_folder_name(placement.class_name) / placement.file_name
        planned.add(path)
        if not path.exists():
            placement.save(path)
        progress(done, total)
    if done == 0:
        raise PrepareError(f"{source.path} has no image of {source.benchmark.name}. {how_to_get(source.benchmark)}")
    strange = sorted(file.name for file in set(target.glob("*/*/[!.]*")) - planned)
    if strange and done == total:
        raise PrepareError(
            f"{target} contains {len(strange)} files that do not belong to {source.benchmark.name}, like {strange[0]}: "
            "move them away, then run the same command again."
        )
    counts = count_folder(target)
    _verify(counts, source, f"The images found are kept in {target}. Run the same command with the complete data.")
    for left_over in target.glob("*/*/.*.part"):
        left_over.unlink()
    for folder in target.glob("*/*/"):
        sync_folder(folder)  # the marker must not reach the disk before the images
    write_text(target / MARKER, json.dumps(_marker(counts, source), indent=1) + "\n")


def _prepare_arrays(
    build: Callable[[Source, arrays.Step], arrays.Arrays], source: Source, target: Path, progress: OnProgress
) -> None:
    total = sum(source.benchmark.images.values())
    built = build(source, lambda done: progress(done, total))
    counts = arrays.counts(built)
    _verify(counts, source, "Nothing was written.")
    marker = json.dumps(_marker(counts, source))
    with temporary(target) as part, open(part, "wb") as stream:
        np.savez(stream, **built, about=np.array(marker))  # type: ignore[arg-type]


def _is_still_whole(target: Path) -> bool:
    """Whether a prepared folder still has the numbers of images that its marker records."""
    counted = json.loads((target / MARKER).read_text(encoding="utf-8")).get("counts")
    return bool(counted == _totals(count_folder(target)))


def _totals(counts: Counts) -> dict[str, dict[str, int]]:
    return {
        split: {"classes": len(per_class), "images": sum(per_class.values())} for split, per_class in counts.items()
    }


def _marker(counts: Counts, source: Source) -> dict[str, object]:
    return {
        "benchmark": source.benchmark.name,
        "counts": _totals(counts),
        "made_from": source.path.name,
        "deepbdc": __version__,
    }


def count_folder(path: Path) -> dict[str, dict[str, int]]:
    """Count the files of each class of each split in a folder in the standard layout, without hidden files."""
    found: dict[str, dict[str, int]] = {}
    for split in SPLITS:
        classes = sorted((path / split).iterdir()) if (path / split).is_dir() else []
        found[split] = {
            folder.name: sum(not file.name.startswith(".") for file in folder.iterdir())
            for folder in classes
            if folder.is_dir() and not folder.name.startswith(".")
        }
    return found


def differences(counts: Counts, benchmark: Benchmark) -> list[str]:
    """Describe each difference between the counts and the official ones; return an empty list if there is none."""
    found: list[str] = []
    for split in SPLITS:
        there = counts.get(split, {})
        # Arrays use the official class names, folders use names made from them.
        wanted = {prepared_folder_name(name): name for name in benchmark.classes[split]}
        named = {prepared_folder_name(name): count for name, count in there.items()}
        missing = sorted(wanted.keys() - {name for name, count in named.items() if count})
        extra = sorted(named.keys() - wanted.keys())
        if missing:
            found.append(f"{split}: {len(missing)} of {len(wanted)} classes are missing: {_some(missing)}")
        if extra:
            found.append(f"{split}: {len(extra)} classes do not belong here: {_some(extra)}")
        wrong = [
            f"{key} ({named[key]} instead of {benchmark.per_class[wanted[key]]})"
            for key in sorted(named.keys() & wanted.keys())
            if named[key] and benchmark.per_class and named[key] != benchmark.per_class[wanted[key]]
        ]
        if wrong:
            found.append(f"{split}: {len(wrong)} classes have a wrong number of images: {_some(wrong)}")
        images = sum(there.values())
        if images != benchmark.images[split]:
            found.append(f"{split}: {images:,} images instead of {benchmark.images[split]:,}")
    return found


def _verify(counts: Counts, source: Source, what_now: str) -> None:
    found = differences(counts, source.benchmark)
    if found:
        lines = "\n".join(f"  {line}" for line in found)
        raise PrepareError(
            f"{source.path} does not contain all of {source.benchmark.name}:\n{lines}\n"
            f"{what_now} {how_to_get(source.benchmark)}"
        )


def _some(names: list[str], most: int = 5) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def _is_standard_layout(path: Path, benchmark: Benchmark) -> bool:
    """Whether the folder has all splits with exactly their classes (ImageNet itself has only a train folder)."""
    if not path.is_dir():
        return False
    if (path / MARKER).is_file():
        made_as = json.loads((path / MARKER).read_text(encoding="utf-8")).get("benchmark")
        if made_as != benchmark.name:
            raise PrepareError(f"{path} was prepared as {made_as}, not as {benchmark.name}. {how_to_get(benchmark)}")
    counts = count_folder(path)
    expected = {split: set(map(prepared_folder_name, names)) for split, names in benchmark.classes.items()}
    return all(set(counts[split]) == names for split, names in expected.items())


def _from_standard_layout(source: Source) -> Iterator[Placement]:
    for split in SPLITS:
        for member in members(source.path / split):
            class_name, _, file_name = member.name.partition("/")
            yield Placement(split, class_name, file_name, member.save)
