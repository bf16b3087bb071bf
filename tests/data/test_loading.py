import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deepbdc.data import loading
from deepbdc.data.benchmarks import MARKER, NotPrepared
from deepbdc.data.dataset import ArrayDataset, FolderDataset
from deepbdc.data.loading import find_data, list_datasets, load_dataset
from deepbdc.data.npz import read_arrays
from tests.data.test_benchmarks import write_part


def write_images(folder: Path, count: int, seed: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        pixels = np.random.default_rng([seed, index]).integers(0, 255, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")


def write_tree(root: Path, tree: Mapping[str, int]) -> Path:
    for seed, (name, count) in enumerate(tree.items()):
        write_images(root / name, count, seed)
    return root


TREE = {"train/cat": 3, "train/ant": 2, "val/dog": 4, "test/zebra": 1, "test/bee": 2}


def write_npz(path: Path, **changes: object) -> Path:
    arrays = {
        "images": np.arange(6 * 4 * 4 * 3, dtype=np.uint8).reshape(6, 4, 4, 3),
        "labels": np.array([0, 1, 2, 2, 1, 0]),
        "class_names": np.array(["zebra", "ant", "cat"]),
        "class_split": np.array(["test", "test", "train"]),
    }
    arrays |= changes  # type: ignore[arg-type]
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})  # type: ignore[arg-type]
    return path


def test_folder_tree(tmp_path: Path) -> None:
    dataset = load_dataset(write_tree(tmp_path, TREE), split="train")
    assert isinstance(dataset, FolderDataset)
    assert dataset.class_names == ("ant", "cat")
    assert dataset.labels.tolist() == [0, 0, 1, 1, 1]
    assert dataset.counts() == {"ant": 2, "cat": 3}
    assert [file.parent.name for file in dataset.files] == ["ant", "ant", "cat", "cat", "cat"]
    assert dataset.image(0).size == (6, 6)
    everything = load_dataset(tmp_path, split="all")
    assert everything.class_names == ("ant", "bee", "cat", "dog", "zebra")
    assert len(everything) == 12


def test_labels_match_the_folders_of_the_files(tmp_path: Path) -> None:
    everything = load_dataset(write_tree(tmp_path, TREE), split="all")
    assert isinstance(everything, FolderDataset)
    for file, label in zip(everything.files, everything.labels.tolist(), strict=True):
        assert file.parent.name == everything.class_names[label]


def test_hidden_and_other_files_are_skipped(tmp_path: Path) -> None:
    write_tree(tmp_path, TREE)
    (tmp_path / "test/bee/notes.txt").write_text("x")
    (tmp_path / "test/bee/.hidden.png").write_text("x")
    (tmp_path / "test/.git").mkdir()
    assert len(load_dataset(tmp_path, "test")) == 3


@pytest.mark.parametrize("where", ["inside", "given"])
def test_folder_of_classes_with_a_split_file(tmp_path: Path, where: str) -> None:
    write_tree(tmp_path / "images", {"a": 1, "b": 2, "c": 3})
    file = tmp_path / ("images/splits.json" if where == "inside" else "other.json")
    file.write_text(json.dumps({"train": ["c"], "val": [], "test": ["b", "a"]}))
    given = None if where == "inside" else file
    assert load_dataset(tmp_path / "images", "test", split_file=given).class_names == ("a", "b")
    assert load_dataset(tmp_path / "images", "train", split_file=given).class_names == ("c",)


def test_a_class_may_be_called_train_if_there_is_a_split_file(tmp_path: Path) -> None:
    write_tree(tmp_path, {"train": 2, "bus": 3})
    (tmp_path / "splits.json").write_text(json.dumps({"train": ["bus"], "test": ["train"]}))
    assert load_dataset(tmp_path, "test").class_names == ("train",)


@pytest.mark.parametrize("cut", [10, 400])
def test_a_damaged_npz_is_named(tmp_path: Path, cut: int) -> None:
    path = write_npz(tmp_path / "x.npz")
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ValueError, match=r"x\.npz is damaged"):
        load_dataset(path, "test")


def test_npz_sorts_the_classes(tmp_path: Path) -> None:
    dataset = load_dataset(write_npz(tmp_path / "x.npz"), "test")
    assert isinstance(dataset, ArrayDataset)
    assert dataset.class_names == ("ant", "zebra")
    assert dataset.labels.tolist() == [1, 0, 0, 1]
    with np.load(tmp_path / "x.npz") as file:
        assert np.array_equal(dataset.images, file["images"][[0, 1, 4, 5]])


@pytest.mark.parametrize("shape", [(6, 4, 4), (6, 4, 4, 1)])
def test_grey_npz_becomes_colour(tmp_path: Path, shape: tuple[int, ...]) -> None:
    images = np.arange(96, dtype=np.uint8).reshape(shape)
    dataset = load_dataset(write_npz(tmp_path / "x.npz", images=images), "all")
    assert isinstance(dataset, ArrayDataset)
    assert dataset.images.shape == (6, 4, 4, 3)
    assert np.array_equal(dataset.images[..., 2].ravel(), np.arange(96))


def test_fingerprints_tell_data_sets_apart(tmp_path: Path) -> None:
    first = load_dataset(write_npz(tmp_path / "x.npz"), "test")
    assert load_dataset(write_npz(tmp_path / "y.npz"), "test").fingerprint == first.fingerprint
    images = np.zeros((6, 4, 4, 3), dtype=np.uint8)
    assert load_dataset(write_npz(tmp_path / "z.npz", images=images), "test").fingerprint != first.fingerprint
    folder = load_dataset(write_tree(tmp_path / "a", TREE), "test")
    copy = load_dataset(write_tree(tmp_path / "b", TREE), "test")
    assert folder.fingerprint == copy.fingerprint
    before = copy.cache_key
    os.utime(tmp_path / "b/test/bee/0.png", (1, 1))
    assert load_dataset(tmp_path / "b", "test").cache_key != before
    write_images(tmp_path / "b/test/bee", 3, seed=4)
    assert load_dataset(tmp_path / "b", "test").fingerprint != copy.fingerprint


def test_content_ids(tmp_path: Path) -> None:
    write_tree(tmp_path, TREE)
    (tmp_path / "test/bee/copy.png").write_bytes((tmp_path / "test/bee/0.png").read_bytes())
    dataset = load_dataset(tmp_path, "test")
    assert dataset.content_ids().tolist() == [0, 1, 0, 3]
    images = np.zeros((6, 4, 4, 3), dtype=np.uint8)
    assert load_dataset(write_npz(tmp_path / "z.npz", images=images), "test").content_ids().tolist() == [0, 0, 0, 0]


def test_a_bad_file_is_an_error_or_skipped_with_a_warning(tmp_path: Path) -> None:
    write_tree(tmp_path, TREE)
    file = tmp_path / "test/bee/1.png"
    file.write_bytes(file.read_bytes()[:40])
    dataset = load_dataset(tmp_path, "test")
    with pytest.raises(ValueError, match=r"bee.1\.png: not a readable image"):
        dataset.image(1)
    with pytest.warns(UserWarning, match=r"left out: .*1\.png"):
        assert load_dataset(tmp_path, "test", skip_bad=True).counts() == {"bee": 1, "zebra": 1}


def test_named_data_sets() -> None:
    assert {"glyphs", "miniimagenet", "cub", "cifar_fs", "miniimagenet->cub"} <= set(list_datasets())


def test_mistakes_in_folders(tmp_path: Path) -> None:
    write_tree(tmp_path / "shared", TREE | {"val/cat": 1})
    with pytest.raises(ValueError, match="class 'cat' is in train and in val; splits must not share classes"):
        load_dataset(tmp_path / "shared", "test")
    write_tree(tmp_path / "twice", TREE)
    os.link(tmp_path / "twice/test/bee/0.png", tmp_path / "twice/test/zebra/again.png")
    with pytest.raises(ValueError, match="contains the same image file twice"):
        load_dataset(tmp_path / "twice", "test")
    write_tree(tmp_path / "across", TREE)
    os.link(tmp_path / "across/test/bee/0.png", tmp_path / "across/train/ant/again.png")
    with pytest.raises(ValueError, match="contains the same image file twice"):
        load_dataset(tmp_path / "across", "test")
    write_tree(tmp_path / "empty", TREE)
    (tmp_path / "empty/test/ghost").mkdir()
    with pytest.raises(ValueError, match="classes without images: ghost"):
        load_dataset(tmp_path / "empty", "test")
    with pytest.raises(ValueError, match="class 'zebra' has 1 images, 2 are needed"):
        load_dataset(write_tree(tmp_path / "small", TREE), "test", at_least=2)
    with pytest.raises(ValueError, match="has no folder 'val', only train"):
        load_dataset(write_tree(tmp_path / "only", {"train/a": 1}), "val")
    with pytest.raises(ValueError, match="give a split_file"):
        load_dataset(write_tree(tmp_path / "plain", {"a": 1, "b": 1}), "test")
    with pytest.raises(ValueError, match="train, val, test or all, got 'tset'"):
        load_dataset(tmp_path / "plain", "tset")
    with pytest.raises(FileNotFoundError, match="did you mean 'glyphs'"):
        load_dataset("glyph", "test")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "must hold"),
        ('{"train": "a"}', "must hold"),
        ('{"train": ["a"], "test": ["a"]}', "class 'a' is in train and in test"),
        ('{"test": ["b", "nowhere"]}', "lacks classes of the split 'test': nowhere"),
    ],
)
def test_mistakes_in_split_files(content: str, message: str, tmp_path: Path) -> None:
    write_tree(tmp_path, {"a": 1, "b": 1})
    (tmp_path / "splits.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_dataset(tmp_path, "test")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class_split": None}, "lacks the arrays class_split"),
        ({"images": np.zeros((6, 4, 4, 3), dtype=np.float32)}, "must be uint8"),
        ({"images": np.zeros((6, 4, 4, 4), dtype=np.uint8)}, "must be uint8 of shape"),
        ({"labels": np.array([0, 1])}, "6 images but labels of shape"),
        ({"labels": np.array([0, 1, 2, 3, 1, 0])}, "labels run from 0 to 3, but there are 3 class names"),
        ({"class_split": np.array(["test"])}, "3 class names but 1 entries"),
        ({"class_split": np.array(["train"] * 3)}, "no classes in the split 'test', only in train"),
        ({"class_names": np.array(["a", "a", "b"])}, "a class twice: a"),
        ({"class_names": np.array(["a", "b", "a"])}, "a class twice: a; splits must not share classes"),
        ({"class_split": np.array(["Test", "Test", "Train"])}, "class_split must be train, val, test, got Test, Train"),
        ({"labels": np.zeros(6)}, "labels must be integers"),
    ],
)
def test_mistakes_in_arrays(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load_dataset(write_npz(tmp_path / "x.npz", **changes), "test")


def test_a_benchmark_in_parts(tmp_path: Path) -> None:
    write_part(tmp_path / "fc100_a.npz", ["train"])
    assert len(load_dataset("fc100", "train", root=tmp_path)) == 120  # the other splits are not needed
    with pytest.raises(FileNotFoundError, match=r"fc100 test has 20 classes, but .*fc100_a\.npz have images of 0"):
        load_dataset("fc100", "test", root=tmp_path)
    write_part(tmp_path / "fc100_b.npz", ["val", "test"])
    for split, classes in (("train", 60), ("val", 20), ("test", 20), ("all", 100)):
        dataset = load_dataset("fc100", split, root=tmp_path)
        assert (dataset.name, dataset.split) == ("fc100", split)
        assert (len(dataset.class_names), len(dataset)) == (classes, 2 * classes)
    write_part(tmp_path / "fc100.npz", ["train", "val", "test"], images=3)
    assert len(load_dataset("fc100", "val", root=tmp_path)) == 60  # the whole file takes precedence over the parts


def test_only_the_parts_of_the_split_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_part(tmp_path / "fc100_a.npz", ["train"])
    write_part(tmp_path / "fc100_b.npz", ["val", "test"])
    read = []
    monkeypatch.setattr(loading, "read_arrays", lambda path: read.append(path.name) or read_arrays(path))
    load_dataset("fc100", "val", root=tmp_path)
    assert read == ["fc100_b.npz"]


def test_mistakes_in_parts(tmp_path: Path) -> None:
    with pytest.raises(NotPrepared, match="prepare fc100"):
        load_dataset("fc100", "train", root=tmp_path)
    write_part(tmp_path / "fc100_a.npz", ["train"])
    write_part(tmp_path / "fc100_b.npz", ["train", "val"])
    assert len(load_dataset("fc100", "val", root=tmp_path).class_names) == 20
    with pytest.raises(ValueError, match=r"is in .*fc100_a\.npz and in .*fc100_b\.npz: move one of them away"):
        load_dataset("fc100", "train", root=tmp_path)
    (tmp_path / "fc100_b.npz").write_bytes(b"noise")
    with pytest.raises(ValueError, match=r"fc100_b\.npz is damaged"):
        load_dataset("fc100", "train", root=tmp_path)


def test_find_data(tmp_path: Path) -> None:
    assert find_data("cub", None) == ("cub", None)
    assert find_data("cub", "glyphs") == ("glyphs", None)
    assert find_data("glyphs", tmp_path) == ("glyphs", tmp_path)
    write_part(tmp_path / "fc100.npz", ["train", "val", "test"])
    assert find_data("fc100", str(tmp_path)) == ("fc100", tmp_path)
    assert find_data("cub", tmp_path / "fc100.npz") == (tmp_path / "fc100.npz", None)
    own = write_tree(tmp_path / "own", TREE)
    assert find_data("glyphs", own) == find_data("fc100", own) == find_data("some/folder", own) == (own, None)
    listed = write_tree(tmp_path / "listed", {"a": 1})
    (listed / "splits.json").write_text("{}")
    assert find_data("cub", listed) == (listed, None)
    for name in ("miniimagenet", "cub"):
        (tmp_path / name).mkdir()
        (tmp_path / name / MARKER).touch()
    assert find_data("miniimagenet->cub", tmp_path) == ("miniimagenet->cub", tmp_path)


def test_data_that_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "x.txt").touch()
    (tmp_path / "cub").mkdir()
    for name, given, message in (
        ("fc100", tmp_path, r"looked for fc100\.npz \(or parts fc100_\*\.npz"),
        ("miniimagenet->cub", tmp_path, "the folder miniimagenet .* and the folder cub .*, or folders train, val"),
        ("own", tmp_path, "looked for folders train, val and test, or a splits.json"),
        ("cub", tmp_path / "nowhere", "nowhere does not exist, and no data set has that name"),
        ("cub", tmp_path / "x.txt", "neither a folder nor an .npz"),
    ):
        with pytest.raises(FileNotFoundError, match=message):
            find_data(name, given)
