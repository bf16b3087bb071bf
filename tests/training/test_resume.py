"""Runs that are killed, by kill -9 and otherwise, and what becomes of them."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from deepbdc import weight_files
from deepbdc.recipes import Recipe
from deepbdc.runs import load_run
from deepbdc.training import checkpoint
from deepbdc.training.run import Interrupted, TrainingError, train
from tests.training import tiny


def start(folder: Path, data: Path, recipe: Recipe, *options: str) -> subprocess.Popen[str]:
    file = folder.with_suffix(".yaml")
    file.write_text(recipe.as_yaml(), encoding="utf-8")
    command = [sys.executable, "-m", "tests.training.tiny", str(folder), str(data), str(file), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def position(folder: Path) -> tuple[str, int, int] | None:
    found = checkpoint.read_progress(folder / "checkpoints" / "last.safetensors")
    return None if found is None else (found.progress.stage, found.progress.epoch, found.progress.step)


def assert_equal_weights(one: Path, other: Path) -> None:
    weights, again = (weight_files.load(folder / "model.safetensors")[0] for folder in (one, other))
    assert weights.keys() == again.keys()
    for name, value in weights.items():
        assert torch.equal(value, again[name]), name


def lines_without_times(folder: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "images_per_second")} for line in lines]


def long_recipe(method: str) -> Recipe:
    """Long enough to be killed in every stage."""
    longer = {"pretrain": {"epochs": 4, "batch_size": 3, "lr": 0.02, "milestones": [2]}}
    if method == "stl_deepbdc":
        longer["distill"] = {**longer["pretrain"], "generations": 2, "select": "best"}
    else:
        longer["meta"] = {"epochs": 4, "episodes": 24, "episodes_per_step": 2, "way": 3, "query": 4, "lr": 0.01}
    return tiny.recipe(method, **longer)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("method", ["stl_deepbdc", "meta_deepbdc"])
def test_killed_at_random_moments_gives_the_same_weights(method: str, tiny_data: Path, tmp_path: Path) -> None:
    recipe = long_recipe(method)
    whole = tmp_path / "whole"
    assert start(whole, tiny_data, recipe).wait() == 0
    killed = tmp_path / "killed"
    moments = random.Random(0)
    stages = ["pretrain", "distill-1", "distill-2"] if method == "stl_deepbdc" else ["pretrain", "meta"]
    seen = []
    for stage in stages:
        process = start(killed, tiny_data, recipe, "--resume")
        while process.poll() is None and (position(killed) or ("", 0, 0))[0] != stage:
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.4))
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGKILL)
        process.wait()
        seen.append(position(killed))
    last = start(killed, tiny_data, recipe, "--resume")
    assert last.wait() == 0, last.communicate()
    assert_equal_weights(whole, killed)
    assert lines_without_times(whole) == lines_without_times(killed), seen
    one, other = (json.loads((folder / "result.json").read_text()) for folder in (whole, killed))
    assert [r["accuracies"] for r in one["results"]] == [r["accuracies"] for r in other["results"]]


def test_ctrl_c_writes_a_checkpoint_and_says_how_to_resume(tiny_data: Path, tmp_path: Path) -> None:
    recipe = long_recipe("stl_deepbdc")
    folder = tmp_path / "run"
    process = start(folder, tiny_data, recipe)
    while process.poll() is None and position(folder) is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode != 0
    assert "--resume" in errors
    train(recipe, folder, data=tiny_data, resume=True, quiet=True)
    whole = tmp_path / "whole"
    train(recipe, whole, data=tiny_data, quiet=True)
    assert_equal_weights(whole, folder)


def test_a_loss_that_is_not_a_number_names_the_batch_and_keeps_the_checkpoint(tiny_data: Path, tmp_path: Path) -> None:
    wild = {"epochs": 3, "batch_size": 12, "lr": 1e30}
    folder = tmp_path / "run"
    with pytest.raises(TrainingError, match=r"pretrain, .*epoch 1, step \d+ of 6.*pretrain\.lr") as caught:
        train(tiny.recipe(pretrain=wild, distill=None), folder, data=tiny_data, quiet=True, checkpoint_every=0.0)
    last = folder / "checkpoints" / "last.safetensors"
    assert str(last) in str(caught.value)
    tensors, _ = weight_files.load(last)
    assert all(value.isfinite().all() for value in tensors.values() if value.is_floating_point())


@pytest.mark.parametrize("method", ["protonet", "dn4", "maml"])
def test_a_diverged_meta_stage_ends_in_the_same_words(method: str, tiny_data: Path, tmp_path: Path) -> None:
    wild = {"epochs": 3, "episodes": 6, "way": 3, "query": 4, "lr": 1e30}
    folder = tmp_path / "run"
    recipe = tiny.recipe(method, pretrain=None, meta=wild)
    with pytest.raises(TrainingError, match=r"meta, .*epoch 1.*smaller learning rate \(meta\.lr, now 1e\+30\)"):
        train(recipe, folder, data=tiny_data, quiet=True, checkpoint_every=0.0)
    last = folder / "checkpoints" / "last.safetensors"
    if last.is_file():
        assert all(value.isfinite().all() for value in weight_files.load(last)[0].values())


@pytest.mark.parametrize("stage", ["pretrain", "meta"])
def test_weights_that_break_in_the_last_step_of_an_epoch_end_in_the_same_words(
    stage: str, tiny_data: Path, tmp_path: Path
) -> None:
    """The validation is then the first to notice."""
    wild = {"pretrain": {"batch_size": 72}, "meta": {"episodes": 1, "way": 3, "query": 4}}[stage]
    recipe = tiny.recipe("protonet", **{"pretrain": None, "meta": None, stage: {**wild, "epochs": 2, "lr": 1e30}})
    with pytest.raises(TrainingError, match=rf"{stage}, the end of epoch 1: .*Try a smaller learning rate") as caught:
        train(recipe, tmp_path / "run", data=tiny_data, quiet=True)
    assert ".." not in str(caught.value)


def test_a_gradient_that_is_not_finite_ends_in_words(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.nn.utils.clip_grad_norm_", lambda *_: torch.tensor(float("inf")))
    recipe = tiny.recipe(distill=None, pretrain={"epochs": 1, "batch_size": 12, "clip_norm": 1.0})
    with pytest.raises(TrainingError, match=r"epoch 1, step 1 of 6: the norm of the gradient is inf\. .*learning rate"):
        train(recipe, tmp_path / "run", data=tiny_data, quiet=True)


def test_a_run_has_one_user_at_a_time(tiny_data: Path, tmp_path: Path) -> None:
    recipe, folder = long_recipe("stl_deepbdc"), tmp_path / "run"
    process = start(folder, tiny_data, recipe)
    while process.poll() is None and position(folder) is None:
        time.sleep(0.01)
    being_written = folder / "checkpoints" / ".model.safetensors.part"  # a resumed run removes such files
    being_written.touch()
    with pytest.raises(ValueError, match=r"another process is training the run in .*--run"):
        train(recipe, folder, data=tiny_data, resume=True, quiet=True)
    assert process.poll() is None
    assert being_written.is_file()
    process.kill()
    process.wait()
    train(recipe, folder, data=tiny_data, resume=True, quiet=True)  # a killed process leaves no lock behind
    assert not being_written.exists()


def test_checkpoints_of_earlier_versions_are_refused_in_words(tiny_data: Path, tmp_path: Path) -> None:
    recipe, folder = tiny.recipe(distill=None), tmp_path / "run"
    train(recipe, folder, data=tiny_data, quiet=True)
    (folder / "result.json").unlink()
    last = folder / "checkpoints" / "last.safetensors"
    tensors, header = weight_files.load(last)
    del header["layout"]
    weight_files.save(last, tensors, header)
    with pytest.raises(ValueError, match="written by an earlier version"):
        train(recipe, folder, data=tiny_data, resume=True, quiet=True)


@pytest.mark.parametrize("settings", [{"optimiser": "adam"}, {"optimiser": "adamw"}, {"nesterov": False}])
def test_every_optimiser_resumes_bit_for_bit(
    settings: dict[str, object], tiny_data: Path, tmp_path: Path, power_cut: Callable[..., None]
) -> None:
    stage = {"epochs": 2, "batch_size": 12, "lr": 0.01, "clip_norm": 1.0, "clip_value": 0.1, **settings}
    recipe = tiny.recipe(pretrain=stage, distill=None, channels_last=True)
    train(recipe, tmp_path / "whole", data=tiny_data, quiet=True)
    power_cut(9)
    with pytest.raises(RuntimeError, match="power cut"):
        train(recipe, tmp_path / "cut", data=tiny_data, quiet=True, checkpoint_every=0.0)
    train(recipe, tmp_path / "cut", data=tiny_data, quiet=True, resume=True)
    assert_equal_weights(tmp_path / "whole", tmp_path / "cut")


def test_a_full_disk_is_answered_in_words(tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    folder = tmp_path / "run"
    recipe = tiny.recipe(distill=None)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # no file may be larger: the real error of the system
    try:
        with pytest.raises(TrainingError, match=r"no space left .*--resume"):
            train(recipe, folder, data=tiny_data, quiet=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert not list((folder / "checkpoints").glob("*"))
    train(recipe, folder, data=tiny_data, quiet=True, resume=True)
    assert load_run(folder).recipe == recipe


def test_a_missing_data_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        train(tiny.recipe(), tmp_path / "run", data=tmp_path / "nowhere", quiet=True)
    assert not (tmp_path / "run").exists()


def test_two_runs_are_never_mixed(tiny_data: Path, tmp_path: Path) -> None:
    recipe = tiny.recipe(distill=None)
    folder = tmp_path / "run"
    first = train(recipe, folder, data=tiny_data, quiet=True)
    with pytest.raises(FileExistsError, match="--resume"):
        train(recipe, folder, data=tiny_data, quiet=True)
    with pytest.raises(ValueError, match="different are: seed"):
        train(tiny.recipe(distill=None, seed=7), folder, data=tiny_data, quiet=True, resume=True)
    again = train(recipe, folder, data=tiny_data, quiet=True, resume=True)  # finished: nothing is done again
    assert [str(one) for one in again.results] == [str(one) for one in first.results]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "photo.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="not empty"):
        train(recipe, tmp_path / "other", data=tiny_data, quiet=True)


def test_interrupted_is_no_ordinary_error() -> None:
    assert not issubclass(Interrupted, ValueError | OSError)
