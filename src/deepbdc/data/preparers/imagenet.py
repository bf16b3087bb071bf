"""miniImageNet and tieredImageNet from the training images of ILSVRC 2012.

The source is a folder with one subfolder per class (``n01532829/n01532829_10026.JPEG``), a folder with one tar per
class, or the official ``ILSVRC2012_img_train.tar``, which is a tar of such tars.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from deepbdc.data.archives import Member, members, plain_member, tar_members
from deepbdc.data.benchmarks import Benchmark
from deepbdc.data.preparers.source import Placement, PrepareError, Source

_PLACES = (".", "train", "ILSVRC/Data/CLS-LOC/train", "Data/CLS-LOC/train", "CLS-LOC/train")
_CLASS = re.compile(r"n\d{8}")

Contents = Callable[[], Iterable[Member]]
"""Iterates over the images of one class. It is called twice: first for the file names, then for the images."""


def imagenet(source: Source) -> Iterator[Placement]:
    """Place the images of the benchmark's classes: all of them, or those at the ranks that the benchmark lists."""
    benchmark = source.benchmark
    split_of = benchmark.split_of()
    for wnid, contents in _classes(source.path):
        if wnid in split_of:
            yield from _chosen(wnid, split_of[wnid], contents, benchmark)


def _chosen(wnid: str, split: str, contents: Contents, benchmark: Benchmark) -> Iterator[Placement]:
    # Only names are needed here, so this first pass reads the headers of a tar or lists a folder.
    wanted = _at_ranks(wnid, [member.base for member in contents()], benchmark)
    for member in contents():
        if member.base in wanted:
            yield Placement(split, wnid, member.base, member.save)


def _at_ranks(wnid: str, names: list[str], benchmark: Benchmark) -> set[str]:
    """Sort the file names by the number at their end, and return those at the 1-based ranks of the benchmark."""
    names = [name for name in names if re.fullmatch(rf"{wnid}_\d+\.jpe?g", name, re.IGNORECASE)]
    if wnid not in benchmark.ranks:
        return set(names)
    ordered = sorted(names, key=lambda name: int(re.split(r"[_.]", name)[-2]))
    ranks = [rank for first, last in benchmark.ranks[wnid] for rank in range(first, last + 1)]
    if max(ranks) > len(ordered):
        raise PrepareError(
            f"{wnid} has {len(ordered)} images, but {benchmark.name} needs its image number {max(ranks)}: this is not "
            "the complete class of the ILSVRC 2012 training images."
        )
    return {ordered[rank - 1] for rank in ranks}


def _classes(path: Path) -> Iterator[tuple[str, Contents]]:
    if path.is_file():
        yield from _tar_classes(path)
        return
    for place in _PLACES:
        folder = path / place
        found = sorted(p for p in folder.iterdir() if _CLASS.fullmatch(p.stem)) if folder.is_dir() else []
        if found:
            yield from ((item.stem, _contents_of(item)) for item in found if item.is_dir() or item.suffix == ".tar")
            return
        if (folder / "ILSVRC2012_img_train.tar").is_file():
            yield from _tar_classes(folder / "ILSVRC2012_img_train.tar")
            return
    raise PrepareError(
        f"{path} contains no folders or tars named like n01532829. Give the folder of the ILSVRC 2012 training images "
        "that has one folder for each class, or ILSVRC2012_img_train.tar."
    )


def _contents_of(item: Path) -> Contents:
    if item.is_dir():
        return lambda: (plain_member(path) for path in sorted(item.iterdir()) if path.is_file())
    return lambda: members(item)


def _tar_classes(path: Path) -> Iterator[tuple[str, Contents]]:
    """Iterate over the inner tars of the official tar, which is not compressed, so an inner tar can be read twice."""
    for member in members(path):
        wnid = member.base.removesuffix(".tar")
        if _CLASS.fullmatch(wnid) and member.base.endswith(".tar"):
            yield wnid, _inner(member)


def _inner(member: Member) -> Contents:
    def contents() -> Iterator[Member]:
        with member.open() as stream:
            yield from tar_members(stream, member.name)

    return contents
