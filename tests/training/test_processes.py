"""Two real processes that train and evaluate together, against one that does the same alone."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from deepbdc import weight_files
from deepbdc.recipes import Recipe
from deepbdc.stages import AugmentedImages, BatchSettings, Process, ShuffledBatches
from tests.training import tiny


def run(folder: Path, data: Path, recipe: Recipe, processes: int, *options: str) -> Path:
    file = folder.with_suffix(".yaml")
    file.write_text(recipe.as_yaml(), encoding="utf-8")
    arguments = [str(folder), str(data), str(file), "--devices", str(processes), *options]
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.tiny", *arguments], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return folder


def gradients(folder: Path) -> dict[str, torch.Tensor]:
    """After one step from rest, without weight decay, the momentum is the gradient."""
    tensors, _ = weight_files.load(folder / "checkpoints" / "last.safetensors")
    return {name: value for name, value in tensors.items() if name.startswith("optimiser.")}


def one_step(method: str) -> Recipe:
    if method == "meta_deepbdc":
        step = {"epochs": 1, "episodes": 2, "episodes_per_step": 2, "way": 3, "query": 4, "lr": 0.01, "weight_decay": 0}
        return tiny.recipe(method, pretrain=None, meta=step)
    # Parts of a step have batch norm statistics of their own, as processes have: two parts equal two processes.
    step = {"epochs": 1, "batch_size": 72, "accumulate": 2, "lr": 0.01, "weight_decay": 0}
    return tiny.recipe(method, pretrain=step, distill=None)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("method", ["meta_deepbdc", "stl_deepbdc"])
def test_two_processes_have_the_gradient_of_one(method: str, tiny_data: Path, tmp_path: Path) -> None:
    recipe = one_step(method)
    alone = gradients(run(tmp_path / "one", tiny_data, recipe, 1))
    if method == "stl_deepbdc":  # the two halves of the batch go to two processes
        halves = {**recipe.as_dict()["pretrain"], "accumulate": 1}
        recipe = tiny.recipe(method, pretrain=halves, distill=None)
    together = gradients(run(tmp_path / "two", tiny_data, recipe, 2))
    assert alone.keys() == together.keys()
    assert any(value.abs().max() > 1e-3 for value in alone.values())
    for name, value in alone.items():
        assert torch.allclose(value, together[name], rtol=1e-5, atol=1e-5), name


@pytest.mark.timeout(300)
def test_losses_that_a_recipe_adds_have_the_same_gradient_in_two_processes(tiny_data: Path, tmp_path: Path) -> None:
    added = {"rotation": {"share": 0.5, "class_weight": 1.0}, "mixup": {"layers": [0, 2]}, "consistency": {}}
    step = {"epochs": 1, "batch_size": 72, "lr": 0.01, "weight_decay": 0, "losses": added}
    recipes = [tiny.recipe("good_embed", pretrain={**step, "accumulate": parts}, distill=None) for parts in (2, 1)]
    alone = gradients(run(tmp_path / "one", tiny_data, recipes[0], 1))
    together = gradients(run(tmp_path / "two", tiny_data, recipes[1], 2))
    assert alone.keys() == together.keys()
    for name, value in alone.items():
        assert torch.allclose(value, together[name], rtol=1e-5, atol=1e-5), name


@pytest.mark.timeout(300)
def test_torchrun_starts_the_processes_as_well(tiny_data: Path, tmp_path: Path) -> None:
    recipe = one_step("meta_deepbdc")
    ours = run(tmp_path / "ours", tiny_data, recipe, 2)
    programs = Path(sys.executable).parent
    command = [str(programs / "torchrun"), "--nproc-per-node", "2", "--master-port", "29641", "--"]
    command += [str(programs / "deepbdc"), "train", str(tmp_path / "ours.yaml"), "--data", str(tiny_data)]
    done = subprocess.run(
        [*command, "--run", str(tmp_path / "theirs"), "--devices", "2"], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("1-shot") == 1
    weights, again = (weight_files.load(folder / "model.safetensors")[0] for folder in (ours, tmp_path / "theirs"))
    assert all(torch.equal(value, again[name]) for name, value in weights.items())


@pytest.mark.timeout(300)
def test_two_processes_evaluate_as_one(tiny_data: Path, tmp_path: Path) -> None:
    model = run(tmp_path / "model", tiny_data, tiny.recipe(distill=None), 1)
    accuracies = []
    for processes in (1, 2):
        output = tmp_path / f"{processes}.json"
        command = [str(Path(sys.executable).parent / "deepbdc"), "evaluate", str(model), "--devices", str(processes)]
        command += ["--shot", "1", "--way", "3", "--query", "5", "--episodes", "50", "--output", str(output)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("1-shot") == 1  # one process speaks
        accuracies.append(json.loads(output.read_text(encoding="utf-8"))["results"][0]["accuracies"])
    assert accuracies[0] == accuracies[1]
    assert np.mean(accuracies[0]) > 40  # chance is 33


def test_processes_share_every_batch(tiny_data: Path) -> None:
    from deepbdc.data.loading import load_dataset
    from deepbdc.preprocessing import Preprocessing

    images = AugmentedImages(load_dataset(tiny_data, "train"), Preprocessing(16, 16), "crop_flip")
    stage = BatchSettings(epochs=1, batch_size=12)
    whole = ShuffledBatches(images, stage, "pretrain", 3, Process())
    halves = [ShuffledBatches(images, stage, "pretrain", 3, Process(rank, 2)) for rank in (0, 1)]
    for step in range(whole.steps):
        labels = torch.cat([half.load(0, step, 0)[1] for half in halves])
        assert torch.equal(labels, whole.load(0, step, 0)[1])
    with pytest.raises(ValueError, match="multiple of 5"):
        ShuffledBatches(images, stage, "pretrain", 3, Process(0, 5))


def failing(folder: Path, data: Path, recipe: Recipe, *options: str) -> str:
    """The error output of two processes that are expected to fail, which must not hang."""
    file = folder.with_suffix(".yaml")
    file.write_text(recipe.as_yaml(), encoding="utf-8")
    arguments = [str(folder), str(data), str(file), "--devices", "2", *options]
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.tiny", *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode != 0
    return done.stderr


@pytest.mark.timeout(300)
def test_a_diverged_stage_ends_in_words_in_all_processes(tiny_data: Path, tmp_path: Path) -> None:
    wild = {"epochs": 3, "episodes": 8, "episodes_per_step": 2, "way": 3, "query": 4, "lr": 1e30}
    errors = failing(tmp_path / "run", tiny_data, tiny.recipe("protonet", pretrain=None, meta=wild))
    assert errors.count("TrainingError: meta, epoch 1") >= 1
    assert "Try a smaller learning rate (meta.lr" in errors
    assert "NotFinite: " not in errors.replace("deepbdc.errors.NotFinite", "")


@pytest.mark.timeout(300)
def test_a_bad_image_of_one_process_stops_all(tmp_path: Path) -> None:
    from tests.training.test_run import write_folder

    photos = write_folder(tmp_path / "photos", {"train": ["ant", "bee"]})
    (photos / "train" / "bee" / "3.png").write_bytes(b"no picture")
    recipe = tiny.recipe(distill=None, workers=0, pretrain={"epochs": 1, "batch_size": 8})
    errors = failing(tmp_path / "run", photos, recipe)
    assert "bee/3.png" in errors


@pytest.mark.timeout(300)
def test_a_run_may_continue_with_another_number_of_processes_and_says_so(tiny_data: Path, tmp_path: Path) -> None:
    meta = one_step("meta_deepbdc").as_dict()["meta"] | {"select": "last"}
    recipe = tiny.recipe("meta_deepbdc", pretrain=None, meta=meta)
    folder = run(tmp_path / "run", tiny_data, recipe, 2)
    for name in ("result.json", "model.safetensors", "checkpoints/meta.safetensors"):
        (folder / name).unlink()  # as if it had been killed after its last checkpoint
    arguments = [str(folder), str(tiny_data), str(folder.with_suffix(".yaml")), "--resume"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.tiny", *arguments], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "trained by 2 processes and continues with 1" in done.stdout


@pytest.mark.timeout(300)
def test_neither_parameters_without_a_gradient_nor_uneven_clocks_stop_two_processes(
    tiny_data: Path, tmp_path: Path
) -> None:
    """The scale of Meta-Baseline is not used in its first stage; checkpoints are due at other times in each process."""
    meta = tiny.recipe("meta_baseline").as_dict()["meta"] | {"epochs": 1, "episodes_per_step": 2}
    recipe = tiny.recipe("meta_baseline", pretrain={"epochs": 1, "batch_size": 36}, meta=meta)
    run(tmp_path / "run", tiny_data, recipe, 2, "--uneven-clocks")
