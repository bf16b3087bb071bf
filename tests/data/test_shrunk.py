from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from deepbdc.data import shrunk as module
from deepbdc.data.dataset import ArrayDataset, Dataset, PixelDataset
from deepbdc.data.images import BadImage
from deepbdc.data.loading import load_dataset
from deepbdc.data.shrunk import ShrunkDataset, shrunk
from deepbdc.data.transforms import BatchTestTransform
from deepbdc.data.transforms import test_transform as make_test_transform
from deepbdc.errors import UserError
from deepbdc.preprocessing import AT_84, Preprocessing
from deepbdc.stages.batches import AugmentedImages

SIZES = [(200, 150), (150, 201), (40, 30), (92, 92), (500, 100)]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path


def make_folder(path: Path, sizes: list[tuple[int, int]]) -> Dataset:
    random = np.random.default_rng(0)
    for index, (width, height) in enumerate(sizes):
        coarse = Image.fromarray(random.integers(0, 256, (9, 9, 3), dtype=np.uint8))
        file = path / "test" / f"class{index % 2}" / f"{index}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        coarse.resize((width, height), Image.Resampling.BICUBIC).save(file)
    return load_dataset(path, "test")


def stored(path: Path) -> list[Path]:
    return sorted(path.rglob("*.pixels"))


def only(dataset: Dataset) -> ShrunkDataset:
    assert isinstance(dataset, ShrunkDataset)
    return dataset


def test_the_shorter_side_is_shrunk_and_small_images_stay(tmp_path: Path) -> None:
    files = make_folder(tmp_path / "data", SIZES)
    found = shrunk(files, 92)
    sizes = {(files.image(index).size, found.image(index).size) for index in range(len(files))}
    assert sizes == {
        ((200, 150), (122, 92)),
        ((150, 201), (92, 123)),
        ((40, 30), (40, 30)),
        ((92, 92), (92, 92)),
        ((500, 100), (460, 92)),
    }
    assert found.class_names == files.class_names
    assert torch.equal(found.labels, files.labels)
    assert found.fingerprint == files.fingerprint
    assert found.cache_key != files.cache_key
    assert found.content_ids().tolist() == files.content_ids().tolist()


def test_an_evaluation_gets_the_same_pixels_as_from_the_files(tmp_path: Path) -> None:
    files = make_folder(tmp_path / "data", SIZES)
    found = only(shrunk(files, AT_84.resize))
    single = make_test_transform(AT_84)
    expected = torch.stack([single(files.image(index)) for index in range(len(files))])
    batch = BatchTestTransform(AT_84)(found.pixels(np.arange(len(files))))
    # The image of 40×30 is enlarged, by Pillow there and by torch here: they round differently by one step of 255.
    assert (batch - expected).abs().max() < 1.01 / 255 / min(AT_84.std)
    same = [index for index in range(len(files)) if files.image(index).size != (40, 30)]
    torch.testing.assert_close(batch[same], expected[same], atol=1e-6, rtol=0)


def test_images_of_one_size_are_one_array(tmp_path: Path) -> None:
    found = only(shrunk(make_folder(tmp_path / "one", [(84, 84)] * 6), 84))
    pixels = found.pixels(np.array([4, 1]))
    assert isinstance(pixels, np.ndarray)
    assert pixels.shape == (2, 84, 84, 3)
    assert np.array_equal(pixels[0], np.asarray(found.source.image(4)))
    others = only(shrunk(make_folder(tmp_path / "several", SIZES), 84)).pixels(np.array([1, 0]))
    assert isinstance(others, list)
    assert others[1].shape == (84, 112, 3)


def test_arrays_and_no_limit_change_nothing(tmp_path: Path) -> None:
    files = make_folder(tmp_path / "data", SIZES)
    assert shrunk(files, None) is files
    arrays = ArrayDataset(np.zeros((2, 5, 5, 3), np.uint8), np.array([0, 1]), ["a", "b"], "arrays", "test")
    assert shrunk(arrays, 3) is arrays
    assert not stored(tmp_path)


def test_images_are_decoded_once_and_again_when_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    files = make_folder(data, SIZES)
    first = only(shrunk(files, 92))
    (path,) = stored(tmp_path)
    assert path.parent == data / "test"
    decoded: list[int] = []
    original = type(files).image

    def counting(self: Dataset, index: int) -> "Image.Image":
        decoded.append(index)
        return original(self, index)

    monkeypatch.setattr(type(files), "image", counting)
    again = only(shrunk(load_dataset(data, "test"), 92))
    assert np.array_equal(np.asarray(again.image(0)), np.asarray(first.image(0)))
    assert not decoded
    Image.new("RGB", (120, 120), "red").save(data / "test" / "class0" / "0.png")
    changed = only(shrunk(load_dataset(data, "test"), 92))
    assert sorted(decoded) == list(range(len(SIZES)))
    assert np.asarray(changed.image(0))[0, 0].tolist() == [255, 0, 0]


def test_a_truncated_or_deleted_file_is_made_again(tmp_path: Path) -> None:
    files = make_folder(tmp_path / "data", SIZES)
    expected = np.asarray(shrunk(files, 92).image(1))
    (path,) = stored(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    assert np.array_equal(np.asarray(shrunk(files, 92).image(1)), expected)
    path.unlink()
    assert np.array_equal(np.asarray(shrunk(files, 92).image(1)), expected)
    path.with_suffix(".sizes.npy").write_bytes(b"")
    assert np.array_equal(np.asarray(shrunk(files, 92).image(1)), expected)


def test_the_cache_folder_is_used_where_the_data_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make_folder(tmp_path / "data", SIZES)
    original = module._build

    def refuse(dataset: object, side: int, path: Path, progress: bool) -> ShrunkDataset:
        if path.parent in refused:
            raise PermissionError(13, "Permission denied")
        return original(files, side, path, progress)  # type: ignore[arg-type]

    refused = {tmp_path / "data" / "test"}
    monkeypatch.setattr(module, "_build", refuse)
    shrunk(files, 92)
    assert [path.parent for path in stored(tmp_path)] == [tmp_path / "cache" / "shrunk"]
    refused.add(tmp_path / "cache" / "shrunk")
    with pytest.raises(UserError, match=r"Permission denied.*shrink_to=null"):
        shrunk(files, 91)


def test_an_unreadable_image_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    files = make_folder(tmp_path / "data", SIZES)
    bad = tmp_path / "data" / "test" / "class1" / "1.png"
    bad.write_bytes(bad.read_bytes()[:100])
    with pytest.raises(BadImage, match=r"1\.png"):
        shrunk(load_dataset(tmp_path / "data", "test"), 92)
    assert not stored(tmp_path)
    assert isinstance(files, Dataset)


def test_progress_is_told_only_while_images_are_decoded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = make_folder(tmp_path / "data", SIZES)
    shrunk(files, 92, progress=True)
    assert "5 images" in capfd.readouterr().err
    shrunk(files, 92, progress=True)
    assert not capfd.readouterr().err


@pytest.mark.parametrize("augmentation", ["paper", "crop_flip", "none"])
def test_training_images_of_different_sizes(tmp_path: Path, augmentation: str) -> None:
    small = Preprocessing(input_size=16, resize=20)
    found = shrunk(make_folder(tmp_path / "data", [*SIZES, (4, 3)]), 40)
    assert isinstance(found, PixelDataset)
    images = AugmentedImages(found, small, augmentation)  # type: ignore[arg-type]
    indices = np.arange(len(found))
    first, again, other = (images.load(indices, seed) for seed in (1, 1, 2))
    assert first.shape == (6, 3, 16, 16)
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (augmentation == "none")
    assert torch.isfinite(first).all()
