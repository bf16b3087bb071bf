"""A stage that another run has trained in the same way is taken over, and never a different one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from deepbdc import weight_files
from deepbdc.recipes import Recipe
from deepbdc.training.run import train
from tests.training import tiny


def run(folder: Path, data: Path, recipe: Recipe, reuse: Path | None = None) -> dict[str, torch.Tensor]:
    train(recipe, folder, data=data, quiet=True, reuse=() if reuse is None else [reuse])
    return weight_files.load(folder / "model.safetensors")[0]


def trained_epochs(folder: Path, stage: str) -> int:
    return (folder / "log.jsonl").read_text(encoding="utf-8").count(f'"kind": "epoch", "stage": "{stage}"')


@pytest.mark.parametrize("method", ["dn4", "adm", "feat", "meta_baseline", "ctx", "relationnet"])
def test_a_method_with_the_same_pretraining_starts_from_the_same_network(
    method: str, tiny_data: Path, tmp_path: Path
) -> None:
    """The result is, to the last bit, that of a run which trains everything itself."""
    runs = tmp_path / "runs"
    run(runs / "protonet", tiny_data, tiny.recipe("protonet", dropout=0.5))
    recipe = tiny.recipe(method, dropout=0.5)  # of the channels of a map; its factor, 1 / 0.5, has no rounding error
    taken = run(runs / method, tiny_data, recipe, reuse=runs)
    assert trained_epochs(runs / "protonet", "pretrain") == 3
    assert trained_epochs(runs / method, "pretrain") == 0
    assert trained_epochs(runs / method, "meta") == 3
    own = run(tmp_path / "alone", tiny_data, recipe)
    assert own.keys() == taken.keys()
    assert all(torch.equal(own[name], taken[name]) for name in own)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 7},
        {"dropout": 0.4},
        {"augmentation": "crop_flip"},
        {"backbone": {"name": "conv4", "width": 0.25, "removed_downsamplings": 2}},
        {"pretrain": {"epochs": 3, "batch_size": 12, "lr": 0.03, "milestones": [2]}},
        {"pretrain": {"epochs": 3, "batch_size": 12, "lr": 0.02, "milestones": [2], "label_smoothing": 0.1}},
        {"pretrain": {"epochs": 3, "batch_size": 12, "lr": 0.02, "milestones": [2], "select": "best"}},
    ],
)
def test_another_training_is_not_taken(change: dict[str, Any], tiny_data: Path, tmp_path: Path) -> None:
    run(tmp_path / "first", tiny_data, tiny.recipe("protonet", meta=None))
    run(tmp_path / "second", tiny_data, tiny.recipe("protonet", meta=None, **change), reuse=tmp_path)
    assert trained_epochs(tmp_path / "second", "pretrain") == 3


@pytest.mark.parametrize("method", ["meta_deepbdc", "covnet"])
def test_another_representation_is_not_taken(method: str, tiny_data: Path, tmp_path: Path) -> None:
    run(tmp_path / "protonet", tiny_data, tiny.recipe("protonet", meta=None))
    run(tmp_path / method, tiny_data, tiny.recipe(method, meta=None), reuse=tmp_path)
    assert trained_epochs(tmp_path / method, "pretrain") == 3


def test_other_images_are_not_taken(tiny_data: Path, tmp_path: Path) -> None:
    recipe = tiny.recipe("protonet", meta=None)
    run(tmp_path / "first", tiny_data, recipe)
    run(tmp_path / "second", tiny.write_data(tmp_path / "other.npz", seed=1), recipe, reuse=tmp_path)
    assert trained_epochs(tmp_path / "second", "pretrain") == 3


def test_all_stages_are_taken_where_only_the_evaluation_differs(tiny_data: Path, tmp_path: Path) -> None:
    first = run(tmp_path / "first", tiny_data, tiny.recipe("stl_deepbdc", options={"C": 1}, distill=None))
    second = run(
        tmp_path / "second", tiny_data, tiny.recipe("stl_deepbdc", options={"C": 2}, distill=None), reuse=tmp_path
    )
    assert trained_epochs(tmp_path / "second", "pretrain") == 0
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_stage_of_another_precision_is_taken_and_said(
    tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A network that was trained in bf16 serves a processor that has no instructions for it."""
    first = run(tmp_path / "first", tiny_data, tiny.recipe("protonet", meta=None, precision="bf16-mixed"))
    recipe = tiny.recipe("protonet", meta=None)
    train(recipe, tmp_path / "second", data=tiny_data, reuse=[tmp_path / "first"])
    second = weight_files.load(tmp_path / "second" / "model.safetensors")[0]
    assert trained_epochs(tmp_path / "second", "pretrain") == 0
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert "trained with precision bf16-mixed" in " ".join(capsys.readouterr().out.split())


def test_damaged_files_and_unfinished_stages_of_other_runs_are_passed_over(tiny_data: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
    (tmp_path / "a" / "checkpoints" / "pretrain.safetensors").write_bytes(b"not weights")
    (tmp_path / "b" / "checkpoints" / "last.safetensors").write_bytes(b"unfinished")
    run(tmp_path / "c", tiny_data, tiny.recipe("protonet", meta=None), reuse=tmp_path)
    assert trained_epochs(tmp_path / "c", "pretrain") == 3


@pytest.mark.parametrize(
    ("part", "factor", "taken"),
    [("values", 1 + 1e-7, True), ("values", 1.001, False), ("responses", 1 + 1e-5, True), ("responses", 1.05, False)],
)
def test_numbers_that_differ_by_rounding_are_the_same(
    part: str, factor: float, taken: bool, tiny_data: Path, tmp_path: Path
) -> None:
    """Another machine, or another order of the same sums, gives other last digits."""
    recipe = tiny.recipe("protonet", meta=None)
    run(tmp_path / "first", tiny_data, recipe)
    file = tmp_path / "first" / "checkpoints" / "pretrain.safetensors"
    tensors, header = weight_files.load(file)
    shared = header["shared"] | {part: [factor * number for number in header["shared"][part]]}
    file.write_bytes(weight_files.as_bytes(tensors, header | {"shared": shared}))
    run(tmp_path / "second", tiny_data, recipe, reuse=tmp_path / "first")
    assert trained_epochs(tmp_path / "second", "pretrain") == (0 if taken else 3)
