import json
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from deepbdc.data import benchmarks
from deepbdc.data.benchmarks import SPLITS, NotPrepared

# Taken from the papers, not from the files under test.
CLASSES = {
    "miniimagenet": (64, 16, 20),
    "tieredimagenet": (351, 97, 160),
    "cub": (100, 50, 50),
    "cub_cropped": (100, 50, 50),
    "aircraft": (50, 25, 25),
    "cars": (130, 17, 49),
    "cifar_fs": (64, 16, 20),
    "fc100": (60, 20, 20),
    "omniglot": (1028, 172, 423),
}
IMAGES = {
    "miniimagenet": 60_000,
    "tieredimagenet": 779_165,
    "cub": 11_788,
    "cub_cropped": 11_788,
    "aircraft": 10_000,
    "cars": 16_185,
    "cifar_fs": 60_000,
    "fc100": 60_000,
    "omniglot": 32_460,
}
PAIRS = ["miniimagenet->cub", "miniimagenet->aircraft", "miniimagenet->cars"]


def test_names() -> None:
    assert benchmarks.names() == [*CLASSES, "glyphs", *PAIRS]


@pytest.mark.parametrize("name", CLASSES)
def test_the_splits_have_the_sizes_in_the_papers(name: str) -> None:
    benchmark = benchmarks.get(name)
    assert tuple(len(benchmark.classes[split]) for split in SPLITS) == CLASSES[name]
    assert sum(benchmark.images.values()) == IMAGES[name]
    for first, second in combinations(SPLITS, 2):
        assert not set(benchmark.classes[first]) & set(benchmark.classes[second])
    every = benchmark.split_of()
    assert len(every) == sum(CLASSES[name])
    assert len({benchmarks.prepared_folder_name(label).lower() for label in every}) == len(every)
    if benchmark.per_class:
        assert benchmark.per_class.keys() == every.keys()
        for split in SPLITS:
            assert sum(benchmark.per_class[label] for label in benchmark.classes[split]) == benchmark.images[split]
    else:
        assert name == "tieredimagenet"
    assert benchmark.home
    assert benchmark.licence
    assert benchmark.archives


def test_ranks_of_miniimagenet() -> None:
    ranks = benchmarks.get("miniimagenet").ranks
    assert ranks.keys() == benchmarks.get("miniimagenet").split_of().keys()
    for runs in ranks.values():
        every = [rank for first, last in runs for rank in range(first, last + 1)]
        assert len(every) == len(set(every)) == 600
        assert every == sorted(every)
        assert every[0] >= 1
        assert every[-1] <= 1300
    assert ranks["n01532829"][:3] == ((5, 7), (10, 10), (14, 21))


def test_rules_of_the_splits() -> None:
    """CUB and aircraft are split by the index in the sorted list of classes, modulo 2 and 4."""
    for name in ("cub", "aircraft"):
        classes = benchmarks.get(name).classes
        ordered = sorted(benchmarks.get(name).split_of())
        assert set(classes["train"]) == {label for i, label in enumerate(ordered) if i % 2 == 0}
        assert set(classes["val"]) == {label for i, label in enumerate(ordered) if i % 4 == 1}
        assert set(classes["test"]) == {label for i, label in enumerate(ordered) if i % 4 == 3}
    assert benchmarks.get("cub").classes["train"][0].startswith("001.")
    assert sorted(benchmarks.get("cars").numbers.values()) == list(range(1, 197))
    assert set(benchmarks.get("cifar_fs").split_of()) == set(benchmarks.get("fc100").split_of())


def test_each_list_names_its_source() -> None:
    folder = Path(benchmarks.__file__).parent / "splits"
    found = sorted(folder.glob("*.json"))
    assert {file.stem for file in found} == {*CLASSES, "miniimagenet_ranks"} - {
        "cub_cropped"
    }  # which has the split of cub
    for file in found:
        assert json.loads(file.read_text(encoding="utf-8"))["source"]["commit"]


@pytest.mark.parametrize("name", PAIRS)
def test_sources_of_pairs(name: str) -> None:
    target = name.split("->")[1]
    assert benchmarks.sources(name, "train") == [("miniimagenet", split) for split in SPLITS]
    assert benchmarks.sources(name, "val") == [(target, "val")]
    assert benchmarks.sources(name, "test") == [(target, "test")]


def test_sources_of_one() -> None:
    assert benchmarks.sources("cub", "val") == [("cub", "val")]
    with pytest.raises(ValueError, match="did you mean 'train'"):
        benchmarks.sources("cub", "trian")


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="did you mean 'miniimagenet'"):
        benchmarks.get("mini_imagenet")
    with pytest.raises(ValueError, match="a pair of benchmarks"):
        benchmarks.prepared_path("miniimagenet->cub")
    with pytest.raises(ValueError, match="made on first use"):
        benchmarks.prepared_path("glyphs")


def test_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEEPBDC_DATA", raising=False)
    assert benchmarks.data_root() == Path.home() / ".cache" / "deepbdc"
    monkeypatch.setenv("DEEPBDC_DATA", str(tmp_path))
    assert benchmarks.data_root() == tmp_path
    assert benchmarks.data_root(tmp_path / "other") == tmp_path / "other"
    assert benchmarks.prepared_path("cub") == tmp_path / "cub"
    assert benchmarks.prepared_path("fc100", tmp_path / "other") == tmp_path / "other" / "fc100.npz"


def test_is_prepared(tmp_path: Path) -> None:
    assert benchmarks.is_prepared("glyphs", tmp_path)
    assert not benchmarks.is_prepared("fc100", tmp_path)
    (tmp_path / "fc100.npz").touch()
    assert benchmarks.is_prepared("fc100", tmp_path)
    (tmp_path / "cub" / "train").mkdir(parents=True)
    assert not benchmarks.is_prepared("cub", tmp_path)  # interrupted: no marker yet
    (tmp_path / "cub" / benchmarks.MARKER).touch()
    assert benchmarks.is_prepared("cub", tmp_path)
    assert not benchmarks.is_prepared("miniimagenet->cub", tmp_path)


def test_not_prepared_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPBDC_DATA", str(tmp_path))
    error = NotPrepared("cars")
    assert isinstance(error, FileNotFoundError)
    assert "deepbdc data prepare cars --source ARCHIVE_OR_FOLDER\n" in str(error)
    (tmp_path / "cub").mkdir()
    (tmp_path / "cub" / benchmarks.MARKER).touch()
    assert "prepare miniimagenet" in str(NotPrepared("miniimagenet->cub"))
    assert "prepare cub" not in str(NotPrepared("miniimagenet->cub"))
    elsewhere = tmp_path / "elsewhere"
    assert f"--root {elsewhere}" in str(NotPrepared("cub", benchmarks.prepared_path("cub", elsewhere)))


def write_part(path: Path, splits: Sequence[str], images: int = 2) -> None:
    """Write a part of FC100 that names all classes, as real parts do, but has images of only some splits."""
    split_of = sorted(benchmarks.get("fc100").split_of().items())
    labels = np.repeat([label for label, (_, split) in enumerate(split_of) if split in splits], images)
    np.savez(
        path,
        images=np.random.default_rng(len(splits)).integers(0, 256, (len(labels), 4, 4, 3), dtype=np.uint8),
        labels=labels,
        class_names=np.array([name.removesuffix("_tree") for name, _ in split_of]),  # as in some copies
        class_split=np.array([split for _, split in split_of]),
    )


def test_prepared_in_parts(tmp_path: Path) -> None:
    write_part(tmp_path / "fc100_train.npz", ["train"])
    assert not benchmarks.is_prepared("fc100", tmp_path)
    write_part(tmp_path / "fc100_valtest.npz", ["val", "test"])
    assert benchmarks.is_prepared("fc100", tmp_path)
    assert not benchmarks.is_prepared("cifar_fs", tmp_path)
    assert benchmarks.array_files("fc100", tmp_path) == [tmp_path / "fc100_train.npz", tmp_path / "fc100_valtest.npz"]
    found = benchmarks.classes_in(tmp_path / "fc100_valtest.npz")
    assert Counter(found.values()) == {"val": 20, "test": 20}
    (tmp_path / "fc100.npz").touch()
    assert benchmarks.array_files("fc100", tmp_path) == [tmp_path / "fc100.npz"]


def test_files_that_are_not_parts(tmp_path: Path) -> None:
    np.savez(tmp_path / "fc100_notes.npz", x=np.zeros(3))
    assert benchmarks.classes_in(tmp_path / "fc100_notes.npz") == {}
    (tmp_path / "fc100_broken.npz").write_bytes(b"noise")
    assert not benchmarks.is_prepared("fc100", tmp_path)
    with pytest.raises(ValueError, match=r"fc100_broken\.npz is damaged"):
        benchmarks.classes_in(tmp_path / "fc100_broken.npz")
