from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from deepbdc.recipes import Recipe, build_method, recipe_from_dict
from deepbdc.training import estimate as module
from deepbdc.training.devices import DeviceOptions
from deepbdc.training.estimate import Estimate, SplitSize, StageEstimate, describe, estimate

CPU = DeviceOptions(accelerator="cpu")


@pytest.fixture(autouse=True)
def _few_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_MOST_STEPS", 1), ("_EPISODES", 2), ("_IMAGES", 2)):
        monkeypatch.setattr(module, name, value)


def small(data: str | Path, **changes: Any) -> Recipe:
    content: dict[str, Any] = {
        "method": "meta_deepbdc",
        "data": str(data),
        "backbone": {"name": "conv4", "width": 0.125, "removed_downsamplings": 2},
        "size": 16,
        "augmentation": "crop_flip",
        "pretrain": {"epochs": 4, "batch_size": 8},
        "meta": {"epochs": 2, "way": 3, "shot": 1, "query": 2, "episodes": 10, "episodes_per_step": 2},
        "validation": {"way": 3, "query": 2, "episodes": 5},
        "evaluation": {"way": 3, "query": 2, "episodes": 5},
    }
    return recipe_from_dict(content | changes)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Five classes of train, three of val, four of test, six images each."""
    splits = np.repeat(["train", "val", "test"], [5, 3, 4])
    np.savez(
        tmp_path / "own.npz",
        images=np.random.default_rng(0).integers(0, 256, (72, 16, 16, 3), dtype=np.uint8),
        labels=np.repeat(np.arange(12), 6),
        class_names=np.array([f"{label:02}" for label in range(12)]),
        class_split=splits,
    )
    return tmp_path / "own.npz"


def text_of(found: Estimate) -> str:
    console = Console(file=StringIO(), width=300)
    console.print(describe(found))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_data_that_is_here(data: Path) -> None:
    recipe = small(data)
    found = estimate(recipe, CPU)
    assert found.data_source == "here"
    assert found.data_in_memory
    assert found.splits == {"train": SplitSize(5, 30), "val": SplitSize(3, 18), "test": SplitSize(4, 24)}
    embedding = build_method(recipe).embedding
    assert found.parameters == sum(value.numel() for value in embedding.parameters())
    assert found.head_parameters == (embedding.out_features + 1) * 5
    assert [(stage.name, stage.steps, stage.images_per_step) for stage in found.stages] == [
        ("pretrain", 3, 8),
        ("meta", 5, 18),
    ]
    for stage in found.stages:
        assert stage.step_seconds > 0
        assert stage.validation_seconds is not None
        assert stage.validation_seconds > 0
        assert stage.validations == stage.epochs
    assert found.bank == 24 * embedding.out_features * 4
    assert found.memory is None or found.memory > 10**7
    assert found.seconds is not None
    assert found.seconds > sum(stage.seconds or 0 for stage in found.stages) > 0
    text = text_of(found)
    assert f"Parameters: {found.parameters:,} + {found.head_parameters:,} of" in text
    assert "train 5 classes, 30 images; val 3 classes, 18 images; test 4 classes, 24 images" in text
    assert "pretrain" in text


def test_the_same_data_given_by_hand(data: Path) -> None:
    assert estimate(small("cub"), CPU, data=data).splits["train"] == SplitSize(5, 30)
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        estimate(small("cub"), CPU, data=data.parent / "nowhere")


def test_all_generations_of_distillation(data: Path) -> None:
    changes = {"method": "stl_deepbdc", "meta": None, "distill": {"epochs": 3, "batch_size": 8, "generations": 2}}
    found = estimate(small(data, **changes), CPU)
    assert [stage.name for stage in found.stages] == ["pretrain", "distill-1", "distill-2"]
    assert found.stages[1].step_seconds == found.stages[2].step_seconds


def test_data_that_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPBDC_DATA", str(tmp_path))
    found = estimate(small("miniimagenet->cub"), CPU)
    assert found.data_source == "facts"
    assert found.splits["train"] == SplitSize(100, 60_000)
    assert found.splits["test"].classes == 50
    assert found.stages[0].steps == 7500
    assert not found.data_in_memory
    assert "the images are not here yet" in text_of(found)
    assert list(tmp_path.iterdir()) == []


def test_data_that_nobody_knows(tmp_path: Path) -> None:
    found = estimate(small(tmp_path / "missing"), CPU)
    assert (found.data_source, found.splits, found.seconds) == ("unknown", {}, None)
    assert [stage.steps for stage in found.stages] == [None, 5]
    assert found.stages[1].seconds is not None
    assert "its size is unknown" in text_of(found)


def test_each_process_takes_its_share(data: Path) -> None:
    found = estimate(small(data), DeviceOptions(accelerator="cpu", devices=2))
    assert found.processes == 2
    assert [stage.images_per_step for stage in found.stages] == [8, 18]
    assert "2 processes (their exchange is not counted)" in text_of(found)
    with pytest.raises(ValueError, match="cannot be cut into equal parts for 3"):
        estimate(small(data), DeviceOptions(accelerator="cpu", devices="3"))


@pytest.mark.parametrize(
    ("devices", "nodes", "processes"), [("auto", 1, 1), (2, 1, 2), ("4", 2, 8), ("0,2", 1, 2), ("3,", 1, 1)]
)
def test_processes(devices: str | int, nodes: int, processes: int) -> None:
    assert module._count_processes(DeviceOptions("cpu", devices, nodes)) == processes


def test_random_numbers_are_left_alone(data: Path) -> None:
    before = torch.random.get_rng_state()
    estimate(small(data, dropout=0.5), CPU)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_sums() -> None:
    stage = StageEstimate("pretrain", 10, 10, 100, 64, 0.5, 4, 3.0)
    assert stage.epoch_seconds == 50
    assert stage.seconds == 512
    settings = small("cub", pretrain={"epochs": 10, "validate_from": 4, "validate_every": 4}).stages["pretrain"]
    assert settings is not None
    assert module._count_validations(settings) == 3  # 4, 8, and the last
