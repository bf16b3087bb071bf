"""Turn the official archive of a benchmark into the standard layout, verified and resumable.

Image files are taken as they are, never encoded again (but for the crops of ``aircraft``). Every file is written under
a temporary name and then renamed, so what has its right name is whole: after an interruption a second call goes on with
what is missing. When all counts are right a marker is written, and only then the benchmark counts as prepared. Files of
a folder are hard-linked where the disk allows it, which costs neither time nor space.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from deepbdc import __version__
from deepbdc._files import temporary, write_text
from deepbdc.data import benchmarks
from deepbdc.data.archives import members
from deepbdc.data.benchmarks import MARKER, SPLITS, Benchmark, prepared_folder_name
from deepbdc.data.preparers import arrays, folders, imagenet
from deepbdc.data.preparers.source import Placement, PrepareError, Source, how_to_get

__all__ = ["PrepareError", "prepare"]

Progress = Callable[[int, int], None]
"""Called with the number of images done, and of all."""

Counts = Mapping[str, Mapping[str, int]]
"""Images of each class of each split."""

_TO_FOLDER: dict[str, Callable[[Source], Iterator[Placement]]] = {
    "miniimagenet": imagenet.imagenet,
    "tieredimagenet": imagenet.imagenet,
    "cub": folders.cub,
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
    progress: Progress | None = None,
    *,
    benchmark: Benchmark | None = None,
) -> Path:
    """Bring the images of a benchmark into the standard layout under ``root``.

    Args:
        name: The benchmark, like ``"cub"``.
        source: The official archive, or the folder that it unpacks to (for the two of ImageNet also the folder with one
            folder per class), or a folder that holds the archives. A folder that somebody already brought into the
            standard layout is taken too, and verified.
        root: Where prepared benchmarks lie, see :func:`deepbdc.data.benchmarks.data_root`.
        progress: Called with the number of images done, and of all.
        benchmark: The facts to verify against, when they are not those of ``name``.

    Returns:
        The folder or ``.npz`` file. When it is already complete nothing is done.

    Raises:
        PrepareError: Something is missing or differs from the facts; what was written so far stays, for the next call.
        UnsafeArchive: The archive holds something that can do harm.
    """
    benchmark = benchmark or benchmarks.get(name)
    target = benchmarks.prepared_path(name, root)
    # Arrays that are here in parts only are made anew, in one file.
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
    placements: Callable[[Source], Iterator[Placement]], source: Source, target: Path, progress: Progress
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
        raise PrepareError(f"{source.path} holds no image of {source.benchmark.name}. {how_to_get(source.benchmark)}")
    strange = sorted(file.name for file in set(target.glob("*/*/[!.]*")) - planned)
    if strange and done == total:
        raise PrepareError(
            f"{target} holds {len(strange)} files that are not of {source.benchmark.name}, like {strange[0]}: "
            "move them away, then give the same command again."
        )
    counts = count_folder(target)
    _verify(counts, source, f"What there is was kept in {target}, and the same command with the complete data goes on.")
    for left_over in target.glob("*/*/.*.part"):
        left_over.unlink()
    write_text(target / MARKER, json.dumps(_marker(counts, source), indent=1) + "\n")


def _prepare_arrays(
    build: Callable[[Source, arrays.Step], arrays.Arrays], source: Source, target: Path, progress: Progress
) -> None:
    total = sum(source.benchmark.images.values())
    built = build(source, lambda done: progress(done, total))
    counts = arrays.counts(built)
    _verify(counts, source, "Nothing was written.")
    marker = json.dumps(_marker(counts, source))
    with temporary(target) as part, open(part, "wb") as stream:
        np.savez(stream, **built, about=np.array(marker))  # type: ignore[arg-type]


def _is_still_whole(target: Path) -> bool:
    """Whether a prepared folder has the files that were counted when it was complete."""
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
    """Files of each class of each split of a folder in the standard layout; hidden ones do not count."""
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
    """What is missing or too much against the facts, in words; empty when all is right."""
    found: list[str] = []
    for split in SPLITS:
        there = counts.get(split, {})
        # A class may go by its official name (arrays) or by that name as a folder.
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
            found.append(f"{split}: {len(wrong)} classes have another number of images: {_some(wrong)}")
        images = sum(there.values())
        if images != benchmark.images[split]:
            found.append(f"{split}: {images:,} images instead of {benchmark.images[split]:,}")
    return found


def _verify(counts: Counts, source: Source, what_now: str) -> None:
    found = differences(counts, source.benchmark)
    if found:
        lines = "\n".join(f"  {line}" for line in found)
        raise PrepareError(
            f"{source.path} does not give all of {source.benchmark.name}:\n{lines}\n"
            f"{what_now} {how_to_get(source.benchmark)}"
        )


def _some(names: list[str], most: int = 5) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def _is_standard_layout(path: Path, benchmark: Benchmark) -> bool:
    """Whether each split has exactly its classes. A train folder alone is not enough: ImageNet itself has one."""
    if not path.is_dir():
        return False
    counts = count_folder(path)
    expected = {split: set(map(prepared_folder_name, names)) for split, names in benchmark.classes.items()}
    return all(set(counts[split]) == names for split, names in expected.items())


def _from_standard_layout(source: Source) -> Iterator[Placement]:
    for split in SPLITS:
        for member in members(source.path / split):
            class_name, _, file_name = member.name.partition("/")
            yield Placement(split, class_name, file_name, member.save)
