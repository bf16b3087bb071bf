"""What a run records while it trains: JSON lines and TensorBoard scalars, and the same on the terminal."""

import dataclasses
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from deepbdc._files import write_text
from deepbdc.errors import UserError
from deepbdc.training.records import EpochRecord, StepRecord
from deepbdc.training.terminal import Terminal

if TYPE_CHECKING:
    from rich.console import Console
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["FILE_NAME", "EpochRecord", "NullLog", "RunLog", "StepRecord", "read_lines", "truncate_log"]

FILE_NAME = "log.jsonl"
_NOT_WRITTEN = {"step": ("global_step", "epochs"), "epoch": ("global_step",)}


class NullLog:
    """A log that only has a clock, for all processes but the first."""

    def __init__(self, resume_from: float | None = None) -> None:
        self._before = resume_from or 0.0
        self._started = time.monotonic()

    interactive = False
    """Whether a person watches on a terminal."""

    @property
    def seconds(self) -> float:
        """Seconds since the beginning of the run, without the time of interruptions."""
        return self._before + time.monotonic() - self._started

    def step(self, record: StepRecord) -> None:
        """Record the state after a step."""

    def show(self, record: StepRecord) -> None:
        """Show the state after a step on the terminal only."""

    def epoch(self, record: EpochRecord) -> None:
        """Record the results of an epoch."""

    def stage(self, stage: str, epoch: int) -> None:
        """Record that a stage is complete, and which of its epochs is kept."""

    def message(self, text: str) -> None:
        """Print a message on the terminal only."""

    def close(self) -> None:
        """Close the files and remove the progress bar."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RunLog(NullLog):
    """The log of a run: ``log.jsonl`` and ``tensorboard/`` in its folder, and the terminal.

    Args:
        folder: Of the run.
        quiet: Print nothing.
        resume_from: Seconds that the run had taken when it was interrupted; the log is then continued (call
            `truncate_log` before). None begins a new log.
        console: Where to print (default: standard output). On a terminal a bar shows the steps of the
            epoch, and each complete epoch prints a line; elsewhere only the lines are printed.
    """

    def __init__(
        self, folder: Path, *, quiet: bool = False, resume_from: float | None = None, console: "Console | None" = None
    ) -> None:
        super().__init__(resume_from)
        folder.mkdir(parents=True, exist_ok=True)
        resumed = resume_from is not None
        self._scalars = _Scalars(folder / "tensorboard", resumed)
        self._file = (folder / FILE_NAME).open("a" if resumed else "w", encoding="utf-8")
        self._screen = None if quiet else Terminal(console)
        self.interactive = self._screen is not None and self._screen.interactive

    def step(self, record: StepRecord) -> None:
        """Write a line and the scalars of a step, and move the bar."""
        self._write("step", record)
        values = {name: getattr(record, name) for name in ("loss", "accuracy", "lr", "images_per_second")}
        self._scalars.add(record.stage, values, record.global_step, purge_from=record.global_step)
        if self._screen:
            self._screen.step(record)

    def show(self, record: StepRecord) -> None:
        """Move the bar."""
        if self._screen:
            self._screen.step(record)

    def epoch(self, record: EpochRecord) -> None:
        """Write a line and the scalars of an epoch, and print its line."""
        self._write("epoch", record)
        name = "transductive_val_accuracy" if record.transductive else "val_accuracy"
        values = {name: record.val_accuracy, **record.numbers}
        # The last step of the epoch has the same global step and was written before, so it must not be purged.
        self._scalars.add(record.stage, values, record.global_step, purge_from=record.global_step + 1)
        if self._screen:
            self._screen.epoch(record)

    def stage(self, stage: str, epoch: int) -> None:
        """Write which epoch of a complete stage is kept."""
        self._write_line({"kind": "stage", "stage": stage, "epoch": epoch})
        if self._screen:
            self._screen.stop()

    def message(self, text: str) -> None:
        """Print a text, unless the log is quiet."""
        if self._screen:
            self._screen.print(text)

    def close(self) -> None:
        """Close the files and remove the progress bar. May be called twice."""
        if self._screen:
            self._screen.stop()
        self._scalars.close()
        self._file.close()

    def _write(self, kind: str, record: StepRecord | EpochRecord) -> None:
        fields = dataclasses.asdict(record)
        fields |= fields.pop("numbers", {})
        if not fields.get("transductive", True):
            del fields["transductive"]  # the usual case
        for key in _NOT_WRITTEN[kind]:
            del fields[key]
        seconds = self.seconds if record.seconds is None else record.seconds
        self._write_line({"kind": kind, **fields, "seconds": round(seconds, 3)})

    def _write_line(self, line: Mapping[str, Any]) -> None:
        # JSON has no infinite or undefined numbers.
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
        self._file.write(json.dumps(plain) + "\n")
        self._file.flush()


def truncate_log(path: Path, stages: Sequence[str], stage: str, epoch: int, step: int) -> None:
    """Cut a log back to the moment of a checkpoint, so that a resumed run can continue it.

    The checkpoint was written when ``step`` steps of ``epoch`` (counted from 1) of ``stage`` were done. The function
    keeps all lines of earlier stages, the steps of this stage up to that one, and the epochs before that one. The line
    of ``epoch`` itself is written after its validation, so it is removed even if all steps of the epoch are done; a
    checkpoint after it has ``epoch + 1`` and step 0. Lines that cannot be read are dropped: the last one may be
    incomplete. The file is replaced in one operation. If it does not exist, nothing happens.

    Args:
        path: The file, ``log.jsonl``.
        stages: All stages of the run, in their order.
        stage: Stage of the checkpoint; one of ``stages``.
        epoch: Epoch of the checkpoint.
        step: Step of the checkpoint.
    """
    if stage not in stages:
        raise UserError(f"the checkpoint is of a stage {stage!r}, but the run has {', '.join(stages)}")
    if not path.is_file():
        return
    earlier = stages[: stages.index(stage)]

    def is_kept(line: Mapping[str, Any]) -> bool:
        if line.get("stage") != stage:
            return line.get("stage") in earlier
        if line["kind"] == "step":
            return bool((line["epoch"], line["step"]) <= (epoch, step))
        return bool(line["kind"] == "epoch" and line["epoch"] < epoch)

    write_text(path, "".join(json.dumps(line) + "\n" for line in read_lines(path) if is_kept(line)))


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log, without those that cannot be read."""
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            line = json.loads(text)
            if isinstance(line, dict) and "kind" in line:
                yield line


class _Scalars:
    """TensorBoard files, in a folder for each stage, so that a resumed run purges scalars of its own stage only."""

    def __init__(self, folder: Path, resumed: bool) -> None:
        self._folder = folder
        self._resumed = resumed
        self._writers: dict[str, SummaryWriter] = {}
        if not resumed:  # curves of an earlier run in this folder would mix with the new ones
            for file in folder.glob("*/events.out.tfevents.*"):
                file.unlink()

    def add(self, stage: str, values: Mapping[str, float | None], global_step: int, purge_from: int) -> None:
        """Write the values that are not None. In a resumed run, the first call purges all from ``purge_from`` on."""
        if stage not in self._writers:
            from torch.utils.tensorboard import SummaryWriter

            purge_step = purge_from if self._resumed else None
            self._writers[stage] = SummaryWriter(str(self._folder / stage), purge_step=purge_step)
        writer = self._writers[stage]
        for name, value in values.items():
            if value is not None:
                writer.add_scalar(f"{stage}/{name}", value, global_step)
        writer.flush()

    def close(self) -> None:
        """Close the files of all stages."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
