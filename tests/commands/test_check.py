"""`deepbdc check` and `deepbdc suggest`."""

import json
import shutil
from pathlib import Path

import pytest

from deepbdc.cli import main
from tests.data.official import tree
from tests.drawings import CLASSES, examples, save

Printed = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in an empty folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_check_names_everything_and_changes_nothing(capsys: Printed) -> None:
    examples(Path("examples"), count=5)
    save(Path("examples/circle/wrong.png"), "stripes", 30)
    shutil.copy("examples/triangle/0.png", "examples/triangle/again.png")
    shutil.copy("examples/triangle/3.png", "examples/stripes/other label.png")
    Path("examples/circle/empty.png").touch()
    Path("examples/stripes/text.jpg").write_text("no picture")
    save(Path("examples/lonely/1.png"), "noise", 1)
    before = tree(Path("examples"))
    with pytest.raises(SystemExit) as caught:
        main(["check", "examples", "--json", "found.json"])
    assert caught.value.code == 1
    printed = capsys.readouterr().out
    assert "examples/circle/empty.png: an empty file (0 bytes)" in printed
    assert "examples/stripes/text.jpg: not a readable image" in printed
    assert tree(Path("examples")) == before
    found = json.loads(Path("found.json").read_text())
    wrong = {one["example"]: one["suggestion"] for one in found["wrong_labels"]}
    assert wrong["circle/wrong.png"] == "stripes"
    assert set(wrong) <= {"circle/wrong.png", "stripes/other label.png"}
    identical = [(one["first"], one["second"]) for one in found["twins"] if one["identical"]]
    assert identical == [("stripes/other label.png", "triangle/3.png"), ("triangle/0.png", "triangle/again.png")]
    assert [one["same_label"] for one in found["twins"] if one["identical"]] == [False, True]
    assert printed.count("TWO LABELS") == 1
    assert found["few"] == [{"label": "lonely", "examples": 1}]
    assert len(found["broken"]) == 2
    assert "19 examples of 4 classes checked: 2 unreadable, " in printed
    assert "1 class with very few examples." in printed
    with pytest.raises(SystemExit, match=r"found\.json exists already"):
        main(["check", "examples", "--json", "found.json"])


def test_check_is_content_with_good_examples(capsys: Printed) -> None:
    examples(Path("examples"), count=3)
    main(["check", "examples"])
    printed = capsys.readouterr().out
    assert "9 examples of 3 classes checked: " in printed
    assert "probably wrong" not in printed


def test_suggest(capsys: Printed) -> None:
    examples(Path("examples"), count=1, classes=CLASSES[:2])
    for kind in CLASSES:
        for number in (10, 11):
            save(Path("photos") / f"{kind} {number}.png", kind, number)
    Path("photos/bad.jpg").write_text("no picture")
    main(["suggest", "examples", "photos", "-n", "3", "--json", "next.json"])
    printed = capsys.readouterr().out
    assert "photos/bad.jpg: not a readable image" in printed
    assert "Chosen from 6 pictures." in printed
    chosen = [one["picture"] for one in json.loads(Path("next.json").read_text())["suggestions"]]
    assert len(set(chosen)) == 3
    assert "triangle" in chosen[0]  # the class that has no example
    with pytest.raises(SystemExit, match="-n must be at least 1, got 0"):
        main(["suggest", "examples", "photos", "-n", "0"])
    with pytest.raises(SystemExit, match="like: deepbdc suggest examples photos"):
        main(["suggest", "examples"])
