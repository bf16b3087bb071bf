"""`deepbdc watch` as a real process."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deepbdc.cli import main
from tests.drawings import examples, save


def wait_until(condition: object, process: "subprocess.Popen[str]", seconds: int = 500) -> None:
    for _ in range(10 * seconds):
        if condition():  # type: ignore[operator]
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    raise AssertionError("nothing happened")


@pytest.mark.timeout(1200)  # it starts a program, which takes its time on a busy machine
def test_pictures_are_sorted_as_they_arrive_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    main(["fit", str(examples(tmp_path / "examples")), "-o", str(tmp_path / "shapes.safetensors")])
    inbox = tmp_path / "inbox"
    save(inbox / "there.png", "circle", 9)
    command = ["watch", "shapes.safetensors", "inbox", "--every", "0.2", "--csv", "a.csv", "--move-to", "sorted"]
    process = subprocess.Popen(
        [sys.executable, "-m", "deepbdc", *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # The tests may run in the background of a script, where Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # type: ignore[arg-type, return-value]
    )
    try:
        wait_until((tmp_path / "sorted/circle/there.png").exists, process)
        whole = save(tmp_path / "whole.png", "stripes", 10).read_bytes()
        with (inbox / "slow.png").open("wb") as file:  # a camera that writes slowly
            for part in (whole[:200], whole[200:]):
                file.write(part)
                file.flush()
                time.sleep(0.1)
        (inbox / "broken.jpg").write_text("no picture")
        wait_until((tmp_path / "sorted/stripes/slow.png").exists, process)
        wait_until(lambda: "broken" in (tmp_path / "a.csv").read_text(), process)
        os.kill(process.pid, signal.SIGINT)
        printed, told = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, told
    assert "Traceback" not in told
    assert "Moved 2 pictures to sorted." in printed
    assert printed.count("Could not be read: inbox/broken.jpg: not a readable image") == 1
    assert (tmp_path / "sorted/stripes/slow.png").read_bytes() == whole
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        assert sorted(row["label"] for row in csv.DictReader(file)) == ["", "circle", "stripes"]  # in any order


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["nowhere"], "there is no folder nowhere to watch"),
        (["inbox", "--every", "0"], "--every must be more than 0 seconds"),
        (["inbox", "--move-to", "inbox/sorted"], "is inside inbox"),
        (["inbox", "--csv", "inbox"], "inbox is a folder"),
    ],
)
def test_mistakes(options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("inbox").mkdir()
    with pytest.raises(SystemExit, match=message):
        main(["watch", "examples", *options])


def test_a_csv_of_other_classes_is_not_added_to(tmp_path: Path) -> None:
    from deepbdc.errors import UserError
    from deepbdc.report.classification import ClassifiedPicture, append_csv

    path = tmp_path / "a.csv"
    for number in (1, 2):
        with append_csv(path, ["a", "b"]) as add:
            add(ClassifiedPicture(Path(f"{number}.jpg"), "a", 0.6, "b", 0.4, (0.6, 0.4)))
    with path.open(newline="", encoding="utf-8") as file:
        assert [row["file"] for row in csv.DictReader(file)] == ["1.jpg", "2.jpg"]
    with pytest.raises(UserError, match="other columns than these results"), append_csv(path, ["a", "c"]):
        pass
