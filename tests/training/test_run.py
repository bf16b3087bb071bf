"""What a run leaves in its folder, what is made of it again, and the mistakes that are found before it begins."""

import json
import os
import platform
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import deepbdc
from deepbdc import weight_files
from deepbdc.data import dataset
from deepbdc.data.images import BadImage
from deepbdc.data.loading import load_dataset
from deepbdc.recipes import recipe_from_dict
from deepbdc.report import evaluation
from deepbdc.report.evaluation import EvaluationRequest
from deepbdc.runs import is_finished, load_run
from deepbdc.training.devices import DeviceOptions, slow_precision, start
from deepbdc.training.run import train
from tests.training import tiny


@pytest.fixture(scope="module")
def finished(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "stl"
    train(tiny.recipe("stl_deepbdc"), folder, data=tiny_data, quiet=True)
    return folder


def test_everything_is_in_the_folder(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()} - {".lock"}
    assert names == {
        "recipe.yaml",
        "log.jsonl",
        "tensorboard",
        "checkpoints",
        "curve.png",
        "model.safetensors",
        "result.json",
        "looks.jsonl",
    }
    assert {path.name for path in (finished / "checkpoints").iterdir()} == {
        "last.safetensors",
        "pretrain.safetensors",
        "distill-1.safetensors",
        "distill-2.safetensors",
    }
    assert is_finished(finished)
    with Image.open(finished / "curve.png") as picture:
        assert picture.width > 400
    lines = [json.loads(line) for line in (finished / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["epoch"] for line in lines if line["kind"] == "epoch" and line["stage"] == "pretrain"] == [1, 2, 3]
    assert all(line["val_accuracy"] is not None for line in lines if line["kind"] == "epoch")


def test_a_model_needs_nothing_but_its_file(finished: Path, tiny_data: Path) -> None:
    run = load_run(finished / "model.safetensors")
    assert run.class_names == tuple(f"class {label:02d}" for label in range(6))
    assert run.method.embedding.preprocessing.input_size == tiny.SIZE
    assert not run.method.training
    result = json.loads((finished / "result.json").read_text(encoding="utf-8"))["results"][0]
    again = deepbdc.evaluate(run.method, load_dataset(tiny_data, "test"), 3, 1, 5, 20, 0)
    assert again.accuracies.tolist() == result["accuracies"]
    assert again.weights_fingerprint == result["weights_fingerprint"]


def test_the_result_says_where_it_comes_from(finished: Path, tiny_data: Path) -> None:
    content = json.loads((finished / "result.json").read_text(encoding="utf-8"))
    assert content["deepbdc"] == deepbdc.__version__
    assert content["time"].endswith("+00:00")
    assert content["training_seed"] == tiny.recipe("stl_deepbdc").seed
    assert content["training_data_fingerprint"] == load_dataset(tiny_data, "train").fingerprint
    assert content["looks"] == 1
    for result in content["results"]:
        assert result["data_fingerprint"] == load_dataset(tiny_data, "test").fingerprint
        assert len(result["classes"]) == len(result["accuracies"])
    (look,) = (json.loads(line) for line in (finished / "looks.jsonl").read_text(encoding="utf-8").splitlines())
    assert (look["command"], look["shots"]) == ("train", [result["shot"] for result in content["results"]])
    assert deepbdc.load_result(finished).looks == 1


def test_training_teaches(finished: Path, tiny_data: Path) -> None:
    result = json.loads((finished / "result.json").read_text(encoding="utf-8"))["results"]
    assert result[1]["mean"] > 55  # five shots; chance is 33


def test_the_best_epoch_is_kept(finished: Path) -> None:
    lines = [json.loads(line) for line in (finished / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    epochs = [line for line in lines if line["kind"] == "epoch" and line["stage"] == "distill-2"]
    best = max(epochs, key=lambda line: (line["val_accuracy"], -line["epoch"]))
    _, header = weight_files.load(finished / "checkpoints" / "distill-2.safetensors")
    assert header["epoch"] == best["epoch"]
    run = load_run(finished)
    validated = deepbdc.evaluate(run.method, load_dataset(Path(str(run.data)), "val"), 3, 1, 5, 10, 1)
    assert validated.mean == pytest.approx(best["val_accuracy"])


def test_where_the_data_was_is_kept_as_a_whole_path(finished: Path, tiny_data: Path) -> None:
    assert load_run(finished).data == str(tiny_data.resolve())


def test_files_that_are_no_models_are_named(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"checkpoint to resume from, .*model\.safetensors"):
        load_run(finished / "checkpoints" / "last.safetensors")
    with pytest.raises(FileNotFoundError, match="holds no trained model"):
        load_run(tmp_path)
    (tmp_path / "noise.safetensors").write_bytes(os.urandom(100))
    with pytest.raises(ValueError, match="damaged"):
        load_run(tmp_path / "noise.safetensors")
    content = (finished / "model.safetensors").read_bytes()
    (tmp_path / "half.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="damaged"):
        load_run(tmp_path / "half.safetensors")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"meta": {"epochs": 1, "way": 50}}, "50-way episodes need 50 classes"),
        ({"validation": {"way": 9, "episodes": 2}}, "9-way"),
        ({"evaluation": {"way": 3, "query": 40, "episodes": 2}}, "has 12 images"),
        ({"precision": "16-mixed"}, "needs a GPU"),
        ({"pretrain": {"epochs": 1, "batch_size": 10, "accumulate": 3}}, "multiple of 3"),
    ],
)
def test_mistakes_of_late_stages_are_found_first(
    changes: dict[str, object], words: str, tiny_data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        train(tiny.recipe("protonet", **changes), tmp_path / "run", data=tiny_data, quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_with_its_own_data_only(tiny_data: Path, tmp_path: Path) -> None:
    recipe = tiny.recipe(distill=None)
    folder = tmp_path / "run"
    train(recipe, folder, data=tiny_data, quiet=True)
    (folder / "result.json").unlink()  # as if it had been killed before
    other = tiny.write_data(tmp_path / "other.npz", seed=1)
    with pytest.raises(ValueError, match="begun with other images"):
        train(recipe, folder, data=other, quiet=True, resume=True)


def write_folder(folder: Path, classes: dict[str, list[str]]) -> Path:
    random = np.random.default_rng(0)
    for split, names in classes.items():
        for name in names:
            (folder / split / name).mkdir(parents=True)
            for index in range(8):
                pixels = random.integers(0, 256, (20, 18, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{index}.png")
    return folder


def test_a_folder_of_photos_without_val_and_test(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", {"train": ["ant", "bee", "cat"]})
    recipe = tiny.recipe(distill=None, workers=2, pretrain={"epochs": 1, "batch_size": 8})
    result = train(recipe, tmp_path / "run", data=photos, quiet=True)
    assert result.results == ()
    assert load_run(tmp_path / "run").class_names == ("ant", "bee", "cat")
    choosing = tiny.recipe(distill=None, pretrain={"epochs": 1, "batch_size": 8, "select": "best"})
    with pytest.raises(ValueError, match="no validation classes"):
        train(choosing, tmp_path / "other", data=photos, quiet=True)


def test_shrunk_photos_are_decoded_once_for_training_and_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {split: [f"{split}{index}" for index in range(4)] for split in ("train", "val", "test")}
    photos = write_folder(tmp_path / "photos", names)
    settings = {"episodes": 20, "query": 5, "way": 3, "shots": [1]}
    changes = {"distill": None, "pretrain": {"epochs": 3, "batch_size": 8}, "shrink_to": 16, "evaluation": settings}
    decoded: list[Path] = []
    original = dataset.load_image
    monkeypatch.setattr(dataset, "load_image", lambda file: decoded.append(file) or original(file))
    folder = tmp_path / "run"
    result = train(tiny.recipe(**changes), folder, data=photos, quiet=True).results[0]
    assert len(decoded) == len(set(decoded)) == 3 * 4 * 8
    request = EvaluationRequest(str(folder), str(photos), shots=(1,), way=3, query=5, episodes=20)
    again = evaluation.run(request, load_run(folder))[0]
    assert len(decoded) == 3 * 4 * 8
    assert again.accuracies.tolist() == result.accuracies.tolist()


def test_a_recipe_can_leave_the_test_classes_alone(tiny_data: Path, tmp_path: Path) -> None:
    recipe = tiny.recipe(distill=None, pretrain={"epochs": 1, "batch_size": 12}, evaluation=None)
    assert recipe_from_dict(recipe.as_dict()) == recipe
    assert train(recipe, tmp_path / "run", data=tiny_data, quiet=True).results == ()
    assert load_run(tmp_path / "run").recipe.evaluation is None


def test_a_broken_photo_is_named_also_by_worker_processes(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", {"train": ["ant", "bee"]})
    (photos / "train" / "bee" / "3.png").write_bytes(b"no picture")
    recipe = tiny.recipe(distill=None, workers=2, pretrain={"epochs": 1, "batch_size": 8})
    with pytest.raises(BadImage, match=r"bee/3\.png") as caught:
        train(recipe, tmp_path / "run", data=photos, quiet=True)
    assert "Traceback" not in str(caught.value)


def test_devices_that_are_not_there_are_answered_in_words() -> None:
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="not available here"):
            start(DeviceOptions(accelerator="cuda"))
    with pytest.raises(ValueError, match="not available here"):
        start(DeviceOptions(accelerator="cpu", devices="abc"))
    with pytest.raises(ValueError, match="--strategy must be one of"):
        start(DeviceOptions(strategy="fsdp"))


def test_half_precision_and_channels_last_train(tiny_data: Path, tmp_path: Path) -> None:
    recipe = tiny.recipe("meta_deepbdc", precision="bf16-mixed", channels_last=True)
    train(recipe, tmp_path / "run", data=tiny_data, quiet=True)
    tensors, _ = weight_files.load(tmp_path / "run" / "model.safetensors")
    assert all(value.dtype != torch.bfloat16 for value in tensors.values())


@pytest.mark.parametrize(
    ("precision", "known", "advised"),
    [
        ("bf16-mixed", {"avx512_f": True, "avx512_bf16": False}, True),
        ("bf16-mixed", {"avx512_bf16": True}, False),
        ("bf16-mixed", {"amx_bf16": True}, False),
        ("bf16-mixed", {}, False),  # an older torch does not tell
        ("32-true", {"avx512_bf16": False}, False),
    ],
)
def test_a_precision_that_the_processor_imitates_is_advised_against(
    precision: str, known: dict[str, bool], advised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known, raising=False)
    advice = slow_precision(start(DeviceOptions(accelerator="cpu", devices=1)), precision)
    assert (advice is not None and "--precision 32-true" in advice) == advised
