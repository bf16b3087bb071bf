"""Batch classification on Ray Data with two workers, as docs/scaling.md shows it."""

import re
from pathlib import Path
from typing import Any

import pytest

from deepbdc import FewShotClassifier
from deepbdc.errors import UserError
from tests.drawings import CLASSES, examples, save

ray = pytest.importorskip("ray")
parquet = pytest.importorskip("pyarrow.parquet")
PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"


@pytest.fixture(scope="module")
def cluster() -> Any:
    """Ray on this machine, with two processors."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_the_page_classifies_with_two_workers_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from deepbdc.batch import finished

    monkeypatch.chdir(tmp_path)
    FewShotClassifier().fit(str(examples(tmp_path / "examples"))).save("birds.safetensors")
    for number in range(8):
        save(Path("photos") / f"{number}.png", CLASSES[number % 3], 20 + number)
    Path("photos/bad.jpg").write_text("no picture")
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(compile(block, PAGE.name, "exec"), names)
    rows = {Path(row["file"]).name: row for row in parquet.read_table("answers").to_pylist()}
    assert {name: row["label"] for name, row in rows.items() if name != "bad.jpg"} == {
        f"{number}.png": CLASSES[number % 3] for number in range(8)
    }
    assert rows["bad.jpg"]["label"] == ""
    assert "not a readable image" in rows["bad.jpg"]["problem"]
    assert sum(rows["0.png"]["probabilities"]) == pytest.approx(1)

    # An interruption leaves a damaged part, and new pictures have come.
    first = sorted(Path("answers").glob("*.parquet"))[0]
    lost = set(parquet.read_table(first)["file"].to_pylist())
    first.write_bytes(first.read_bytes()[:100])
    save(Path("photos") / "new.png", "circle", 40)
    exec(compile(block, PAGE.name, "exec"), names)
    assert f"{len(lost) + 1} pictures classified" in capsys.readouterr().out
    assert len(finished(Path("answers"))) == 10
    assert len(parquet.read_table("answers")) == 10


def test_a_missing_classifier_is_named(tmp_path: Path) -> None:
    from deepbdc.batch import classify_files

    with pytest.raises(UserError, match="there is no saved classifier"):
        classify_files(tmp_path / "none.safetensors", ["a.jpg"], tmp_path / "out")
