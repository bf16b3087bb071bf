import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import deepbdc
from deepbdc.evaluation import evaluate
from deepbdc.gallery import find_result, load_result
from deepbdc.report.evaluation import EvaluationRequest, write_results
from tests.scripts import script
from tests.test_evaluation import DATA, method

ROOT = Path(__file__).parent.parent
GALLERY = sorted((ROOT / "gallery").glob("*/*/*.json"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run and a gallery in it, as the current one, and no repository around the package."""
    results = [evaluate(method(), DATA, shot=shot, query=3, episodes=20) for shot in (1, 2)]
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "gallery" / "made" / "conv4").mkdir(parents=True)
    content = {
        "deepbdc": "1.2",
        "time": "2026-01-01T00:00:00+00:00",
        "method": "protonet",
        "training_seed": 3,
        "looks": 2,
    }
    written = json.dumps({**content, "results": [result.as_json() for result in results]})
    (tmp_path / "runs" / "mine" / "result.json").write_text(written)
    (tmp_path / "gallery" / "made" / "conv4" / "adm+dn4.json").write_text(written)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("deepbdc._files._REPOSITORY", tmp_path / "elsewhere")
    return tmp_path


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("runs/mine", "mine"),
        ("runs/mine/result.json", "mine"),
        ("gallery/made/conv4/adm+dn4.json", "adm+dn4"),
        ("gallery/made/conv4/adm+dn4", "adm+dn4"),
        ("made/conv4/adm+dn4", "adm+dn4"),
    ],
)
def test_a_result_is_found_by_folder_file_and_name(folder: Path, given: str, name: str) -> None:
    found = deepbdc.load_result(given)
    assert found.name == name
    assert found.path.resolve().is_relative_to(folder.resolve())
    assert (found.method, found.training_seed, found.looks, found.version) == ("protonet", 3, 2, "1.2")
    assert [result.shot for result in found.results] == [1, 2]
    assert found.results[0].ci95_classes is not None


def test_the_gallery_of_the_repository_is_found_from_everywhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepbdc._files._REPOSITORY", folder)
    (folder / "empty").mkdir()
    monkeypatch.chdir(folder / "empty")
    assert load_result("gallery/made/conv4/adm+dn4").name == "adm+dn4"


def test_results_of_evaluate_are_read(folder: Path) -> None:
    result = evaluate(method(), DATA, query=3, episodes=5)
    write_results(folder / "evaluation-x.json", EvaluationRequest("x", "made"), [result], looks=None)
    found = load_result("evaluation-x.json")
    assert (found.name, found.version, found.method) == ("evaluation-x", deepbdc.__version__, None)
    assert np.array_equal(found.results[0].accuracies, result.accuracies)


def test_mistakes(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no result made/conv4/adm: .* The gallery has made/conv4/adm\+dn4\."):
        load_result("made/conv4/adm")
    (folder / "runs" / "unfinished").mkdir()
    assert find_result("runs/unfinished") is None
    for text in ("{", "{}", "[1]", '{"results": [{"way": 5}]}'):
        (folder / "broken.json").write_text(text)
        with pytest.raises(ValueError, match=r"broken\.json is damaged or is not a file of results"):
            load_result("broken.json")


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_every_result_of_the_gallery_is_whole(path: Path) -> None:
    kept = load_result(path)
    assert kept.method is not None
    assert path.with_name(f"{path.stem}.yaml").is_file()
    assert path.stat().st_size < 150_000
    content = json.loads(path.read_text(encoding="utf-8"))
    for result, stored in zip(kept.results, content["results"], strict=True):
        assert result.classes is not None
        assert result.classes.shape == (len(result.accuracies), result.way)
        data = result.dataset.replace("->", "_to_")
        assert path.parent.parent.name == data or path.parent.parent.name.endswith(f"_to_{data}")
        assert (result.mean, result.ci95) == pytest.approx((stored["mean"], stored["ci95"]), abs=1e-4)
        assert result.ci95_classes == pytest.approx(stored["ci95_classes"], abs=1e-3)
        asked = result.query * len(result.classes[0])
        counts = result.accuracies * asked / 100
        assert np.abs(counts - counts.round()).max() < 1e-3, "rounding has lost nothing"


def test_a_finished_run_is_kept(folder: Path) -> None:
    recipe = "method: protonet\ndata: made\nbackbone:\n  name: conv4\nseed: 7\n"
    (folder / "runs" / "mine" / "recipe.yaml").write_text(recipe)
    (folder / "runs" / "mine" / "curve.png").write_bytes(b"picture")
    original = load_result("runs/mine")
    written = script("keep").keep(folder / "runs" / "mine", folder / "gallery")
    assert written == folder / "gallery" / "made" / "conv4" / "mine.json"
    assert written.with_suffix(".yaml").read_text() == recipe
    assert written.with_suffix(".png").read_bytes() == b"picture"
    kept = load_result("made/conv4/mine")
    assert (kept.training_seed, kept.version, kept.looks) == (7, "1.2", 2)
    for one, other in zip(kept.results, original.results, strict=True):
        assert one.accuracies == pytest.approx(other.accuracies, abs=1e-4)
        assert one.compare(other).difference == pytest.approx(0, abs=1e-4)
    assert len(written.read_text()) < len(original.path.read_text())


def test_classes_that_an_old_result_lacks_are_drawn_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = script("keep")
    run = folder / "runs" / "mine"
    (run / "recipe.yaml").write_text("method: protonet\ndata: made\nbackbone: {name: conv4}\n")
    content = json.loads((run / "result.json").read_text())
    expected = [result.pop("classes") for result in content["results"]]
    (run / "result.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="does not say the classes of its episodes: give --data"):
        keep.keep(run, folder / "gallery")
    monkeypatch.setattr(keep, "find_data", lambda name, given: (name, given))
    monkeypatch.setattr(keep, "load_dataset", lambda *_, **__: DATA)
    written = keep.keep(run, folder / "gallery", data=folder)
    assert [result["classes"] for result in json.loads(written.read_text())["results"]] == expected
    content["results"][0]["episodes_fingerprint"] = "other"
    (run / "result.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="other episodes than those of"):
        keep.keep(run, folder / "gallery", data=folder)
    shutil.rmtree(run)
    with pytest.raises(ValueError, match="no finished run"):
        keep.keep(run, folder / "gallery")
