"""The networks that the repository keeps: kept from a real run, found by name, and the same as the run."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import deepbdc
from deepbdc import weight_files
from deepbdc._fingerprint import weights_fingerprint
from deepbdc.cli import main
from deepbdc.data import benchmarks
from deepbdc.estimator import FewShotClassifier
from deepbdc.gallery import load_result
from deepbdc.runs import is_finished, load_run
from deepbdc.training.run import train
from deepbdc.zoo import find_network, list_networks, network_folder
from tests.scripts import script
from tests.training import tiny

ROOT = Path(__file__).parent.parent
NETWORKS = sorted(file.parent for file in (ROOT / "zoo").glob("*/*/*/model.safetensors"))
KEPT_FILES = {"model.safetensors", "recipe.yaml", "result.json", "log.jsonl", "DATA-LICENCE.md"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_data: Path) -> Path:
    """A finished run, whose weights have their channels last."""
    folder = tmp_path_factory.mktemp("runs") / "stl_deepbdc"
    recipe = dataclasses.replace(tiny.recipe(distill=None), channels_last=True)
    train(recipe, folder, data=tiny_data, quiet=True)
    return folder


@pytest.fixture
def zoo(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo with the network of the run, in a folder that is the current one; there is no other zoo."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("deepbdc._files._REPOSITORY", tmp_path / "elsewhere")
    monkeypatch.delenv("DEEPBDC_ZOO", raising=False)
    script("keep").keep_network(run, tmp_path / "zoo")
    return tmp_path / "zoo"


def test_what_is_kept_of_a_run(run: Path, zoo: Path) -> None:
    folder = zoo / "glyphs" / "conv4" / "stl_deepbdc"
    assert {file.name for file in folder.iterdir()} == KEPT_FILES
    assert is_finished(folder)
    tensors, header = weight_files.load(folder / "model.safetensors")
    whole, _ = weight_files.load(run / "model.safetensors")
    assert all(name.startswith("method.") for name in tensors)
    assert len(tensors) < len(whole), "the head of the training is left out"
    assert all(torch.equal(value, whole[name]) and value.dtype == whole[name].dtype for name, value in tensors.items())
    assert header["data"] is None, "no path of the machine that trained it"
    kinds = {json.loads(line)["kind"] for line in (folder / "log.jsonl").read_text().splitlines()}
    assert kinds == {"epoch", "stage"}
    assert (folder / "recipe.yaml").read_text() == (run / "recipe.yaml").read_text()
    assert "free to use; made on this machine" in (folder / "DATA-LICENCE.md").read_text()
    kept, original = load_result(folder), load_result(run)
    for one, other in zip(kept.results, original.results, strict=True):
        assert np.array_equal(one.accuracies, np.round(other.accuracies, 4))
    assert json.loads((folder / "result.json").read_text())["trained_on"] == {"data": "glyphs", "classes": 6}


def test_a_kept_network_gives_the_numbers_of_its_run(run: Path, zoo: Path, tiny_data: Path) -> None:
    method = deepbdc.load_pretrained("glyphs/conv4/stl_deepbdc")
    assert weights_fingerprint(method) == weights_fingerprint(load_run(run).method)
    dataset = deepbdc.load_dataset(tiny_data, "test")
    for stored in load_result(run).results:
        now = deepbdc.evaluate(method, dataset, way=3, shot=stored.shot, query=5, episodes=20)
        assert np.array_equal(now.accuracies, stored.accuracies)
    first = next(value for value in method.parameters() if value.dim() == 4 and value.shape[1] > 1)
    assert first.is_contiguous(memory_format=torch.channels_last), "the layout that the recipe says"


def test_a_network_is_found_in_all_places(zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "glyphs/conv4/stl_deepbdc"
    assert list_networks() == [name]
    for given in (name, f"zoo/{name}", zoo / name):
        assert network_folder(given).resolve() == zoo / name
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert find_network(name) is None
    monkeypatch.setenv("DEEPBDC_ZOO", str(zoo))
    assert network_folder(name) == zoo / name
    monkeypatch.delenv("DEEPBDC_ZOO")
    monkeypatch.setattr("deepbdc._files._REPOSITORY", tmp_path)
    assert network_folder(f"zoo/{name}") == zoo / name


def test_a_missing_network_is_answered_with_what_there_is(
    zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = r"The zoo has glyphs/conv4/stl_deepbdc\."
    picture = np.zeros((16, 16, 3), dtype=np.uint8)
    for ask in (deepbdc.load_pretrained, lambda name: FewShotClassifier(backbone=name).fit([picture], ["a"])):
        with pytest.raises(FileNotFoundError, match=rf"no network glyphs/conv4/protonet: give the folder.*{has}"):
            ask("glyphs/conv4/protonet")
    with pytest.raises(SystemExit, match=rf"no run glyphs/conv4/protonet\. .*{has}"):
        main(["evaluate", "glyphs/conv4/protonet"])
    with pytest.raises(SystemExit, match=rf"no network zoo/glyphs/conv4/protonet.*{has}"):
        main(["compare", "zoo/glyphs/conv4/protonet"])
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match=r"in the folder zoo of the deepbdc repository.*clone.*DEEPBDC_ZOO"):
        deepbdc.load_pretrained("glyphs/conv4/protonet")


def test_commands_take_a_name(zoo: Path, tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--data", str(tiny_data)]
    main(["evaluate", "glyphs/conv4/stl_deepbdc", *data, "-o", "found.json"])
    found, stored = load_result("found.json"), load_result(zoo / "glyphs" / "conv4" / "stl_deepbdc")
    for one, other in zip(found.results, stored.results, strict=True):
        assert np.array_equal(np.round(one.accuracies, 4), other.accuracies)
    main(["compare", "zoo/glyphs/conv4/stl_deepbdc", *data, "-o", "compared.png", "--quiet"])
    row = json.loads(Path("compared.json").read_text())["rows"][0]
    assert row["results"][0]["accuracies"] == found.results[0].accuracies.tolist()
    assert row["method"] == "stl_deepbdc"


def test_pictures_are_classified_with_a_network_of_the_zoo(zoo: Path, run: Path) -> None:
    random = np.random.default_rng(0)
    pictures = list(random.integers(0, 256, (6, 20, 20, 3), dtype=np.uint8))
    named = FewShotClassifier(backbone="glyphs/conv4/stl_deepbdc").fit(pictures, list("aabbcc"))
    by_path = FewShotClassifier(backbone=run).fit(pictures, list("aabbcc"))
    assert np.array_equal(named.predict_proba(pictures), by_path.predict_proba(pictures))
    again = FewShotClassifier.load(named.to_bytes())
    assert np.allclose(again.predict_proba(pictures), named.predict_proba(pictures), atol=1e-6)


def test_others_begin_with_the_first_stage_of_a_kept_run(run: Path, zoo: Path, tiny_data: Path, tmp_path: Path) -> None:
    kept = script("keep").keep_start(run, zoo)
    assert kept == zoo / "glyphs" / "conv4" / "stl_deepbdc" / "checkpoints" / "pretrain.safetensors"
    assert weight_files.load_header(kept)["data"] is None, "no path of the machine that trained it"
    recipe = dataclasses.replace(tiny.recipe("meta_deepbdc"), channels_last=True)
    train(recipe, tmp_path / "other", data=tiny_data, quiet=True, reuse=[zoo])
    lines = [json.loads(line) for line in (tmp_path / "other" / "log.jsonl").read_text().splitlines()]
    assert {line["stage"] for line in lines if line["kind"] == "epoch"} == {"meta"}


def test_what_may_not_be_kept(run: Path, zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = script("keep")
    monkeypatch.setattr(keep, "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match=r"may take 0\.001 MB together"):
        keep.keep_network(run, tmp_path / "other")
    with pytest.raises(ValueError, match="holds no finished run"):
        keep.keep_network(tmp_path, zoo)


def test_a_licence_note_has_the_facts_of_both_data_sets() -> None:
    note = script("keep").licence_note("miniimagenet->cub")
    for name in ("miniimagenet", "cub"):
        assert benchmarks.get(name).licence in note
    assert "nothing is known of its licence" in script("keep").licence_note("somewhere/mine.npz")


@pytest.mark.parametrize("folder", NETWORKS, ids=lambda folder: str(folder.relative_to(ROOT / "zoo")))
def test_every_network_of_the_zoo_is_whole(folder: Path) -> None:
    run, stored = load_run(folder), load_result(folder)
    assert {file.name for file in folder.iterdir()} >= KEPT_FILES
    assert {result.weights_fingerprint for result in stored.results} == {weights_fingerprint(run.method)}
    assert run.data is None
    assert (folder / "log.jsonl").stat().st_size < 100_000


def test_the_zoo_is_small() -> None:
    assert sum(file.stat().st_size for folder in NETWORKS for file in folder.rglob("*") if file.is_file()) < 25_000_000


def test_the_numbers_of_a_network_are_verified(
    zoo: Path, tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["paper", "verify", "zoo/glyphs/conv4/stl_deepbdc", "--data"]
    main([*given, str(tiny_data)])
    printed = capsys.readouterr().out
    assert printed.count(": the same\n") == 2
    assert "All 2 results are the same, episode by episode." in printed

    other = tiny.write_data(tmp_path / "other.npz", seed=1)
    with pytest.raises(SystemExit, match="2 of 2 results differ from the stored ones"):
        main([*given, str(other)])
    fingerprint = deepbdc.load_dataset(other, "test").fingerprint
    assert f"not those of the stored result: their fingerprint is {fingerprint}" in capsys.readouterr().out

    file = zoo / "glyphs" / "conv4" / "stl_deepbdc" / "result.json"
    content = json.loads(file.read_text())
    accuracies = content["results"][0]["accuracies"]
    accuracies[3] += 20 if accuracies[3] < 50 else -20
    file.write_text(json.dumps(content))
    with pytest.raises(SystemExit, match="1 of 2 results differ"):
        main([*given, str(tiny_data)])
    assert "DIFFERENT (1 of 20 episodes differ, by 20.00 points at most)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("trained", "tested", "folder"),
    [
        ("cub", "cub", "cub"),
        ("miniimagenet", "cub", "miniimagenet_to_cub"),
        ("miniimagenet->cub", "miniimagenet->cub", "miniimagenet_to_cub"),
        ("miniimagenet->cub", "cars", "miniimagenet_to_cars"),
        ("somewhere/letters.npz", "cars", "letters_to_cars"),
    ],
)
def test_the_folder_of_an_evaluation_names_both_data_sets(trained: str, tested: str, folder: str) -> None:
    content = {"results": [{"split": "test", "dataset": tested}]}
    assert script("keep")._tested_on(trained, Path("evaluation.json"), content) == folder


@pytest.fixture
def cars(tmp_path: Path) -> Path:
    """A folder of prepared benchmarks with a few small pictures as cars."""
    random = np.random.default_rng(0)
    for split, name in [("train", "a"), ("val", "b"), *(("test", f"model {number}") for number in range(4))]:
        folder = tmp_path / "data" / "cars" / split / name
        folder.mkdir(parents=True)
        for number in range(8):
            Image.fromarray(random.integers(0, 256, (18, 24, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    (tmp_path / "data" / "cars" / benchmarks.MARKER).write_text("{}")
    return tmp_path / "data"


def test_a_run_is_evaluated_and_kept_across_domains(
    run: Path, zoo: Path, cars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["evaluate", str(run), "--shot", "5", "--query", "3", "--episodes", "10"]
    main([*given, "--data", str(cars / "cars")])
    file = run / "evaluation-cars-test.json"
    first = load_result(file).results[0]
    assert (first.dataset, len(first.class_names)) == ("cars", 4)
    main([*given, "--data", "cars", "--root", str(cars)])
    assert np.array_equal(load_result(file).results[0].accuracies, first.accuracies)

    keep = script("keep")
    kept = keep.keep(file, tmp_path / "gallery")
    assert kept == tmp_path / "gallery" / "glyphs_to_cars" / "conv4" / "stl_deepbdc.json"
    content = json.loads(kept.read_text())
    assert content["trained_on"] == {"data": "glyphs", "classes": 6}
    assert str(tmp_path) not in kept.read_text(), "no path of this machine"
    assert load_result("glyphs_to_cars/conv4/stl_deepbdc").results[0].compare(first).difference == pytest.approx(
        0, abs=1e-4
    )
    capsys.readouterr()
    main(["paper", "verify", "zoo/glyphs/conv4/stl_deepbdc", "--data", str(cars / "cars")])
    assert "All 1 results are the same, episode by episode." in capsys.readouterr().out
    with pytest.raises(ValueError, match="give the folder of the run to keep its network"):
        keep.keep_network(file, zoo)

    main(["evaluate", "glyphs/conv4/stl_deepbdc", *given[2:], "--data", str(cars / "cars"), "-o", "elsewhere.json"])
    assert keep.keep(Path("elsewhere.json"), tmp_path / "other") == tmp_path / "other" / kept.relative_to(
        tmp_path / "gallery"
    )
    main([*given, "--data", str(cars / "cars"), "--split", "val", "--way", "1", "-o", str(run / "val.json")])
    with pytest.raises(ValueError, match="not of test classes"):
        keep.keep(run / "val.json", tmp_path / "gallery")
