import json
import re
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

from deepbdc.training.curve import _curves, draw_curve
from deepbdc.training.log import EpochRecord, NullLog, RunLog, StepRecord, truncate_log

STAGES = ("pretrain", "distill-1", "meta")
STEPS = 4


def step(stage: str, epoch: int, number: int, **changes: Any) -> StepRecord:
    record = StepRecord(
        stage, epoch, number, STEPS, 3 / (epoch + number / STEPS), 40.0, 0.05, 912.4, (epoch - 1) * STEPS + number, 3
    )
    return replace(record, **changes)


def epoch(stage: str, number: int, **changes: Any) -> EpochRecord:
    record = EpochRecord(stage, number, 3, 2.412, 38.06, 50.0 + number, 0.8, number, {"t": 0.01}, number * STEPS)
    return replace(record, **changes)


def write_stage(log: NullLog, stage: str, start: tuple[int, int] = (1, 0), stop: tuple[int, int] = (99, 0)) -> None:
    """What a stage logs from a position to another, both as (epoch, steps done)."""
    for number in range(start[0], 4):
        for done in (2, 4):
            if start < (number, done) <= stop:
                log.step(step(stage, number, done))
        if (number, STEPS) < stop:
            log.epoch(epoch(stage, number))
    if stop > (4, 0):
        log.stage(stage, 2)


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def scalars(folder: Path, stage: str, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard" / stage))
    events.Reload()
    return [(event.step, round(event.value, 4)) for event in events.Scalars(f"{stage}/{name}")]


def test_lines_are_complete_at_once(tmp_path: Path) -> None:
    log = RunLog(tmp_path, quiet=True)
    log.step(step("pretrain", 1, 2, seconds=12.3))
    assert read(tmp_path) == [
        {
            "kind": "step",
            "stage": "pretrain",
            "epoch": 1,
            "step": 2,
            "steps": 4,
            "loss": 2.0,
            "accuracy": 40.0,
            "lr": 0.05,
            "images_per_second": 912.4,
            "seconds": 12.3,
        }
    ]
    log.epoch(epoch("pretrain", 1, seconds=20.0, val_accuracy=None, val_ci95=None, loss=float("nan")))
    log.stage("pretrain", 1)
    assert read(tmp_path)[1:] == [
        {
            "kind": "epoch",
            "stage": "pretrain",
            "epoch": 1,
            "epochs": 3,
            "loss": None,
            "accuracy": 38.06,
            "val_accuracy": None,
            "val_ci95": None,
            "best_epoch": 1,
            "t": 0.01,
            "seconds": 20.0,
        },
        {"kind": "stage", "stage": "pretrain", "epoch": 1},
    ]
    log.close()
    log.close()


def test_seconds_go_on_where_they_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 107.5])
    monkeypatch.setattr("deepbdc.training.log.time.monotonic", lambda: next(clock))
    with RunLog(tmp_path, quiet=True, resume_from=60.0) as log:
        log.step(step("pretrain", 1, 2))
    assert read(tmp_path)[0]["seconds"] == 67.5


def test_tensorboard(tmp_path: Path) -> None:
    with RunLog(tmp_path, quiet=True) as log:
        write_stage(log, "pretrain")
        log.epoch(epoch("meta", 1, numbers={}))
    assert scalars(tmp_path, "pretrain", "val_accuracy") == [(4, 51.0), (8, 52.0), (12, 53.0)]
    assert scalars(tmp_path, "pretrain", "loss")[:2] == [(2, 2.0), (4, 1.5)]
    assert {step for step, _ in scalars(tmp_path, "pretrain", "t")} == {4, 8, 12}
    for name in ("accuracy", "lr", "images_per_second"):
        assert len(scalars(tmp_path, "pretrain", name)) == 6
    with pytest.raises(KeyError):
        scalars(tmp_path, "meta", "t")


def test_a_new_run_begins_a_new_log(tmp_path: Path) -> None:
    for loss in (1.0, 2.0):
        with RunLog(tmp_path, quiet=True) as log:
            log.step(step("pretrain", 1, 2, loss=loss))
    assert [line["loss"] for line in read(tmp_path)] == [2.0]
    assert scalars(tmp_path, "pretrain", "loss") == [(2, 2.0)]


CHECKPOINTS = [
    (stage, *place) for stage in STAGES for place in ((1, 0), (1, 1), (1, 2), (1, 4), (2, 0), (3, 3), (4, 0))
]


@pytest.mark.parametrize(("stage", "at_epoch", "at_step"), CHECKPOINTS)
@pytest.mark.parametrize("ahead", [(1, 2), (2, 3), (3, 4), (99, 0)])
def test_a_resumed_log_equals_an_uninterrupted_one(
    stage: str, at_epoch: int, at_step: int, ahead: tuple[int, int], tmp_path: Path
) -> None:
    """Interrupted some way after a checkpoint, also in the next stage, and in the middle of a line."""
    position = (at_epoch, at_step)
    with RunLog(tmp_path / "whole", quiet=True) as log:
        for each in STAGES:
            write_stage(log, each)
    folder = tmp_path / "resumed"
    with RunLog(folder, quiet=True) as log:
        for each in STAGES[: STAGES.index(stage)]:
            write_stage(log, each)
        write_stage(log, stage, stop=max(ahead, position))
        if ahead == (99, 0) and stage != "meta":
            write_stage(log, STAGES[STAGES.index(stage) + 1], stop=(2, 2))
    with (folder / "log.jsonl").open("a") as file:
        file.write('{"kind": "step", "stage": "pretr')
    truncate_log(folder / "log.jsonl", STAGES, stage, *position)
    with RunLog(folder, quiet=True, resume_from=5.0) as log:
        write_stage(log, stage, start=position)
        for each in STAGES[STAGES.index(stage) + 1 :]:
            write_stage(log, each)

    def untimed(folder: Path) -> list[dict[str, Any]]:
        return [{key: value for key, value in line.items() if key != "seconds"} for line in read(folder)]

    assert untimed(folder) == untimed(tmp_path / "whole")


def test_tensorboard_of_a_resumed_run(tmp_path: Path) -> None:
    """What was written after the checkpoint is taken back, of that stage and not of the ones before."""
    with RunLog(tmp_path, quiet=True) as log:
        write_stage(log, "pretrain")
        for record in (
            step("meta", 1, 2),
            step("meta", 1, 4),
            step("meta", 2, 2, loss=9.0),
            step("meta", 2, 4, loss=9.0),
        ):
            log.step(record)
    with RunLog(tmp_path, quiet=True, resume_from=5.0) as log:
        write_stage(log, "meta", start=(1, 4))
    assert [place for place, _ in scalars(tmp_path, "pretrain", "loss")] == [2, 4, 6, 8, 10, 12]
    assert [place for place, _ in scalars(tmp_path, "meta", "loss")] == [2, 4, 6, 8, 10, 12]
    assert max(loss for _, loss in scalars(tmp_path, "meta", "loss")) < 9


def test_truncate_leaves_whole_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.jsonl"
    truncate_log(path, STAGES, "pretrain", 1, 0)
    assert not path.exists()
    with RunLog(tmp_path, quiet=True) as log:
        write_stage(log, "pretrain")
    before = path.read_text()
    with pytest.raises(ValueError, match="a stage 'mata', but the run has pretrain, distill-1, meta"):
        truncate_log(path, STAGES, "mata", 1, 0)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space"):
        truncate_log(path, STAGES, "pretrain", 1, 0)
    assert path.read_text() == before
    assert {file.name for file in tmp_path.iterdir()} == {"log.jsonl", "tensorboard"}


def printed(terminal: bool, folder: Path, width: int = 200, quiet: bool = False, **options: Any) -> str:
    shown: Any = {"force_terminal": terminal, "force_interactive": terminal, "color_system": None, "width": width}
    console = Console(file=StringIO(), **shown, **options)
    with RunLog(folder, console=console, quiet=quiet) as log:
        write_stage(log, "pretrain")
        log.message("Done [really]")
    output = console.file
    assert isinstance(output, StringIO)
    return output.getvalue()


def test_plain_lines(tmp_path: Path) -> None:
    clock = iter(range(0, 100_000, 5))
    get_time = lambda: float(next(clock))  # noqa: E731
    lines = printed(False, tmp_path, width=20, get_time=get_time).splitlines()  # narrow: no line is folded
    start = r"pretrain 1/3  loss 2\.412  train 38\.1 %  val 51\.00 ± 0\.80 \(best: epoch 1\)  912 images/s"
    assert re.fullmatch(start, lines[0])
    assert re.fullmatch(r"pretrain 2/3 .* 912 images/s  \d+:\d\d:\d\d left", lines[1])
    assert lines[2] == "pretrain 3/3  loss 2.412  train 38.1 %  val 53.00 ± 0.80 (best: epoch 3)  912 images/s"
    assert lines[3:] == ["Done [really]"]
    assert "\x1b" not in "".join(lines)


def test_plain_lines_without_validation(tmp_path: Path) -> None:
    console = Console(file=StringIO())
    with RunLog(tmp_path, console=console) as log:
        log.epoch(epoch("meta", 2, val_accuracy=None, val_ci95=None, best_epoch=None, accuracy=None))
    assert console.file.getvalue() == "meta 2/3  loss 2.412\n"  # type: ignore[attr-defined]


def test_a_transductive_validation_is_named_in_the_line_the_log_and_the_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(file=StringIO(), width=200)
    with RunLog(tmp_path, console=console) as log:
        log.epoch(epoch("pretrain", 1, transductive=True))
    assert "transductive val 51.00 ± 0.80" in console.file.getvalue()  # type: ignore[attr-defined]
    assert scalars(tmp_path, "pretrain", "transductive_val_accuracy") == [(4, 51.0)]
    assert read(tmp_path)[0]["transductive"] is True
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, part, **_: (drawn.append(figure), part.write_bytes(b"")))
    draw_curve(tmp_path / "log.jsonl", tmp_path / "curve.png")
    assert drawn[0].axes[0].get_ylabel() == "validation accuracy, %, transductive"


def test_a_bar_on_a_terminal(tmp_path: Path) -> None:
    text = printed(True, tmp_path)
    assert re.search(
        r"pretrain 1/3 .*━.* step 2/4  loss 2\.000  912 images/s", text
    )  # the others pass too fast to be drawn
    assert re.search(r"val 52\.00 ± 0\.80", text)


def test_quiet(tmp_path: Path) -> None:
    assert printed(True, tmp_path, quiet=True) == ""
    assert len(read(tmp_path)) == 10


def test_null_log() -> None:
    with NullLog(resume_from=40.0) as log:
        write_stage(log, "pretrain")
        log.message("heard by nobody")
        assert 40 <= log.seconds < 50


def test_import_is_light() -> None:
    code = "import sys, deepbdc.training.log; print({'torch', 'rich', 'matplotlib', 'tensorboard'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


@pytest.mark.parametrize("what", ["stages", "one epoch", "no validation", "half an epoch", "nothing"])
def test_curve(what: str, tmp_path: Path) -> None:
    with RunLog(tmp_path, quiet=True) as log:
        if what == "stages":
            for stage in STAGES:
                write_stage(log, stage)
        elif what == "one epoch":
            log.epoch(epoch("meta", 1, epochs=1))
        elif what == "no validation":
            write_stage(log, "pretrain", stop=(3, 0))
            log.epoch(epoch("meta", 1, val_accuracy=None, val_ci95=None, best_epoch=None))
        elif what == "half an epoch":
            log.step(step("meta", 1, 2))
    draw_curve(tmp_path / "log.jsonl", tmp_path / "curve.png")
    with Image.open(tmp_path / "curve.png") as picture:
        assert picture.size[0] > 800
        assert len(picture.convert("L").getcolors() or ()) > 5
    assert {file.name for file in tmp_path.iterdir()} - {"tensorboard"} == {"log.jsonl", "curve.png"}


def test_what_the_curve_shows(tmp_path: Path) -> None:
    with RunLog(tmp_path, quiet=True) as log:
        write_stage(log, "pretrain")
        write_stage(log, "meta", stop=(2, 2))
    first, second = _curves(tmp_path / "log.jsonl")
    assert (first.stage, first.selected, first.length) == ("pretrain", 2, 3)  # as the stage says
    assert (second.stage, second.selected, second.length) == ("meta", 1, 2)  # the best so far
    assert second.steps[-1] == (1.5, 1.2)


def test_curve_without_a_log(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no log .*log\.jsonl"):
        draw_curve(tmp_path / "log.jsonl", tmp_path / "curve.png")
