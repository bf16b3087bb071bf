"""The training on the terminal: a progress bar for the current epoch, and a line for each complete one."""

from collections.abc import Iterator
from datetime import timedelta
from statistics import mean
from typing import TYPE_CHECKING, Any

from deepbdc.training.records import EpochRecord, StepRecord

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


class Terminal:
    """Prints a line for each complete epoch, and on a terminal a progress bar for the current stage."""

    def __init__(self, console: "Console | None") -> None:
        from rich.console import Console

        self._console = console or Console()
        self._stage: str | None = None
        self._bar: Progress | None = None
        self._speeds: list[float] = []

    @property
    def interactive(self) -> bool:
        """Whether this is a terminal, and not a file or a pipe."""
        return self._console.is_terminal

    def step(self, record: StepRecord) -> None:
        """Move the bar."""
        self._speeds.append(record.images_per_second)
        facts = f"step {record.step}/{record.steps}  loss {record.loss:.3f}  {record.images_per_second:,.0f} images/s"
        self._move(record, record.global_step, record.epochs and record.epochs * record.steps, facts)

    def epoch(self, record: EpochRecord) -> None:
        """Print the line of an epoch."""
        steps = record.global_step // record.epoch
        bar = self._move(record, record.global_step, record.epochs * steps, "")
        speed = [f"{mean(self._speeds):,.0f} images/s"] if self._speeds else []
        self._speeds.clear()
        seconds = bar.tasks[0].time_remaining
        left = [f"{timedelta(seconds=round(seconds))} left"] if seconds else []
        self.print("  ".join([_title(record), *_results(record), *speed, *left]))

    def print(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        self._console.file.flush()

    def stop(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._stage = None

    def _move(self, record: StepRecord | EpochRecord, done: int, total: int | None, facts: str) -> "Progress":
        """Set the bar of a stage, which also estimates the time that is left, to ``done`` of ``total`` steps."""
        if self._bar is None or self._stage != record.stage:
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self.stop()
            text = TextColumn("{task.description}"), TextColumn("{task.fields[facts]}", markup=False)
            columns = (text[0], BarColumn(), text[1], TimeRemainingColumn())
            hidden = not self._console.is_terminal
            options: Any = {"transient": True, "refresh_per_second": 4, "disable": hidden}
            self._bar = Progress(*columns, console=self._console, **options)
            self._bar.add_task(_title(record), total=total, completed=done, facts=facts)
            self._bar.start()
            self._stage = record.stage
        self._bar.update(self._bar.task_ids[0], description=_title(record), completed=done, total=total, facts=facts)
        return self._bar


def _title(record: StepRecord | EpochRecord) -> str:
    return f"{record.stage} {record.epoch}" + (f"/{record.epochs}" if record.epochs else "")


def _results(record: EpochRecord) -> Iterator[str]:
    yield f"loss {record.loss:.3f}"
    if record.accuracy is not None:
        yield f"train {record.accuracy:.1f} %"
    if record.val_accuracy is not None:
        interval = "" if record.val_ci95 is None else f" ± {record.val_ci95:.2f}"
        best = "" if record.best_epoch is None else f" (best: epoch {record.best_epoch})"
        kind = "transductive val" if record.transductive else "val"
        yield f"{kind} {record.val_accuracy:.2f}{interval}{best}"
