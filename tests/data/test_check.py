from pathlib import Path

import numpy as np
import pytest

from deepbdc.data.check import Report, check
from deepbdc.data.prepare import prepare
from tests.data.official import picture, small, write_folder

CLASSES = {"train": ("001.A", "003.C"), "val": ("002.B",), "test": ("004.D",)}
FILES = {
    f"{split}/{name}/{number}.jpg": picture(100 * int(name[:3]) + number)
    for split, names in CLASSES.items()
    for name in names
    for number in range(3)
}


def kinds(report: Report) -> list[str]:
    return [problem.kind for problem in report.problems]


def test_a_good_data_set(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = check(write_folder(tmp_path / "x", FILES), lambda *progress: seen.append(progress))
    assert report.ok
    assert report.problems == ()
    assert report.benchmark is None
    assert report.counts == {split: dict.fromkeys(names, 3) for split, names in CLASSES.items()}
    assert seen[-1] == (12, 12)


def test_a_folder_of_classes(tmp_path: Path) -> None:
    report = check(write_folder(tmp_path / "x", {name.partition("/")[2]: c for name, c in FILES.items()}))
    assert report.ok
    assert report.counts == {"all": {"001.A": 3, "002.B": 3, "003.C": 3, "004.D": 3}}


def test_broken_images_are_named(tmp_path: Path) -> None:
    half = FILES["val/002.B/1.jpg"][: len(FILES["val/002.B/1.jpg"]) // 2]
    bad = {"val/002.B/1.jpg": half, "train/001.A/0.jpg": b"text", "test/004.D/notes.txt": b"notes"}
    report = check(write_folder(tmp_path / "x", FILES | bad))
    assert not report.ok
    (problem,) = report.problems
    assert problem.kind == "broken"
    assert {item.partition(":")[0] for item in problem.items} == bad.keys()


def test_shared_classes(tmp_path: Path) -> None:
    report = check(write_folder(tmp_path / "x", {**FILES, "test/001.A/9.jpg": picture(999)}))
    assert kinds(report) == ["shared"]
    assert report.problems[0].items == ("001.A (train, test)",)


def test_the_same_image_twice(tmp_path: Path) -> None:
    report = check(write_folder(tmp_path / "x", {**FILES, "test/004.D/copy.jpg": FILES["train/001.A/2.jpg"]}))
    assert kinds(report) == ["twice"]
    assert report.problems[0].items == ("train/001.A/2.jpg = test/004.D/copy.jpg",)
    assert not report.ok


def test_shrunk_images(tmp_path: Path) -> None:
    shrunk = {name: picture(number, (84, 84)) for number, name in enumerate(FILES)}
    report = check(write_folder(tmp_path / "x", shrunk))
    assert kinds(report) == ["shrunk"]
    assert "12 of 12 images are exactly 84×84" in report.problems[0].text
    assert "official archive" in report.problems[0].remedy
    # One among many can have this size by chance.
    many = {f"train/001.A/{number}.jpg": picture(5000 + number, (12, 12)) for number in range(150)}
    one = {"train/001.A/x.jpg": picture(1, (84, 84))}
    assert check(write_folder(tmp_path / "y", many | one)).ok


def test_counts_of_a_known_benchmark(tmp_path: Path) -> None:
    facts = small("cub", CLASSES, 3)
    made = prepare("cub", write_folder(tmp_path / "in", FILES), tmp_path / "root", benchmark=facts)
    assert check(made, benchmark=facts).ok
    (made / "val" / "002.B" / "1.jpg").unlink()
    report = check(made, benchmark=facts)
    assert kinds(report) == ["counts"]
    assert "002.B (2 instead of 3)" in report.problems[0].items[0]
    assert "deepbdc data prepare cub" in report.problems[0].remedy


def test_a_benchmark_is_recognised(tmp_path: Path) -> None:
    """By its name, or by its marker if the folder was renamed."""
    report = check(write_folder(tmp_path / "cub", FILES))
    assert report.benchmark == "cub"
    assert any("5,885" in item for item in report.problems[0].items)
    made = prepare("cub", tmp_path / "cub", tmp_path / "root", benchmark=small("cub", CLASSES, 3))
    assert check(made.rename(tmp_path / "birds")).benchmark == "cub"
    assert check(write_folder(tmp_path / "glyphs", FILES)).benchmark is None


def test_official_duplicates_are_not_serious(tmp_path: Path) -> None:
    files = FILES | {"test/004.D/2.jpg": FILES["test/004.D/1.jpg"]}
    report = check(write_folder(tmp_path / "x", files), benchmark=small("cub", CLASSES, 3))
    assert kinds(report) == ["twice"]
    assert report.ok


def test_empty(tmp_path: Path) -> None:
    write_folder(tmp_path / "x", FILES)
    (tmp_path / "x" / "val" / "005.E").mkdir()
    report = check(tmp_path / "x")
    assert kinds(report) == ["empty"]
    assert report.problems[0].items == ("val/005.E",)
    (tmp_path / "nothing").mkdir()
    assert not check(tmp_path / "nothing").ok


def arrays(path: Path, **changes: np.ndarray) -> Path:
    content = {
        "images": np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8),
        "labels": np.array([0, 0, 1, 1, 2, 2]),
        "class_names": np.array(["a", "b", "c"]),
        "class_split": np.array(["train", "val", "test"]),
    }
    np.savez(path, **(content | changes))
    return path


def test_arrays(tmp_path: Path) -> None:
    report = check(arrays(tmp_path / "x.npz"))
    assert report.ok
    assert report.counts == {"train": {"a": 2}, "val": {"b": 2}, "test": {"c": 2}}


def test_arrays_with_problems(tmp_path: Path) -> None:
    zeros = np.zeros((6, 84, 84), np.uint8)
    zeros[:5, 0, 0] = range(5)
    report = check(arrays(tmp_path / "x.npz", images=zeros, class_names=np.array(["a", "b", "a"])))
    assert kinds(report) == ["shared", "twice", "shrunk"]
    assert report.problems[1].items == ("image 0 (train, a) = image 5 (test, a)",)
    labels = np.array([0, 0, 1, 1, 2, 3])
    assert "run from 0 to 3" in check(arrays(tmp_path / "y.npz", labels=labels)).problems[0].text
    assert kinds(check(arrays(tmp_path / "z.npz", images=np.zeros((6, 8, 8))))) == ["format"]
    assert not check(arrays(tmp_path / "o.npz", class_names=np.array(["a", "b", {}], dtype=object))).ok
    (tmp_path / "noise.npz").write_bytes(b"noise" * 100)
    assert kinds(check(tmp_path / "noise.npz")) == ["format"]


def test_other_paths(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        check(tmp_path / "missing")
    (tmp_path / "x.txt").touch()
    with pytest.raises(ValueError, match="neither a folder"):
        check(tmp_path / "x.txt")
