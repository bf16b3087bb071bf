import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

import deepbdc
from deepbdc.evaluation import EvaluationResult, evaluate
from deepbdc.provenance import LEDGER, looks_of, origin, record_look
from tests.test_evaluation import DATA, method


@pytest.fixture(scope="module")
def results() -> list[EvaluationResult]:
    return [evaluate(method(), DATA, shot=shot, query=3, episodes=5) for shot in (1, 2)]


def lines(folder: Path) -> list[str]:
    return (folder / LEDGER).read_text(encoding="utf-8").splitlines()


def test_origin() -> None:
    found = origin()
    assert found["deepbdc"] == deepbdc.__version__
    written = datetime.fromisoformat(found["time"])
    assert written.tzinfo == UTC
    assert abs((datetime.now(UTC) - written).total_seconds()) < 3600


def test_new_looks_are_counted_and_repetitions_are_not(results: list[EvaluationResult], tmp_path: Path) -> None:
    assert record_look(tmp_path, "train", results) == 1
    assert record_look(tmp_path, "evaluate", results) == 1, "the same again"
    assert record_look(tmp_path, "evaluate", results[1:]) == 1, "a part of it"
    retrained = [replace(result, weights_fingerprint="other") for result in results]
    assert record_look(tmp_path, "compare", [results[0], retrained[1]]) == 2
    assert record_look(tmp_path, "compare", retrained) == 3
    other_data = [replace(result, data_fingerprint="other", episodes_fingerprint="other") for result in results]
    assert record_look(tmp_path, "evaluate", other_data) == 1
    assert record_look(tmp_path, "compare", results) == 3
    looks = [json.loads(line) for line in lines(tmp_path)]
    assert [look["command"] for look in looks[:4]] == ["train", "evaluate", "evaluate", "compare"]
    assert looks[0].keys() == looks[-1].keys()
    assert (looks[0]["shots"], looks[0]["split"], looks[0]["dataset"]) == ([1, 2], "test", "made")
    assert looks[0]["episodes_fingerprints"] == [result.episodes_fingerprint for result in results]
    assert looks[0]["data_fingerprint"] == DATA.fingerprint


def test_other_views_of_the_same_images_show_something_new(results: list[EvaluationResult], tmp_path: Path) -> None:
    record_look(tmp_path, "train", results)
    rooted = [replace(result, power=0.5) for result in results]
    assert record_look(tmp_path, "evaluate", rooted) == 2
    assert record_look(tmp_path, "evaluate", rooted) == 2, "the same again"
    assert record_look(tmp_path, "evaluate", [replace(result, crops=2) for result in results]) == 3


def test_older_ledgers_have_looks_as_usual(results: list[EvaluationResult], tmp_path: Path) -> None:
    record_look(tmp_path, "train", results)
    (look,) = map(json.loads, lines(tmp_path))
    del look["test_times"]
    (tmp_path / LEDGER).write_text(json.dumps(look) + "\n")
    assert record_look(tmp_path, "evaluate", results) == 1
    assert record_look(tmp_path, "evaluate", [replace(result, centre=True) for result in results]) == 2


def test_other_splits_are_no_looks(results: list[EvaluationResult], tmp_path: Path) -> None:
    assert record_look(tmp_path, "evaluate", [replace(results[0], split="val")]) is None
    assert record_look(tmp_path, "train", []) is None
    assert not list(tmp_path.iterdir())


def test_checkpoints_are_counted_with_their_run(results: list[EvaluationResult], tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    record_look(tmp_path, "train", results)
    stage = [replace(result, weights_fingerprint="stage") for result in results]
    assert record_look(tmp_path / "checkpoints", "evaluate", stage) == 2
    assert len(lines(tmp_path)) == 2


def test_an_incomplete_line_is_survived(results: list[EvaluationResult], tmp_path: Path) -> None:
    record_look(tmp_path, "train", results)
    whole = (tmp_path / LEDGER).read_bytes()
    (tmp_path / LEDGER).write_bytes(whole + whole[: len(whole) // 2])  # as a killed process could leave it
    retrained = [replace(result, weights_fingerprint="other") for result in results]
    assert record_look(tmp_path, "evaluate", retrained) == 2
    assert json.loads(lines(tmp_path)[-1])["command"] == "evaluate"
    assert record_look(tmp_path, "evaluate", results) == 2


def test_a_ledger_that_cannot_be_written_is_a_warning(results: list[EvaluationResult], tmp_path: Path) -> None:
    (tmp_path / LEDGER).mkdir()  # also fails for root, for whom no folder is read-only
    with pytest.warns(UserWarning, match=r"could not be written to .*looks\.jsonl"):
        assert record_look(tmp_path, "evaluate", results) == 1


def test_looks_are_read_without_adding_one(results: list[EvaluationResult], tmp_path: Path) -> None:
    assert looks_of(tmp_path, DATA.fingerprint) == 0
    record_look(tmp_path, "evaluate", results)
    assert [looks_of(tmp_path, DATA.fingerprint) for _ in range(2)] == [1, 1]
    assert looks_of(tmp_path, "other") == 0
