"""`deepbdc undo`, after `deepbdc classify --move-to` and `--copy-to`."""

import json
import os
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


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("shapes")
    main(["fit", str(examples(folder / "examples")), "-o", str(folder / "shapes.safetensors")])
    return str(folder / "shapes.safetensors")


def photos() -> dict[str, object]:
    for kind in CLASSES:
        for number in (10, 11):
            save(Path("photos") / f"day {number}" / f"{kind}.png", kind, number)
    return tree(Path("photos"))


def test_a_move_is_taken_back_and_then_the_one_before(saved: str, capsys: Printed) -> None:
    before = photos()
    main(["classify", saved, "photos/day 10", "--move-to", "sorted"])
    assert "To take this back: deepbdc undo sorted" in capsys.readouterr().out
    main(["classify", saved, "photos/day 11", "--move-to", "sorted"])
    assert not tree(Path("photos"))
    assert Path("sorted/circle/circle (2).png").exists()

    sorted_before = tree(Path("sorted"))
    main(["undo", "sorted", "--dry-run"])
    assert "Dry run: nothing was changed. 3 pictures would go back." in capsys.readouterr().out
    assert tree(Path("sorted")) == sorted_before

    main(["undo", "sorted"])
    printed = capsys.readouterr().out
    assert "sorted/circle/circle (2).png -> photos/day 11/circle.png" in printed
    assert "3 pictures moved back." in printed
    assert Path("sorted/circle/circle.png").exists()
    main(["undo", "sorted"])
    assert tree(Path("photos")) == before
    assert [file.name.endswith(" undone.jsonl") for file in Path("sorted").iterdir()] == [True, True]
    with pytest.raises(SystemExit, match="there is nothing to undo in sorted"):
        main(["undo", "sorted"])


def test_corrected_pictures_go_back_too_and_changed_ones_stay(saved: str, capsys: Printed) -> None:
    photos()
    main(["classify", saved, "photos/day 10", "--move-to", "sorted"])
    Path("sorted/circle/circle.png").rename("sorted/stripes/circle.png")  # a person corrects the answer
    Path("sorted/triangle/triangle.png").write_bytes(b"edited")
    with pytest.raises(SystemExit) as caught:
        main(["undo", "sorted"])
    assert caught.value.code == 1
    printed = capsys.readouterr().out
    assert "sorted/triangle/triangle.png: changed since" in printed
    assert "2 pictures moved back." in printed
    assert sorted(file.name for file in Path("photos/day 10").iterdir()) == ["circle.png", "stripes.png"]
    assert Path("sorted/triangle/triangle.png").read_bytes() == b"edited"
    assert not Path("sorted/circle").exists()  # an empty folder is removed


def test_a_taken_name_is_not_overwritten(saved: str) -> None:
    photos()
    main(["classify", saved, "photos/day 10/circle.png", "--move-to", "sorted"])
    Path("photos/day 10/circle.png").write_text("another")
    main(["undo", "sorted"])
    assert Path("photos/day 10/circle.png").read_text() == "another"
    assert Path("photos/day 10/circle (2).png").exists()


def test_copies_are_removed_only_while_their_original_is_there(saved: str, capsys: Printed) -> None:
    before = photos()
    main(["classify", saved, "photos/day 10", "--copy-to", "sorted"])
    Path("photos/day 10/stripes.png").unlink()
    with pytest.raises(SystemExit):
        main(["undo", "sorted"])
    printed = capsys.readouterr().out
    assert "2 copies removed. The originals are where they were." in printed
    assert "so the copy stays" in printed
    assert [str(file) for file in Path("sorted").rglob("*.png")] == ["sorted/stripes/stripes.png"]
    assert len(tree(Path("photos"))) == len(before) - 1


@pytest.mark.parametrize("done", ["nothing", "half"])
def test_the_log_of_a_killed_program_can_be_undone(done: str, saved: str, capsys: Printed) -> None:
    """The log names a file before it is moved: then nothing may have happened to it, or it may be at both paths."""
    before = photos()
    main(["classify", saved, "photos/day 10/circle.png", "--move-to", "sorted"])
    Path("sorted/circle/circle.png").rename("photos/day 10/circle.png")
    if done == "half":
        os.link("photos/day 10/circle.png", "sorted/circle/circle.png")
    main(["undo", "sorted"])
    assert "0 pictures moved back. 1 was as before already." in capsys.readouterr().out
    assert tree(Path("photos")) == before
    assert not list(Path("sorted").rglob("*.png"))


def test_an_unfinished_last_line_is_skipped_and_other_files_are_refused(saved: str) -> None:
    photos()
    main(["classify", saved, "photos/day 10", "--move-to", "sorted"])
    (log,) = Path("sorted").glob("deepbdc-log *.jsonl")
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert [entry["to"] for entry in entries[1:]] == [
        "circle/circle.png",
        "stripes/stripes.png",
        "triangle/triangle.png",
    ]
    with log.open("a") as file:
        file.write('{"from": "/pho')
    Path("other.jsonl").write_text('{"action": "paint"}\n')
    Path("text.txt").write_text("hello")
    with pytest.raises(SystemExit, match=r"unknown action, 'paint'"):
        main(["undo", "other.jsonl"])
    with pytest.raises(SystemExit, match=r"text\.txt is not a log"):
        main(["undo", "text.txt"])
    with pytest.raises(SystemExit, match="did you mean sorted"):
        main(["undo", "sortd"])
    main(["undo", str(log)])
    assert len(tree(Path("photos"))) == 6


def test_results_are_never_silently_overwritten(saved: str) -> None:
    photos()
    Path("a.csv").write_text("precious")
    for arguments in (["--csv", "a.csv"], ["--json", "a.csv"]):
        with pytest.raises(SystemExit, match=r"a\.csv exists already: give another name, or --force to replace it"):
            main(["classify", saved, "photos", *arguments])
    assert Path("a.csv").read_text() == "precious"
    main(["classify", saved, "photos", "--csv", "a.csv", "--force", "--quiet"])
    assert "precious" not in Path("a.csv").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--csv", "a.txt/b.csv"], r"a\.txt cannot be a folder, because .*a\.txt is a file"),
        (["--move-to", "a.txt/sorted"], r"a\.txt/sorted cannot be a folder, because .*a\.txt is a file"),
        (["--move-to", "locked/sorted"], r"nothing can be written into .*locked"),
        (["--copy-to", "sorted"], r"the pictures need .* GB, but the disk of sorted has only"),
    ],
)
def test_targets_are_checked_before_any_picture(
    options: list[str], message: str, saved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos()
    Path("a.txt").touch()
    Path("locked").mkdir()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "locked" and access(path, mode))
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage())
    monkeypatch.setattr("deepbdc.FewShotClassifier.load", lambda *_, **__: pytest.fail("classified already"))
    with pytest.raises(SystemExit, match=message):
        main(["classify", saved, "photos", *options])


class Usage:
    """A full disk."""

    free = 10
