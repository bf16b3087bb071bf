"""miniImageNet and tieredImageNet from the training images of ILSVRC 2012.

Taken are a folder with one folder of images per class (``n01532829/n01532829_10026.JPEG``), a folder with one tar per
class, and the official ``ILSVRC2012_img_train.tar``, which is a tar of such tars.
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
"""Visits the images of one class; may be called twice, first for the names, then for the images."""


def imagenet(source: Source) -> Iterator[Placement]:
    """The images of the benchmark's classes, all of them or those at the ranks that the benchmark names."""
    benchmark = source.benchmark
    split_of = benchmark.split_of()
    for wnid, contents in _classes(source.path):
        if wnid in split_of:
            yield from _chosen(wnid, split_of[wnid], contents, benchmark)


def _chosen(wnid: str, split: str, contents: Contents, benchmark: Benchmark) -> Iterator[Placement]:
    # The name of the image is needed, not its content: this first visit reads headers or a folder listing only.
    wanted = _at_ranks(wnid, [member.base for member in contents()], benchmark)
    for member in contents():
        if member.base in wanted:
            yield Placement(split, wnid, member.base, member.save)


def _at_ranks(wnid: str, names: list[str], benchmark: Benchmark) -> set[str]:
    """The file names at the 1-based ranks, when they are sorted by the number at their end."""
    names = [name for name in names if re.fullmatch(rf"{wnid}_\d+\.jpe?g", name, re.IGNORECASE)]
    if wnid not in benchmark.ranks:
        return set(names)
    ordered = sorted(names, key=lambda name: int(re.split(r"[_.]", name)[-2]))
    ranks = [rank for first, last in benchmark.ranks[wnid] for rank in range(first, last + 1)]
    if max(ranks) > len(ordered):
        raise PrepareError(
            f"{wnid} holds {len(ordered)} images, but {benchmark.name} takes its image number {max(ranks)}: it is not "
            "the complete folder of the ILSVRC 2012 training images."
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
        f"{path} holds no folders or tars named like n01532829. Give the folder of the ILSVRC 2012 training images "
        "that has one folder for each class, or ILSVRC2012_img_train.tar."
    )


def _contents_of(item: Path) -> Contents:
    if item.is_dir():
        return lambda: (plain_member(path) for path in sorted(item.iterdir()) if path.is_file())
    return lambda: members(item)


def _tar_classes(path: Path) -> Iterator[tuple[str, Contents]]:
    """The inner tars of the official tar. The outer one is not compressed, so an inner one can be visited twice."""
    for member in members(path):
        wnid = member.base.removesuffix(".tar")
        if _CLASS.fullmatch(wnid) and member.base.endswith(".tar"):
            yield wnid, _inner(member)


def _inner(member: Member) -> Contents:
    def contents() -> Iterator[Member]:
        with member.open() as stream:
            yield from tar_members(stream, member.name)

    return contents
