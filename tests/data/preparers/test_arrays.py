import io
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deepbdc.data import benchmarks
from deepbdc.data.archives import UnsafeArchive
from deepbdc.data.prepare import PrepareError, prepare
from deepbdc.data.preparers.cifar_pickle import load_pickle
from tests.data.official import small, write_folder, write_tar, write_zip

NAMES = ["apple", "bear", "clock", "dolphin"]
CLASSES = {"train": ("clock", "apple"), "val": ("dolphin",), "test": ("bear",)}
RANDOM = np.random.default_rng(0)
DATA = {
    "train": RANDOM.integers(0, 256, (8, 3072), dtype=np.uint8),
    "test": RANDOM.integers(0, 256, (4, 3072), np.uint8),
}
LABELS = {"train": [0, 1, 2, 3, 3, 2, 1, 0], "test": [3, 0, 1, 2]}


def python_version() -> dict[str, bytes]:
    files = {"meta": pickle.dumps({"fine_label_names": NAMES, "coarse_label_names": ["x"]}, protocol=2)}
    for part in DATA:
        content = {
            "data": DATA[part],
            "fine_labels": LABELS[part],
            "coarse_labels": [0] * len(LABELS[part]),
            "filenames": [f"{i}.png" for i in range(len(LABELS[part]))],
            "batch_label": f"{part} batch 1 of 1",
        }
        files[part] = pickle.dumps(content, protocol=2)
    return {f"cifar-100-python/{name}": content for name, content in files.items()}


def binary_version() -> dict[str, bytes]:
    files = {"fine_label_names.txt": "\n".join(NAMES).encode() + b"\n", "coarse_label_names.txt": b"x\n"}
    for part in DATA:
        rows = zip(LABELS[part], DATA[part], strict=True)
        files[f"{part}.bin"] = b"".join(bytes([7, label]) + row.tobytes() for label, row in rows)
    return {f"cifar-100-binary/{name}": content for name, content in files.items()}


@pytest.mark.parametrize("name", ["cifar_fs", "fc100"])
@pytest.mark.parametrize("version", ["python", "binary"])
@pytest.mark.parametrize("packed", [True, False])
def test_cifar(tmp_path: Path, name: str, version: str, packed: bool) -> None:
    files = python_version() if version == "python" else binary_version()
    archive = f"cifar-100-{version}.tar.gz"
    source = write_tar(tmp_path / archive, files) if packed else write_folder(tmp_path / "in", files)
    made = prepare(name, source, tmp_path / "root", benchmark=small(name, CLASSES, 3))
    assert made == tmp_path / "root" / f"{name}.npz"
    assert benchmarks.is_prepared(name, tmp_path / "root")
    with np.load(made, allow_pickle=False) as file:
        assert list(file["class_names"]) == NAMES
        assert list(file["class_split"]) == ["train", "test", "train", "val"]
        assert list(file["labels"]) == LABELS["train"] + LABELS["test"]
        images = file["images"]
    assert images.shape == (12, 32, 32, 3)
    assert images.dtype == np.uint8
    # Each row holds the red, then the green, then the blue plane.
    for image, row in zip(images, [*DATA["train"], *DATA["test"]], strict=True):
        for y, x, c in ((0, 0, 0), (0, 1, 0), (1, 0, 2), (31, 30, 1)):
            assert image[y, x, c] == row[1024 * c + 32 * y + x]


def test_cifar_with_short_names_of_trees(tmp_path: Path) -> None:
    files = binary_version() | {"cifar-100-binary/fine_label_names.txt": b"apple\nbear\nclock\nmaple\n"}
    facts = small("cifar_fs", {"train": ("clock", "apple"), "val": ("maple_tree",), "test": ("bear",)}, 3)
    made = prepare("cifar_fs", write_folder(tmp_path / "in", files), tmp_path / "root", benchmark=facts)
    with np.load(made, allow_pickle=False) as file:
        assert list(file["class_names"]) == ["apple", "bear", "clock", "maple_tree"]


def test_incomplete_cifar(tmp_path: Path) -> None:
    files = python_version()
    del files["cifar-100-python/test"]
    with pytest.raises(PrepareError, match="has meta, train of CIFAR-100, but meta, train and test"):
        prepare("fc100", write_folder(tmp_path / "in", files), tmp_path / "root", benchmark=small("fc100", CLASSES, 3))
    files = binary_version()
    files["cifar-100-binary/test.bin"] = files["cifar-100-binary/test.bin"][:-1]
    source = write_tar(tmp_path / "cifar-100-binary.tar.gz", files)
    with pytest.raises(PrepareError, match="it is truncated"):
        prepare("fc100", source, tmp_path / "root", benchmark=small("fc100", CLASSES, 3))
    source = write_folder(tmp_path / "whole", python_version())
    with pytest.raises(PrepareError, match=r"apple \(3 instead of 600\)"):
        prepare("fc100", source, tmp_path / "root", benchmark=small("fc100", CLASSES, 600))
    assert not benchmarks.is_prepared("fc100", tmp_path / "root")


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.path,)  # type: ignore[return-value]


def test_a_hostile_pickle_is_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    assert pickle.loads(pickle.dumps(Evil(trace), protocol=2)) is None
    assert trace.exists()  # an ordinary unpickler runs it
    trace.unlink()
    files = python_version() | {"cifar-100-python/meta": pickle.dumps({"fine_label_names": Evil(trace)}, protocol=2)}
    source = write_tar(tmp_path / "cifar-100-python.tar.gz", files)
    with pytest.raises(UnsafeArchive, match=r"which no file of CIFAR-100 needs\. It was not run"):
        prepare("cifar_fs", source, tmp_path / "root", benchmark=small("cifar_fs", CLASSES, 3))
    assert not trace.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"c_codecs\nencode\n(X\x01\x00\x00\x00xX\x05\x00\x00\x00rot13tR.",
        pickle.dumps({"data": np.array([{}], dtype=object)}, protocol=2),
        pickle.dumps({"data": np.arange(3.0)}, protocol=2),
        pickle.dumps([1, 2]),
        pickle.dumps({"data": 1})[:-3],
        b"",
    ],
)
def test_other_pickles(content: bytes) -> None:
    with pytest.raises(UnsafeArchive):
        load_pickle(content, "train")


def test_pickles_of_python_2() -> None:
    """Python 2 pickles text as bytes. This pickle has the format of the official files and is written by hand."""
    content = b"(dS'fine_labels'\n(lI3\naI5\nasS'batch_label'\nS'x'\ns."
    assert load_pickle(content, "train")["fine_labels"] == [3, 5]


ALPHABETS = {
    "images_background": ("Greek/character01", "Greek/character02"),
    "images_evaluation": ("Angelic/character01", "Kannada/character07"),
}
CHARACTERS = {
    "train": ("Greek/character01", "Angelic/character01"),
    "val": ("Greek/character02",),
    "test": ("Kannada/character07",),
}


def drawing(seed: int) -> tuple[bytes, np.ndarray]:
    """Make a PNG of 105×105 with one bit per pixel and black ink; also return where the ink is."""
    ink = np.random.default_rng(seed).random((105, 105)) < 0.2
    stream = io.BytesIO()
    Image.fromarray(~ink).save(stream, "PNG")
    return stream.getvalue(), ink


@pytest.mark.parametrize("packed", [True, False])
def test_omniglot(tmp_path: Path, packed: bool) -> None:
    inks: dict[str, list[np.ndarray]] = {}
    for part, characters in ALPHABETS.items():
        files = {}
        for number, character in enumerate(characters):
            for drawer in (1, 2):
                content, ink = drawing(100 * len(part) + 10 * number + drawer)
                files[f"{part}/{character}/07{number:02}_{drawer:02}.png"] = content
                inks.setdefault(character, []).append(ink)
        if packed:
            write_zip(tmp_path / f"{part}.zip", files)
        else:
            write_folder(tmp_path / "in", files)
    source = tmp_path / "images_background.zip" if packed else tmp_path / "in"
    made = prepare("omniglot", source, tmp_path / "root", benchmark=small("omniglot", CHARACTERS, 2))
    with np.load(made, allow_pickle=False) as file:
        images, labels, names = file["images"], file["labels"], list(file["class_names"])
        assert dict(zip(names, file["class_split"], strict=True)) == {
            name: split for split, members in CHARACTERS.items() for name in members
        }
    assert names == sorted(inks)
    assert images.shape == (8, 28, 28, 1)
    for label, name in enumerate(names):
        for image, ink in zip(images[labels == label], inks[name], strict=True):
            # Resizing preserves the share of ink, and ink is bright.
            assert image.mean() / 255 == pytest.approx(ink.mean(), abs=0.01)


def test_omniglot_with_one_archive_only(tmp_path: Path) -> None:
    files = {
        f"images_background/{character}/0700_{drawer:02}.png": drawing(drawer)[0]
        for character in ALPHABETS["images_background"]
        for drawer in (1, 2)
    }
    source = write_zip(tmp_path / "images_background.zip", files)
    with pytest.raises(PrepareError, match=r"classes are missing: Kannada-character07[\s\S]*images_evaluation\.zip"):
        prepare("omniglot", source, tmp_path / "root", benchmark=small("omniglot", CHARACTERS, 2))
