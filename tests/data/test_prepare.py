"""What the preparation of all benchmarks has in common, tested on CUB."""

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from deepbdc.data import benchmarks
from deepbdc.data import prepare as prepare_module
from deepbdc.data.archives import Member, UnsafeArchive
from deepbdc.data.benchmarks import MARKER, Archive, Benchmark
from deepbdc.data.prepare import PrepareError, differences, prepare
from tests.data.official import picture, small, tree, write_folder, write_tar

BIRDS = ("001.Albatross", "002.Auklet", "003.Bunting", "004.Ani", "005.Crow", "006.Finch", "007.Gull", "008.Jay")
CLASSES = {"train": BIRDS[0::2], "val": BIRDS[1::4], "test": BIRDS[3::4]}
PER_CLASS = {name: 2 + position % 2 for position, name in enumerate(BIRDS)}
IMAGES = {
    f"{bird}/{bird[4:]}_{number:04}_{position}.jpg": picture(10 * position + number)
    for position, bird in enumerate(BIRDS)
    for number in range(PER_CLASS[bird])
}


def archive(path: Path, images: dict[str, bytes] = IMAGES) -> Path:
    """An archive with the paths of CUB_200_2011.tgz, including its other files."""
    other = {
        "attributes.txt": b"1 has_bill_shape::curved_(up_or_down)\n",
        "CUB_200_2011/images.txt": b"1 001.Albatross/Albatross_0000_0.jpg\n",
        "CUB_200_2011/README": b"read me",
        "CUB_200_2011/images/001.Albatross/._Albatross_0000_0.jpg": b"a metadata file of macOS",
    }
    inner = {f"CUB_200_2011/images/{name}": content for name, content in images.items()}
    return write_tar(path / "CUB_200_2011.tgz", {**other, **inner})


def expected() -> dict[str, bytes]:
    split = {bird: part for part, birds in CLASSES.items() for bird in birds}
    return {f"{split[name.split('/')[0]]}/{name}": content for name, content in IMAGES.items()}


@pytest.fixture
def facts() -> Benchmark:
    return small("cub", CLASSES, PER_CLASS)


def test_from_the_archive(tmp_path: Path, facts: Benchmark) -> None:
    seen: list[tuple[int, int]] = []
    made = prepare(
        "cub", archive(tmp_path), tmp_path / "root", lambda *progress: seen.append(progress), benchmark=facts
    )
    assert made == tmp_path / "root" / "cub"
    assert tree(made) == expected()  # byte for byte: no image is encoded again
    assert seen == [(done, len(IMAGES)) for done in range(1, len(IMAGES) + 1)]
    assert benchmarks.is_prepared("cub", tmp_path / "root")
    marker = json.loads((made / MARKER).read_text())
    assert marker["benchmark"] == "cub"
    assert marker["counts"]["train"] == {"classes": 4, "images": 8}


def test_deleted_images_come_back(tmp_path: Path, facts: Benchmark) -> None:
    made = prepare("cub", archive(tmp_path), tmp_path / "root", benchmark=facts)
    for file in sorted(made.glob("test/*/*"))[:2]:
        file.unlink()
    assert tree(prepare("cub", archive(tmp_path), tmp_path / "root", benchmark=facts)) == expected()


def test_files_that_do_not_belong_there_are_named(tmp_path: Path, facts: Benchmark) -> None:
    write_folder(tmp_path / "root" / "cub", {"test/004.Ani/Thumbs.db": b"x"})
    with pytest.raises(PrepareError, match=r"1 files that do not belong to cub, like Thumbs\.db: move them away"):
        prepare("cub", archive(tmp_path), tmp_path / "root", benchmark=facts)
    assert not benchmarks.is_prepared("cub", tmp_path / "root")


@pytest.mark.parametrize("inside", ["", "CUB_200_2011/", "CUB_200_2011/images/", "downloads/CUB_200_2011/images/"])
def test_from_an_unpacked_folder(tmp_path: Path, facts: Benchmark, inside: str) -> None:
    write_folder(tmp_path / "in", {inside + name: content for name, content in IMAGES.items()})
    made = prepare("cub", tmp_path / "in", tmp_path / "root", benchmark=facts)
    assert tree(made) == expected()


def test_from_the_folder_that_holds_the_archive(tmp_path: Path, facts: Benchmark) -> None:
    archive(tmp_path)
    write_folder(tmp_path, {"holiday/001.Albatross/beach.jpg": picture(999)})  # must not be read
    assert tree(prepare("cub", tmp_path, tmp_path / "root", benchmark=facts)) == expected()


def test_from_the_standard_layout(tmp_path: Path, facts: Benchmark) -> None:
    """The source may also be the target folder itself, if somebody has put the images there by hand."""
    write_folder(tmp_path / "root" / "cub", expected())
    assert not benchmarks.is_prepared("cub", tmp_path / "root")
    made = prepare("cub", tmp_path / "root" / "cub", tmp_path / "root", benchmark=facts)
    assert tree(made) == expected()
    assert benchmarks.is_prepared("cub", tmp_path / "root")
    assert tree(prepare("cub", made, tmp_path / "second", benchmark=facts)) == expected()


def test_copies_where_links_cannot_be_made(tmp_path: Path, facts: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("another disk")

    monkeypatch.setattr(os, "link", refuse)
    write_folder(tmp_path / "in", IMAGES)
    assert tree(prepare("cub", tmp_path / "in", tmp_path / "root", benchmark=facts)) == expected()


def test_interrupted_and_resumed(tmp_path: Path, facts: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    source, root = archive(tmp_path), tmp_path / "root"

    def interrupt(done: int, total: int) -> None:
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare("cub", source, root, interrupt, benchmark=facts)
    assert len(tree(root / "cub")) == 7
    assert not benchmarks.is_prepared("cub", root)
    # What a crash in the middle of a file leaves behind:
    (root / "cub" / "train" / BIRDS[0] / ".x.jpg.1.part").write_bytes(b"half of it")

    saved: list[str] = []
    save = Member.save
    monkeypatch.setattr(Member, "save", lambda self, target: (saved.append(target.name), save(self, target))[1])
    prepare("cub", source, root, benchmark=facts)
    assert len(saved) == len(IMAGES) - 7  # only the missing ones
    assert tree(root / "cub") == expected()
    assert not list(root.rglob("*.part"))

    saved.clear()
    source.unlink()
    prepare("cub", source, root, benchmark=facts)  # complete, so the source is not needed
    assert saved == []


@pytest.mark.parametrize("kind", ["archive", "folder"])
def test_images_are_on_the_disk_before_the_marker(
    tmp_path: Path, facts: Benchmark, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The images of an archive are written, those of a folder are linked."""
    source = archive(tmp_path) if kind == "archive" else write_folder(tmp_path / "in", IMAGES)
    calls: list[str] = []
    write = prepare_module.write_text
    monkeypatch.setattr(prepare_module, "sync_folder", lambda folder: calls.append(folder.name))
    monkeypatch.setattr(prepare_module, "write_text", lambda *given: (calls.append("marker"), write(*given))[1])
    prepare("cub", source, tmp_path / "root", benchmark=facts)
    assert set(calls[:-1]) == set(BIRDS)
    assert calls[-1] == "marker"


def test_missing_images_are_named(tmp_path: Path, facts: Benchmark) -> None:
    fewer = {name: content for name, content in IMAGES.items() if not name.startswith(("004", "005.Crow/Crow_0001"))}
    with pytest.raises(PrepareError) as caught:
        prepare("cub", archive(tmp_path, fewer), tmp_path / "root", benchmark=facts)
    message = str(caught.value)
    assert "test: 1 of 2 classes are missing: 004.Ani" in message
    assert "train: 1 classes have a wrong number of images: 005.Crow (1 instead of 2)" in message
    assert "train: 7 images instead of 8" in message
    assert "CUB_200_2011.tgz" in message
    assert not benchmarks.is_prepared("cub", tmp_path / "root")
    # A second call with the complete archive adds what was missing.
    prepare("cub", archive(tmp_path), tmp_path / "root", benchmark=facts)
    assert tree(tmp_path / "root" / "cub") == expected()


def test_a_source_without_images(tmp_path: Path, facts: Benchmark) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(PrepareError, match="has no image of cub"):
        prepare("cub", tmp_path / "empty", tmp_path / "root", benchmark=facts)
    with pytest.raises(FileNotFoundError, match=r"data\.caltech\.edu"):
        prepare("cub", tmp_path / "missing", tmp_path / "root", benchmark=facts)


def test_checksum(tmp_path: Path, facts: Benchmark) -> None:
    source = archive(tmp_path)
    right = hashlib.md5(source.read_bytes()).hexdigest()
    known = replace(facts, archives=((Archive("CUB_200_2011.tgz", right),),))
    source.write_bytes(source.read_bytes() + b"\0")
    with pytest.raises(PrepareError, match="damaged or another version"):
        prepare("cub", source, tmp_path / "root", benchmark=known)
    assert not (tmp_path / "root").exists()
    source.write_bytes(source.read_bytes()[:-1])
    assert tree(prepare("cub", source, tmp_path / "root", benchmark=known)) == expected()


def test_the_official_checksum_is_used(tmp_path: Path) -> None:
    with pytest.raises(PrepareError, match="97eceeb196236b17998738112f37df78"):
        prepare("cub", archive(tmp_path), tmp_path / "root")


def test_hostile_archive(tmp_path: Path, facts: Benchmark) -> None:
    source = write_tar(tmp_path / "CUB_200_2011.tgz", {"../001.Albatross/x.jpg": picture(0)})
    with pytest.raises(UnsafeArchive, match="leads out of the folder"):
        prepare("cub", source, tmp_path / "root", benchmark=facts)
    assert not (tmp_path / "001.Albatross").exists()


def test_names_that_cannot_be_prepared(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="made on first use"):
        prepare("glyphs", tmp_path)
    with pytest.raises(ValueError, match="ask for miniimagenet or cub"):
        prepare("miniimagenet->cub", tmp_path)
    with pytest.raises(ValueError, match="did you mean 'cub'"):
        prepare("cubs", tmp_path)


def test_differences_of_the_official_counts() -> None:
    cars = benchmarks.get("cars")
    counts = {split: {name: cars.per_class[name] for name in names} for split, names in cars.classes.items()}
    assert differences(counts, cars) == []
    counts["val"]["A car of my own"] = 1
    assert "val: 1 classes do not belong here: A car of my own" in differences(counts, cars)
