import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from deepbdc.data.images import BadImage
from deepbdc.own_images.pictures import THUMBNAIL, as_list, decode, folder_examples, name_of, thumbnail
from tests.drawings import draw, save

PICTURE = draw("circle", 0)
ARRAY = np.asarray(PICTURE)


@pytest.mark.parametrize(
    "image",
    [
        PICTURE,
        ARRAY,
        ARRAY.transpose(2, 0, 1),
        ARRAY / 255,
        ARRAY.astype(np.float32),
        ARRAY.astype(np.int64),
        ARRAY.astype(np.uint16) * 257,
        torch.from_numpy(ARRAY.copy()).permute(2, 0, 1),
        torch.from_numpy(ARRAY.copy()).permute(2, 0, 1) / 255,
        PICTURE.convert("RGBA"),
    ],
)
def test_all_forms_give_the_same_picture(image: Any) -> None:
    assert np.array_equal(np.asarray(decode(image, 0)), ARRAY)


def test_files_and_their_bytes(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", "circle", 0)
    for image in (path, str(path), path.read_bytes(), Image.open(path), io.BytesIO(path.read_bytes())):
        assert np.array_equal(np.asarray(decode(image, 0)), ARRAY)


def test_open_files(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", "circle", 0)
    content = io.BytesIO(path.read_bytes())
    for _ in range(2):  # it is read from its start each time
        assert np.array_equal(np.asarray(decode(content, 0)), ARRAY)
    assert as_list(content) == [content]
    assert name_of(content, 3) == "image 3"
    with path.open("rb") as file:
        assert name_of(file, 3) == str(path)
        assert np.array_equal(np.asarray(decode(file, 0)), ARRAY)


def test_columns_of_a_table() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"path": ["a.png", "b.png"], "label": ["x", "y"]})
    assert list(as_list(table["path"])) == ["a.png", "b.png"]
    assert list(as_list(table[["path"]])) == ["a.png", "b.png"]
    with pytest.raises(
        TypeError, match=r"give one column of the table, like table\['path'\]: it has 2 \(path, label\)"
    ):
        as_list(table)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "F", "I;16"])
def test_any_mode_becomes_rgb(mode: str) -> None:
    grey = PICTURE.convert("L")
    image = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257) if mode == "I;16" else grey.convert(mode)
    decoded = decode(image, 0)
    assert decoded.mode == "RGB"
    assert decoded.size == PICTURE.size


@pytest.mark.parametrize("array", [np.zeros((5, 7), bool), np.zeros((1, 5, 7)), np.zeros((5, 7, 1), np.uint8)])
def test_grey_arrays(array: Any) -> None:
    assert decode(array, 0).size == (7, 5)


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (np.zeros((5, 7, 2)), "channels"),
        (np.zeros((2, 2, 2, 3)), "the shape must be"),
        (np.zeros((0, 3)), "the shape must be"),
        (np.full((4, 4), -1.0), "before normalisation"),
        (np.full((4, 4), np.nan), "before normalisation"),
        (b"no picture", "not a readable image"),
        (42, "got int"),
    ],
)
def test_an_error_names_what_is_not_a_picture(image: Any, reason: str) -> None:
    with pytest.raises(BadImage, match=reason) as caught:
        decode(image, 7)
    assert "image 7" in str(caught.value)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no picture .*a\.jpg"):
        decode(tmp_path / "a.jpg", 0)
    with pytest.raises(IsADirectoryError, match="a folder"):
        decode(str(tmp_path), 0)


def test_large_jpegs_are_decoded_at_a_reduced_size() -> None:
    content = io.BytesIO()
    PICTURE.resize((1600, 1200)).save(content, "JPEG")
    assert decode(content.getvalue(), 0, size=160).size == (800, 600)
    assert decode(content.getvalue(), 0).size == (1600, 1200)


def test_lists_of_pictures() -> None:
    assert as_list(PICTURE) == [PICTURE]
    assert as_list("a.png") == ["a.png"]
    assert len(as_list(ARRAY)) == 1
    assert len(as_list(np.stack([ARRAY] * 4))) == 4
    assert len(as_list(np.zeros((6, 28, 28)))) == 6
    assert len(as_list(torch.zeros(3, 28, 28))) == 1
    assert len(as_list(torch.zeros(5, 3, 28, 28))) == 5
    assert list(as_list(np.array(["a", "b"]))) == ["a", "b"]
    assert as_list(name for name in ("a", "b")) == ["a", "b"]
    with pytest.raises(TypeError, match="got int"):
        as_list(3)


def test_names() -> None:
    assert name_of(Path("a") / "b.png", 0) == str(Path("a") / "b.png")
    assert name_of(PICTURE, 3) == "image 3"


@given(st.integers(1, 900), st.integers(1, 900))
def test_thumbnails_are_small_and_keep_the_aspect_ratio(width: int, height: int) -> None:
    small = Image.open(io.BytesIO(thumbnail(Image.new("RGB", (width, height)))))
    assert max(small.size) <= THUMBNAIL
    assert small.size == (width, height) or max(small.size) == THUMBNAIL


def test_folders_of_examples(tmp_path: Path) -> None:
    save(tmp_path / "b" / "1.png", "circle", 1)
    save(tmp_path / "a" / "2.png", "stripes", 1)
    (tmp_path / "a" / "notes.txt").write_text("no picture")
    files, labels = folder_examples(tmp_path)
    assert [file.name for file in files] == ["2.png", "1.png"]
    assert labels == ["a", "b"]


def test_folders_without_classes_are_explained(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        folder_examples(tmp_path / "nowhere")
    save(tmp_path / "1.png", "circle", 1)
    with pytest.raises(ValueError, match="1 picture lies in it: move them"):
        folder_examples(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="without pictures: empty"):
        folder_examples(tmp_path)
