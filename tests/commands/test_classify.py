import csv
import io
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from deepbdc import FewShotClassifier, estimator
from deepbdc.cli import main
from deepbdc.commands import classify as command
from deepbdc.commands.examples import ExampleSource
from deepbdc.errors import Note
from deepbdc.report import classification
from tests.data.official import tree
from tests.drawings import CLASSES, examples, save

Printed = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in an empty folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of examples."""
    return str(examples(tmp_path_factory.mktemp("shapes") / "examples"))


@pytest.fixture(scope="module")
def saved(shapes: str) -> str:
    """A classifier that was fitted to these examples and saved."""
    path = Path(shapes).with_name("shapes.safetensors")
    main(["fit", shapes, "-o", str(path)])
    return str(path)


def photos() -> Path:
    """Save two pictures of each class in a folder named after it, one of no class, and one that cannot be read."""
    for kind in CLASSES:
        for number in (10, 11):
            save(Path("photos") / kind / f"{number}.png", kind, number)
    save(Path("photos") / "noise.png", "noise", 0)
    Path("photos/broken.jpg").write_text("no picture")
    return Path("photos")


def rows(text: str) -> dict[str, list[str]]:
    """The cells of each printed row, by its file."""
    lines = [line.split() for line in text.splitlines() if line.startswith("photos/")]
    return {cells[0]: cells[1:] for cells in lines}


def test_a_folder_of_examples_and_a_folder_of_pictures(shapes: str, capsys: Printed) -> None:
    main(["classify", shapes, str(photos()), "--truth", "--csv", "out/a.csv", "--json", "a.json"])
    printed = capsys.readouterr().out
    found = rows(printed)
    assert {name: cells[0] for name, cells in found.items() if "noise" not in name} == {
        f"photos/{kind}/{number}.png": kind for kind in CLASSES for number in (10, 11)
    }
    assert "Accuracy: 100.0 % (6 of 6 pictures), without 1 in other folders" in printed
    assert "photos/broken.jpg: not a readable image" in printed
    assert "1 picture looks like none of the classes. --reject labels it so." in printed

    with open("out/a.csv", newline="", encoding="utf-8") as file:
        table = {row["file"]: row for row in csv.DictReader(file)}
    content = json.loads(Path("a.json").read_text())
    results = {entry["file"]: entry for entry in content["results"]}
    assert content["classes"] == list(CLASSES)
    assert list(table) == list(results)
    assert len(results) == 8
    for name, entry in results.items():
        if name == "photos/broken.jpg":
            assert entry["probabilities"] is None
            assert "not a readable image" in table[name]["problem"]
            continue
        ranked = sorted(CLASSES, key=lambda kind: -entry["probabilities"][kind])
        assert sum(entry["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert [entry["label"], entry["runner_up"]] == ranked[:2]
        assert entry["probability"] == entry["probabilities"][ranked[0]]
        assert found[name][1] == f"{100 * entry['probability']:.1f}"
        assert float(table[name][f"probability of {ranked[1]}"]) == entry["runner_up_probability"]
    assert not list(Path().glob("**/.*"))


def test_none_of_these_is_called_the_same_everywhere() -> None:
    assert classification.NONE_OF_THESE == estimator.NONE_OF_THESE


def test_none_of_these(saved: str, capsys: Printed) -> None:
    main(["classify", saved, "photos/noise.png", str(photos() / "circle"), "--reject", "--json", "a.json"])
    printed = capsys.readouterr().out
    assert rows(printed)["photos/noise.png"][:4] == ["none", "of", "these", "-"]
    noise, circle, _ = json.loads(Path("a.json").read_text())["results"]
    assert (noise["label"], noise["probability"], noise["looks_like_none"]) == ("none of these", None, True)
    assert noise["runner_up_probability"] == max(noise["probabilities"].values())
    assert (circle["label"], circle["looks_like_none"]) == ("circle", False)


def test_sorting(saved: str, capsys: Printed) -> None:
    photos()
    save(Path("sorted/circle/10.png"), "stripes", 99)
    before = tree(Path())
    order = ["classify", saved, "photos", "--reject", "--move-to", "sorted"]
    main([*order, "--dry-run"])
    planned = capsys.readouterr().out
    assert tree(Path()) == before
    assert "Dry run: nothing was changed. 7 pictures would be moved to sorted." in planned
    main([*order, "--csv", "moved.csv"])
    moved = capsys.readouterr().out
    assert "Moved 7 pictures to sorted." in moved
    assert rows(moved) == rows(planned)
    expected = {
        "photos/broken.jpg": "photos/broken.jpg",
        "photos/noise.png": "sorted/none of these/noise.png",
        "sorted/circle/10.png": "sorted/circle/10.png",
        "photos/circle/10.png": "sorted/circle/10 (2).png",
        "photos/circle/11.png": "sorted/circle/11.png",
    } | {f"photos/{kind}/{n}.png": f"sorted/{kind}/{n}.png" for kind in ("stripes", "triangle") for n in (10, 11)}
    left = {
        name: content for name, content in tree(Path()).items() if name != "moved.csv" and "deepbdc-log" not in name
    }
    assert left == {new: before[old] for old, new in expected.items()}
    assert all(new in planned for old, new in expected.items() if old not in ("photos/broken.jpg", new))
    with open("moved.csv", newline="", encoding="utf-8") as file:
        places = {row["file"]: row["place"] for row in csv.DictReader(file)}
    assert places["photos/circle/10.png"] == "sorted/circle/10 (2).png"
    assert places["photos/broken.jpg"] == ""


def test_copies_leave_everything_where_it_is(saved: str, capsys: Printed) -> None:
    photos()
    before = tree(Path())
    main(["classify", saved, "photos/circle", "photos/noise.png", "--copy-to", "sorted", "--quiet"])
    printed = capsys.readouterr().out
    assert "Copied 3 pictures to sorted." in printed
    assert not rows(printed)
    after = tree(Path())
    assert {name: after[name] for name in before} == before
    assert after["sorted/circle/11.png"] == before["photos/circle/11.png"]
    assert len(after) == len(before) + 4  # with the log
    main(["classify", saved, "photos/circle", "photos/noise.png", "--copy-to", "sorted", "--quiet"])
    assert "Copied 0 pictures to sorted. 3 were there already." in capsys.readouterr().out
    assert tree(Path()) == after


def test_a_picture_that_cannot_be_moved_stays_and_is_named(saved: str, capsys: Printed) -> None:
    photos()
    Path("sorted").mkdir()
    Path("sorted/circle").write_text("in the way")
    with pytest.raises(SystemExit) as caught:
        main(["classify", saved, "photos/circle", "photos/stripes", "--move-to", "sorted"])
    assert caught.value.code == 1
    printed = capsys.readouterr().out
    assert "photos/circle/10.png: sorted/circle is a file, but a folder of that name is needed" in printed
    assert "Moved 2 pictures" in printed
    assert Path("photos/circle/10.png").exists()
    assert Path("sorted/stripes/10.png").exists()


def test_examples_are_never_sorted_away(capsys: Printed) -> None:
    examples(Path("photos/known"))
    new = save(Path("photos/new.png"), "circle", 20)
    Path("photos/known/circle/link.png").symlink_to("../../store/21.png")
    save(Path("photos/store/21.png"), "circle", 21)
    before = tree(Path("photos/known"))
    main(["classify", "photos/known", "photos", "--move-to", "sorted"])
    told = capsys.readouterr()
    assert "10 pictures are examples in photos/known, skipped" in " ".join(told.err.split())
    assert tree(Path("photos/known")) == before
    assert not new.exists()
    assert Path("photos/store/21.png").exists()
    assert Path("sorted/circle/new.png").exists()
    with pytest.raises(SystemExit, match="all pictures in photos/known are examples"):
        main(["classify", "photos/known", "photos/known"])


def test_a_note_says_that_there_is_only_one_class(capsys: Printed) -> None:
    examples(Path("examples"), classes=("circle",))
    photos()
    main(["classify", "examples", "photos/stripes/10.png"])
    told = capsys.readouterr()
    assert "only one class, so every picture is labelled circle unless you give --reject" in " ".join(told.err.split())
    assert rows(told.out)["photos/stripes/10.png"] == ["circle", "100.0", "%"]
    main(["classify", "examples", "photos/noise.png", "--reject"])
    told = capsys.readouterr()
    assert "only one class" not in told.err
    assert rows(told.out)["photos/noise.png"][0] == "none"


def test_each_unreadable_picture_is_listed_with_its_own_error(saved: str, capsys: Printed) -> None:
    for number in range(9):
        save(Path(f"photos/{number}.png"), "circle", number)
    for number in (0, 3, 4, 8):
        Path(f"photos/{number}.png").write_text("no picture")
    main(["classify", saved, "photos", "--json", "a.json", "--batch-size", "3"])
    results = json.loads(Path("a.json").read_text())["results"]
    assert [entry["file"] for entry in results] == [f"photos/{number}.png" for number in range(9)]
    bad = [entry for entry in results if entry["label"] is None]
    assert [entry["problem"].partition(":")[0] for entry in bad] == [f"photos/{number}.png" for number in (0, 3, 4, 8)]
    assert len(rows(capsys.readouterr().out)) == 5


def test_nothing_readable_is_a_failure(saved: str, capsys: Printed) -> None:
    for number in range(12):
        Path(f"{number}.jpg").write_text("no picture")
    with pytest.raises(SystemExit) as caught:
        main(["classify", saved, ".", "--csv", "a.csv"])
    assert caught.value.code == 1
    printed = capsys.readouterr().out
    assert "Could not be read; left where they are (12):" in printed
    assert "... and 2 more" in printed
    assert len(Path("a.csv").read_text().splitlines()) == 13


def test_control_characters_in_file_names_do_no_harm(saved: str, capsys: Printed) -> None:
    odd = os.fsdecode(b"photos/\xff [bold]\x1b[2J\n.png")
    save(Path(odd), "circle", 5)
    main(["classify", saved, "photos", "--csv", "a.csv", "--json", "a.json", "--move-to", "sorted"])
    printed = capsys.readouterr().out
    assert "photos/� [bold]�[2J�.png" in printed
    assert "\x1b" not in printed
    assert json.loads(Path("a.json").read_text())["results"][0]["file"] == odd
    with open("a.csv", newline="", encoding="utf-8", errors="surrogateescape") as file:
        assert next(csv.DictReader(file))["file"] == odd
    assert not os.path.exists(odd)
    assert os.path.exists(odd.replace("photos", "sorted/circle"))


def test_on_a_terminal_rows_fit_the_screen(saved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Path("photos") / ("very long name " * 5) / "10.png"
    save(place, "circle", 10)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=70, color_system=None)
    fitted = FewShotClassifier.load(saved)
    tally = command._classify(fitted, [place], console, None, reject=False, quiet=False, csv=None, json=None)
    assert tally.labels == {"circle": 1}
    lines = screen.getvalue().replace("\x1b[2K", "").splitlines()  # the bar wipes its line before a row comes
    shown = [line for line in lines if line.rstrip().endswith("%") and "10.png" in line]
    assert len(shown) == 1
    assert len(shown[0]) <= 70
    assert shown[0].startswith("…")
    assert "Classifying" in screen.getvalue()  # the bar


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C interrupts, even if the tests run in the background of a script, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_keeps_the_finished_work(saved: str, capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    photos()
    place = command.place_result

    def interrupted_after_one(sorter: object, result: object, folders: object) -> object:
        monkeypatch.setattr(command, "place_result", interrupt)
        return place(sorter, result, folders)  # type: ignore[arg-type]

    def interrupt(*arguments: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(5)

    monkeypatch.setattr(command, "place_result", interrupted_after_one)
    with pytest.raises(SystemExit) as caught:
        main(["classify", saved, "photos/circle", "--move-to", "sorted", "--csv", "a.csv"])
    assert caught.value.code == 130
    told = capsys.readouterr()
    assert "interrupted after 1 of 2 pictures. Finished work is kept." in told.err
    assert "Moved 1 picture to sorted." in told.out
    assert Path("sorted/circle/10.png").exists()
    assert Path("photos/circle/11.png").exists()
    assert len(Path("a.csv").read_text().splitlines()) == 2


def test_the_truth_names_mistakes(saved: str, capsys: Printed) -> None:
    save(Path("photos/circle/1.png"), "circle", 30)
    for number in (2, 3):
        save(Path(f"photos/circle/{number}.png"), "stripes", 30 + number)
    main(["classify", saved, "photos", "--truth"])
    printed = capsys.readouterr().out
    assert "Accuracy: 33.3 % (1 of 3 pictures)" in printed
    mistakes = printed.partition("Most frequent mistakes")[2]
    assert [line.strip("│ ").split() for line in mistakes.splitlines() if "stripes" in line] == [
        ["circle", "│", "stripes", "│", "2"]
    ]
    main(["classify", saved, str(save(Path("elsewhere/1.png"), "circle", 1)), "--truth"])
    assert "Accuracy: unknown, because no picture is in a folder that is named after a class" in capsys.readouterr().out


def test_settings_reach_the_estimator(shapes: str, saved: str) -> None:
    settings = {"pool": "average", "classifier": "prototype", "C": 2.0, "size": 96, "batch_size": 5}
    fitted = ExampleSource.find(Path(shapes), settings).classifier()
    assert {name: fitted.get_params()[name] for name in settings} == settings
    assert ExampleSource.find(Path(saved), {"batch_size": 7}).classifier().batch_size == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["classify", "EXAMPLES"],
            "no pictures are given. Give files or folders, like: deepbdc classify examples photos",
        ),
        (["classify", "EXAMPLES", "photo"], "there is no file or folder photo: did you mean photos?"),
        (["classify", "EXAMPLES", "empty"], "there is no picture in empty. 1 file has no suffix of a picture"),
        (["classify", "photo", "photos"], "there is no file or folder photo: did you mean photos?"),
        (["classify", "photos/flat/1.png", "photos"], "is neither a folder nor a classifier saved by 'deepbdc fit'"),
        (["classify", "empty", "photos"], "empty has no folder for each class"),
        (["classify", "photos/flat", "photos"], "photos/flat has no folder for each class, but 1 picture lies in it"),
        (["classify", "hollow", "photos"], "hollow has class folders without pictures: nothing"),
        (["classify", "EXAMPLES", "photos", "--move-to", "photos/sorted"], "the target photos/sorted is inside photos"),
        (["classify", "hollow", "photos", "--copy-to", "hollow/x"], "is inside the examples hollow"),
        (["classify", "EXAMPLES", "photos", "--move-to", "a", "--copy-to", "b"], "not both"),
        (["classify", "EXAMPLES", "photos", "--move-to", "photos/flat/1.png"], "needs a folder, but photos/flat/1.png"),
        (["classify", "EXAMPLES", "photos", "--dry-run"], "give one of them"),
        (["classify", "EXAMPLES", "photos", "--csv", "empty"], "empty is a folder: give a file for the results"),
        (["classify", "EXAMPLES", "photos", "--csv", "a", "--json", "./a"], "--csv and --json must be different files"),
        (["classify", "EXAMPLES", "photos", "--pool", "bcd"], "pool must be one of bdc, average"),
        (
            ["classify", "EXAMPLES", "photos", "--size", "7"],
            "size must be a whole number of pixels from 32 to 2048, got 7",
        ),
        (
            ["classify", "EXAMPLES", "photos", "--classifier", "svm"],
            "is called 'svm' (an SVM votes and gives no probabilities). Known: logistic, prototype, softmax.",
        ),
        (["classify", "EXAMPLES", "photos", "--backbone", "efficientnet"], "did you mean 'efficientnet_lite0'"),
        (["classify", "SAVED", "photos", "--pool", "bdc", "--C", "1"], "has its own settings: omit --pool, --C"),
        (["classify", "bad.safetensors", "photos"], "bad.safetensors"),
        (["classify", "EXAMPLES", "photos", "--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["classify", "EXAMPLES", "photos", "--device", "gpu"], "--device gpu cannot be used on this computer"),
        (["explain", "EXAMPLES", "photos/flat/1.png", "--neighbours", "-1"], "--neighbours must be at least 0, got -1"),
        (["fit", "EXAMPLES"], "deepbdc fit EXAMPLES -o birds.safetensors"),
        (["fit", "EXAMPLES", "-o", "birds.pt"], "-o must end in .safetensors, got 'birds.pt'"),
        (["fit", "EXAMPLES", "-o", "a.safetensors", "--onnx", "a.safetensors"], "--onnx must end in .onnx"),
        (
            ["fit", "EXAMPLES", "-o", "bad.safetensors"],
            "bad.safetensors exists already: give another name, or --force to replace it",
        ),
        (["fit", "SAVED", "-o", "a.safetensors"], "is a saved classifier already"),
        (["fit", "broken", "-o", "a.safetensors"], "broken/circle/1.png: not a readable image"),
        (["explain", "EXAMPLES", "photos/flat/2.png"], "there is no file or folder photos/flat/2.png: did you mean"),
        (["explain", "EXAMPLES", "photos"], "photos is a folder: give one picture"),
        (["explain", "EXAMPLES", "photos/flat/1.png", "-o", "why.txt"], "must end in .png"),
        (["explain", "SAVED", "photos/flat/1.png", "--label", "cirle"], "did you mean 'circle'"),
    ],
)
def test_mistakes_end_with_a_message(arguments: list[str], message: str, shapes: str, saved: str) -> None:
    save(Path("photos/flat/1.png"), "circle", 1)
    Path("empty").mkdir()
    Path("empty/notes.txt").touch()
    Path("hollow/nothing").mkdir(parents=True)
    Path("broken/circle").mkdir(parents=True)
    Path("broken/circle/1.png").write_text("no picture")
    Path("bad.safetensors").write_text("nothing")
    before = tree(Path())
    given = [{"EXAMPLES": shapes, "SAVED": saved}.get(argument, argument) for argument in arguments]
    with pytest.raises(SystemExit) as caught:
        main(given)
    assert str(caught.value.code).startswith(f"deepbdc {arguments[0]}: ")
    assert message in str(caught.value.code)
    assert tree(Path()) == before


def test_fit(shapes: str, capsys: Printed) -> None:
    photos()
    main(["fit", shapes, "-o", "deep/shapes.safetensors"])
    printed = capsys.readouterr().out
    assert "3 classes, 9 pictures: circle (3), stripes (3), triangle (3)" in printed
    assert (
        "Estimated accuracy: 100 % (9 of 9 examples are recognised from the others, in 3-fold cross-validation)"
        in printed
    )
    assert "Saved: deep/shapes.safetensors" in printed
    fitted = FewShotClassifier.load("deep/shapes.safetensors")
    assert fitted.examples_[0].name == "circle/0.png"  # relative to the folder of examples
    assert fitted.predict(["photos/stripes/10.png"]).tolist() == ["stripes"]
    main(["fit", shapes, "--output=deep/shapes.safetensors", "--force", "--pool", "average"])
    assert FewShotClassifier.load("deep/shapes.safetensors").pool == "average"


def test_fit_names_all_broken_pictures_at_once(shapes: str) -> None:
    examples(Path("few"))
    Path("few/circle/0.png").write_bytes(b"")
    Path("few/stripes/1.png").write_text("no picture")
    Path("few/stripes/2.png").unlink()
    os.mkfifo("few/stripes/2.png")  # not a file, so that it is no example, and nothing waits for it
    with pytest.raises(SystemExit) as caught:
        main(["fit", "few", "-o", "a.safetensors"])
    told = str(caught.value.code).splitlines()
    assert told == [
        "deepbdc fit: 2 pictures cannot be used:",
        "  few/circle/0.png: an empty file (0 bytes)",
        "  few/stripes/1.png: not a readable image (unknown format)",
    ]


def test_equal_examples_are_told_once() -> None:
    examples(Path("few"), count=4)
    for number in range(5):
        save(Path(f"few/circle/again {number}.png"), "circle", 0)
    with pytest.warns(Note) as told:
        main(["fit", "few", "-o", "a.safetensors"])
    (message,) = (str(warning.message) for warning in told if warning.category is Note)
    assert message.count("is the same picture as") == 3
    assert message.endswith("and 2 more like these")


def test_rows_with_a_new_place_fit_80_columns(saved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [save(Path("photos") / f"a rather long name of a picture {number}.png", "circle", 10) for number in (1, 2)]
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    monkeypatch.setenv("COLUMNS", "80")
    for place in (None, "moved to"):
        rows = classification.Rows(files, [f"a long name of a class {number}" for number in range(3)], 80, place)
        for file in files:
            result = classification.ClassifiedPicture(
                file, "a long name of a class 1", 0.5, "none", 0.3, (0.5, 0.3, 0.2), place=Path("sorted/x") / file.name
            )
            for line in (rows.head(), rows.row(result if place else replace(result, place=None))):
                assert line.cell_len <= 80, line.plain
                console.print(line, soft_wrap=True)
    assert screen.getvalue().count("picture 2.png") == 3  # the name, and the name at the new place


def test_fit_says_when_there_is_no_estimate(capsys: Printed) -> None:
    examples(Path("single"), classes=("circle",))
    main(["fit", "single", "-o", "a.safetensors"])
    assert "There is only one class" in capsys.readouterr().out
    examples(Path("few"), count=1)
    save(Path("few/outside.png"), "circle", 1)
    main(["fit", "few", "-o", "b.safetensors"])
    told = capsys.readouterr()
    assert "it needs two pictures of each class, and circle has one" in told.out
    assert "1 picture in few is not in a class folder and is ignored" in " ".join(told.err.split())


def test_explain(saved: str, capsys: Printed) -> None:
    photos()
    main(["explain", saved, "photos/circle/10.png", "-o", "out/why.png"])
    printed = capsys.readouterr().out
    assert "photos/circle/10.png: circle, " in printed
    nearest = printed.partition("Most similar examples")[2]
    assert len(re.findall(r"│ \w+/\d\.png +│ \w+ +│ +-?\d\.\d{3} │", nearest)) == 5
    assert "Explanation: out/why.png. Red parts speak for circle, blue parts against it." in printed
    with Image.open("out/why.png") as picture:
        assert picture.width > 500
    main(["explain", saved, "photos/noise.png", "--label", "circle", "--neighbours", "2"])
    printed = capsys.readouterr().out
    assert "It looks like none of the classes" in printed
    assert "The heat map shows what speaks for circle, as you asked." in printed
    assert printed.partition("Most similar examples")[2].count(".png") == 2
