import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from deepbdc import BDCPool, Embedding, create_backbone
from deepbdc._fingerprint import weights_fingerprint
from deepbdc.data.dataset import ArrayDataset, FolderDataset
from deepbdc.embedding import pixel_embedding
from deepbdc.feature_bank import build_bank
from deepbdc.preprocessing import Preprocessing


def array_dataset(n: int = 30) -> ArrayDataset:
    pixels = np.random.default_rng(0).integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
    return ArrayDataset(pixels, np.arange(n) % 3, ["a", "b", "c"], "made", "test")


def embedding(seed: int = 0) -> Embedding:
    torch.manual_seed(seed)
    backbone = create_backbone("conv4", width=0.25)
    network = Embedding(backbone, BDCPool(16, reduce_to=8), Preprocessing(32, 32))
    network.train()
    for _ in range(3):  # running statistics that are not the initial ones
        network(torch.randn(8, 3, 32, 32))
    return network


def expected(network: Embedding, dataset: ArrayDataset) -> Tensor:
    mean, std = (torch.tensor(v)[:, None, None] for v in (network.preprocessing.mean, network.preprocessing.std))
    images = (torch.from_numpy(dataset.images).permute(0, 3, 1, 2) / 255 - mean) / std
    network.eval()
    with torch.no_grad():
        found = torch.cat([network(image[None]) for image in images])
    network.train()
    return found


@pytest.mark.parametrize("batch_size", [7, 30, 100])
def test_every_image_is_embedded_in_evaluation_mode(batch_size: int) -> None:
    network, dataset = embedding(), array_dataset()
    target = expected(network, dataset)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    bank = build_bank(network, dataset, batch_size=batch_size)
    assert len(bank) == 30
    assert bank.kept == "representations, float32"
    torch.testing.assert_close(bank.rows(np.arange(30)), target, atol=1e-4, rtol=1e-4)
    assert torch.equal(bank.rows(np.array([3, 3, 0])), bank.features[[3, 3, 0]])
    assert network.training, "the mode is put back"
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


@pytest.mark.parametrize(
    ("budget", "kept", "tolerance"),
    [
        (30 * 136 * 4, "representations, float32", 1e-5),
        (30 * 136 * 4 - 1, "representations, float16", 2e-3),
        (30 * 136 * 2 - 1, "reduced maps, float32", 1e-5),
        (30 * 64 * 4 - 1, "reduced maps, float16", 2e-3),
    ],
)
def test_the_budget_decides_what_is_kept(budget: int, kept: str, tolerance: float) -> None:
    """A representation has 136 numbers, the map that it is made of 16 × 2 × 2 = 64."""
    torch.manual_seed(0)
    backbone = create_backbone("conv4", width=0.25, removed_downsamplings=0)
    network = Embedding(backbone, BDCPool(16), Preprocessing(32, 32)).eval()
    dataset = array_dataset()
    bank = build_bank(network, dataset, budget=budget)
    assert bank.kept == kept
    assert bank.features.nbytes <= budget
    found = bank.rows(np.arange(30))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected(network, dataset), atol=tolerance, rtol=tolerance)


def test_a_budget_too_small_is_answered_in_words() -> None:
    with pytest.raises(MemoryError, match=r"30 images need at least .* GB, the budget is 0\.0 GB: raise the budget"):
        build_bank(embedding(), array_dataset(), budget=10)


def test_files_are_transformed_and_embedded(tmp_path: Path) -> None:
    dataset = array_dataset(6)
    files = []
    for index in range(6):
        files.append(tmp_path / f"{index}.png")
        dataset.image(index).save(files[-1])
    folder = FolderDataset(files, dataset.labels.numpy(), dataset.class_names, "files", "test")
    network = embedding()
    found, target = (build_bank(network, data).rows(np.arange(6)) for data in (folder, dataset))
    torch.testing.assert_close(found, target, atol=1e-4, rtol=1e-4)
    Image.new("L", (50, 40)).save(files[2])
    (tmp_path / "2.png").write_bytes((tmp_path / "2.png").read_bytes()[:30])
    with pytest.raises(ValueError, match=r"2\.png: not a readable image"):
        build_bank(network, folder)


class Counting(Embedding):
    """Counts the images that it embeds."""

    seen = 0

    def reduced_map(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return super().reduced_map(images)


def counting(seed: int = 0) -> Counting:
    torch.manual_seed(seed)
    return Counting(create_backbone("conv4", width=0.25), BDCPool(16), Preprocessing(32, 32))


def test_cache_is_found_again_by_weights_data_and_preprocessing(tmp_path: Path) -> None:
    dataset = array_dataset()
    first = build_bank(counting(), dataset, cache=tmp_path)
    again = counting()
    bank = build_bank(again, dataset, cache=tmp_path)
    assert again.seen == 1, "only the one that tells the shape"
    assert torch.equal(bank.features, first.features)
    other_weights = counting(seed=1)
    build_bank(other_weights, dataset, cache=tmp_path)
    assert other_weights.seen == 31
    other_data = counting()
    build_bank(other_data, array_dataset(29), cache=tmp_path)
    assert other_data.seen == 30
    other_size = counting()
    other_size.preprocessing = Preprocessing(28, 32)
    build_bank(other_size, dataset, cache=tmp_path)
    assert other_size.seen == 31
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("damage", ["noise", "one byte", "cut", "header", "no header"])
def test_a_damaged_cache_is_never_used(damage: str, tmp_path: Path) -> None:
    dataset = array_dataset()
    target = build_bank(counting(), dataset, cache=tmp_path).features.clone()
    (file,) = tmp_path.glob("*.npy")
    content = bytearray(file.read_bytes())
    if damage == "noise":
        file.write_bytes(np.random.default_rng(0).bytes(len(content)))
    elif damage == "one byte":
        content[-1] ^= 1
        file.write_bytes(bytes(content))
    elif damage == "cut":
        file.write_bytes(bytes(content[:-100]))
    elif damage == "header":
        file.with_suffix(".json").write_text("{")
    else:
        file.with_suffix(".json").unlink()
    network = counting()
    if damage == "no header":  # what an interrupted run leaves behind
        bank = build_bank(network, dataset, cache=tmp_path)
    else:
        with pytest.warns(UserWarning, match="is damaged: the images are embedded again"):
            bank = build_bank(network, dataset, cache=tmp_path)
    assert network.seen == 31
    assert torch.equal(bank.features, target)
    assert json.loads(file.with_suffix(".json").read_text())["shape"] == [30, 136]


def test_a_failure_leaves_no_file_behind(tmp_path: Path) -> None:
    dataset = array_dataset(6)
    files = [tmp_path / f"{index}.png" for index in range(6)]
    for index, file in enumerate(files):
        dataset.image(index).save(file)
    folder = FolderDataset(files, dataset.labels.numpy(), dataset.class_names, "files", "test")
    files[5].write_bytes(b"noise")
    with pytest.raises(ValueError, match=r"5\.png: not a readable image"):
        build_bank(counting(), folder, cache=tmp_path / "cache", batch_size=2)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_changed_file_is_embedded_again(tmp_path: Path) -> None:
    """Also when it has the size, and the modification time, of the one before."""
    colours = [Image.new("RGB", (32, 32), colour) for colour in ("red", "blue")]
    file = tmp_path / "a.bmp"
    colours[0].save(file)
    before = file.stat()
    folder = FolderDataset([file], np.array([0]), ["a"], "files", "test")
    first = build_bank(counting(), folder, cache=tmp_path / "cache").features.clone()
    colours[1].save(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    assert not torch.equal(build_bank(counting(), folder, cache=tmp_path / "cache").features, first)


def test_half_precision_that_would_overflow_is_refused() -> None:
    class Huge(Embedding):
        def reduced_map(self, images: Tensor) -> Tensor:
            return super().reduced_map(images) * 1e6

    network = Huge(create_backbone("conv4", width=0.25), BDCPool(16), Preprocessing(32, 32))
    with pytest.raises(MemoryError, match="too large for half precision"):
        build_bank(network, array_dataset(), budget=30 * 136 * 2)


def test_weights_fingerprint() -> None:
    assert weights_fingerprint(embedding()) == weights_fingerprint(embedding())
    changed = embedding()
    with torch.no_grad():
        changed.pool.t.add_(1e-3)  # type: ignore[operator]
    assert weights_fingerprint(changed) != weights_fingerprint(embedding())
    assert weights_fingerprint(pixel_embedding(8)) != weights_fingerprint(pixel_embedding(16))


def test_pixels() -> None:
    dataset = array_dataset()
    bank = build_bank(pixel_embedding(32), dataset)
    assert bank.features.shape == (30, 3 * 32 * 32)
