from pathlib import Path

import pytest

from deepbdc.data.prepare import PrepareError, prepare
from tests.data.official import picture, small, tar_bytes, tree, write_folder, write_tar

WNIDS = ("n00000001", "n00000002", "n00000003", "n00000004")
CLASSES = {"train": WNIDS[:2], "val": WNIDS[2:3], "test": WNIDS[3:]}
# As in ImageNet: the numbers have gaps and no leading zeros, so the order of names is not that of numbers.
NUMBERS = (2, 10, 9, 100, 33, 1000, 7)
RANKS = {
    "n00000001": ((1, 2), (5, 5)),
    "n00000002": ((2, 4),),
    "n00000003": ((1, 1), (3, 3), (7, 7)),
    "n00000004": ((5, 7),),
}
# Worked out by hand from the sorted numbers 2 7 9 10 33 100 1000.
TAKEN = {"n00000001": (2, 7, 33), "n00000002": (7, 9, 10), "n00000003": (2, 9, 1000), "n00000004": (33, 100, 1000)}
SPLIT = {"n00000001": "train", "n00000002": "train", "n00000003": "val", "n00000004": "test"}

MINI = small("miniimagenet", CLASSES, 3, ranks=RANKS)
TIERED = small("tieredimagenet", CLASSES, len(NUMBERS), per_class={})


def images(wnid: str) -> dict[str, bytes]:
    return {f"{wnid}_{number}.JPEG": picture(number + 10_000 * int(wnid[1:])) for number in NUMBERS}


def every() -> dict[str, dict[str, bytes]]:
    return {wnid: images(wnid) for wnid in (*WNIDS, "n00000005")}  # the last class is in no split


def mini() -> dict[str, bytes]:
    return {
        f"{SPLIT[wnid]}/{wnid}/{wnid}_{number}.JPEG": images(wnid)[f"{wnid}_{number}.JPEG"]
        for wnid, numbers in TAKEN.items()
        for number in numbers
    }


def tiered() -> dict[str, bytes]:
    return {f"{SPLIT[wnid]}/{wnid}/{name}": content for wnid in WNIDS for name, content in images(wnid).items()}


def as_folder(path: Path, inside: str) -> Path:
    return write_folder(path, {f"{inside}{w}/{name}": c for w, files in every().items() for name, c in files.items()})


def as_tar(path: Path) -> Path:
    return write_tar(path, {f"{wnid}.tar": tar_bytes(files) for wnid, files in every().items()})


@pytest.mark.parametrize("inside", ["", "train/", "ILSVRC/Data/CLS-LOC/train/"])
def test_mini_from_a_folder(tmp_path: Path, inside: str) -> None:
    made = prepare("miniimagenet", as_folder(tmp_path / "in", inside), tmp_path / "root", benchmark=MINI)
    assert tree(made) == mini()


def test_tiered_from_a_folder(tmp_path: Path) -> None:
    write_folder(
        tmp_path / "in" / "val", {"n00000001/ILSVRC2012_val_00000001.JPEG": picture(5)}
    )  # the val folder of ImageNet is not the val split
    source = as_folder(tmp_path / "in", "train/")
    assert tree(prepare("tieredimagenet", source, tmp_path / "root", benchmark=TIERED)) == tiered()


def test_from_the_tar_of_tars(tmp_path: Path) -> None:
    source = as_tar(tmp_path / "ILSVRC2012_img_train.tar")
    assert tree(prepare("miniimagenet", source, tmp_path / "root", benchmark=MINI)) == mini()
    assert tree(prepare("tieredimagenet", tmp_path, tmp_path / "root", benchmark=TIERED)) == tiered()


def test_from_a_folder_of_tars(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for wnid, files in every().items():
        write_tar(tmp_path / "in" / f"{wnid}.tar", files)
    assert tree(prepare("miniimagenet", tmp_path / "in", tmp_path / "root", benchmark=MINI)) == mini()


def test_an_incomplete_class(tmp_path: Path) -> None:
    source = as_folder(tmp_path / "in", "")
    (source / "n00000003" / "n00000003_9.JPEG").unlink()
    with pytest.raises(PrepareError, match="n00000003 has 6 images, but miniimagenet needs its image number 7"):
        prepare("miniimagenet", source, tmp_path / "root", benchmark=MINI)


def test_a_missing_class(tmp_path: Path) -> None:
    source = as_folder(tmp_path / "in", "")
    for file in (source / "n00000004").iterdir():
        file.unlink()
    (source / "n00000004").rmdir()
    with pytest.raises(PrepareError, match="test: 1 of 1 classes are missing: n00000004"):
        prepare("miniimagenet", source, tmp_path / "root", benchmark=MINI)


def test_another_folder(tmp_path: Path) -> None:
    write_folder(tmp_path / "in", {"cats/1.jpg": b""})
    with pytest.raises(PrepareError, match="no folders or tars named like n01532829"):
        prepare("miniimagenet", tmp_path / "in", tmp_path / "root", benchmark=MINI)
