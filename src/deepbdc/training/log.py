"""What a run writes down while it trains: JSON lines, TensorBoard scalars, the terminal, and the curve as a picture."""

import dataclasses
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, Self

from deepbdc._files import temporary, write_text
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console
    from rich.progress import Progress
    from torch.utils.tensorboard import SummaryWriter

FILE_NAME = "log.jsonl"
_NOT_WRITTEN = {"step": ("global_step", "epochs"), "epoch": ("global_step",)}
_COLOURS = ("#1d4ed8", "#c2410c", "#15803d", "#7e22ce", "#0e7490", "#a16207", "#be185d", "#475569")


@dataclass(frozen=True)
class StepRecord:
    """Where the training stands after a step.

    Attributes:
        stage: ``pretrain``, ``distill-1``, ..., ``meta``.
        epoch: Counted from 1.
        step: Steps done of this epoch, so from 1.
        steps: Steps an epoch.
        loss: Of the training.
        accuracy: Of the training, in percent.
        lr: Learning rate of the network.
        images_per_second: How fast it goes.
        global_step: Steps done of the whole stage.
        epochs: Epochs of the stage; for the terminal, not written to the file.
        seconds: Since the beginning of the run, counted over interruptions (default: what the clock of the log says).
    """

    stage: str
    epoch: int
    step: int
    steps: int
    loss: float
    accuracy: float | None
    lr: float
    images_per_second: float
    global_step: int
    epochs: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class EpochRecord:
    """What came out of an epoch.

    Attributes:
        stage: As in `StepRecord`.
        epoch: Counted from 1.
        epochs: Epochs of the stage.
        loss: Mean of the training loss over the epoch.
        accuracy: Of the training over the epoch, in percent.
        val_accuracy: Few-shot accuracy on the validation classes in percent, None if it was not measured.
        val_ci95: Half of its 95 % interval.
        best_epoch: The one that would be kept if the stage ended now.
        t: The scale of BDC pooling, None if there is none.
        global_step: Steps done of the whole stage.
        seconds: As in `StepRecord`.
    """

    stage: str
    epoch: int
    epochs: int
    loss: float
    accuracy: float | None
    val_accuracy: float | None
    val_ci95: float | None
    best_epoch: int | None
    t: float | None
    global_step: int
    seconds: float | None = None


class NullLog:
    """A log that writes nothing, for all processes but the first. It only has a clock."""

    def __init__(self, resume_from: float | None = None) -> None:
        self._before = resume_from or 0.0
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the beginning of the run, without the time between an interruption and the resumption."""
        return self._before + time.monotonic() - self._started

    def step(self, record: StepRecord) -> None:
        """Note where the training stands."""

    def show(self, record: StepRecord) -> None:
        """Show where the training stands, but write nothing."""

    def epoch(self, record: EpochRecord) -> None:
        """Note what came out of an epoch."""

    def stage(self, stage: str, epoch: int) -> None:
        """Note that a stage is complete, and which of its epochs is kept."""

    def message(self, text: str) -> None:
        """Tell the person who watches. It is not written to the file."""

    def close(self) -> None:
        """Complete the files, and give the terminal back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RunLog(NullLog):
    """The log of a run: ``log.jsonl`` and ``tensorboard/`` in its folder, and what is seen on the terminal.

    Args:
        folder: Of the run.
        quiet: Print nothing.
        resume_from: Seconds that the run took until it was interrupted; the log is then continued (call `truncate_log`
            before). None begins a new one.
        console: Where to print (default: standard output). On a terminal a bar shows the steps of the epoch and each
            complete epoch leaves a line; elsewhere there are only the lines.
    """

    def __init__(
        self, folder: Path, *, quiet: bool = False, resume_from: float | None = None, console: "Console | None" = None
    ) -> None:
        super().__init__(resume_from)
        folder.mkdir(parents=True, exist_ok=True)
        resumed = resume_from is not None
        self._scalars = _Scalars(folder / "tensorboard", resumed)
        self._file = (folder / FILE_NAME).open("a" if resumed else "w", encoding="utf-8")
        self._screen = None if quiet else _Screen(console)

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
        values = {"val_accuracy": record.val_accuracy, "t": record.t}
        # The last step of the epoch stands at the same place, and was written before the interruption.
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
        """Complete the files, and give the terminal back. May be called twice."""
        if self._screen:
            self._screen.stop()
        self._scalars.close()
        self._file.close()

    def _write(self, kind: str, record: StepRecord | EpochRecord) -> None:
        fields = dataclasses.asdict(record)
        for key in _NOT_WRITTEN[kind]:
            del fields[key]
        seconds = self.seconds if record.seconds is None else record.seconds
        self._write_line({"kind": kind, **fields, "seconds": round(seconds, 3)})

    def _write_line(self, line: Mapping[str, Any]) -> None:
        # JSON has no word for infinite or undefined numbers.
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
        self._file.write(json.dumps(plain) + "\n")
        self._file.flush()


def truncate_log(path: Path, stages: Sequence[str], stage: str, epoch: int, step: int) -> None:
    """Cut a log back to the moment of a checkpoint, so that a resumed run can continue it.

    The checkpoint was written when ``step`` steps of ``epoch`` (from 1) of ``stage`` were done. Kept is what lies
    before: all lines of earlier stages, the steps of this stage up to this one, and its epochs before this one. The
    line of ``epoch`` itself is written after its validation, so it counts as not yet written, even when all its steps
    are done; a checkpoint after it is one of ``epoch + 1`` at step 0. Lines that cannot be read are dropped: the last
    one may be half written. The file is exchanged at once or not at all. If there is none, nothing happens.

    Args:
        path: The file, ``log.jsonl``.
        stages: All stages of the run, in their order.
        stage: That of the checkpoint; one of ``stages``.
        epoch: Of the checkpoint.
        step: Of the checkpoint.
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

    write_text(path, "".join(json.dumps(line) + "\n" for line in _read(path) if is_kept(line)))


def _read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log, without those that cannot be read."""
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            line = json.loads(text)
            if isinstance(line, dict) and "kind" in line:
                yield line


class _Scalars:
    """TensorBoard, with a folder for each stage: what a resumed run takes back is then taken back of its stage only."""

    def __init__(self, folder: Path, resumed: bool) -> None:
        self._folder = folder
        self._resumed = resumed
        self._writers: dict[str, SummaryWriter] = {}
        if not resumed:  # curves of an earlier run in this folder would mix with those of the new one
            for file in folder.glob("*/events.out.tfevents.*"):
                file.unlink()

    def add(self, stage: str, values: Mapping[str, float | None], global_step: int, purge_from: int) -> None:
        """Write the values that there are; the first call in a resumed run takes back what stands after it."""
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


class _Screen:
    """What a person sees: a line for each epoch, and on a terminal a bar for the one that runs."""

    def __init__(self, console: "Console | None") -> None:
        from rich.console import Console

        self._console = console or Console()
        self._bar: Progress | None = None
        self._pace = _Pace()
        self._speeds: list[float] = []

    def step(self, record: StepRecord) -> None:
        """Move the bar."""
        total = record.epochs * record.steps if record.epochs else None
        left = self._pace.left(record.stage, record.global_step, total)
        self._speeds.append(record.images_per_second)
        if self._console.is_terminal:
            facts = [f"loss {record.loss:.3f}", f"{record.images_per_second:,.0f} images/s", *_left(left)]
            self._move_bar(_title(record), record.step, record.steps, "  ".join(facts))

    def epoch(self, record: EpochRecord) -> None:
        """Print the line of an epoch."""
        steps = record.global_step // record.epoch
        left = self._pace.left(record.stage, record.global_step, record.epochs * steps)
        speed = [f"{mean(self._speeds):,.0f} images/s"] if self._speeds else []
        self._speeds.clear()
        self.print("  ".join([_title(record), *_results(record), *speed, *_left(left)]))

    def print(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        self._console.file.flush()

    def stop(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _move_bar(self, title: str, done: int, steps: int, facts: str) -> None:
        if self._bar is None:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            text = TextColumn("{task.description}"), TextColumn("{task.fields[facts]}", markup=False)
            columns = (text[0], BarColumn(), MofNCompleteColumn(), text[1])
            self._bar = Progress(*columns, console=self._console, transient=True, refresh_per_second=4)
            self._bar.add_task(title, total=steps, completed=done, facts=facts)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], description=title, completed=done, total=steps, facts=facts)


class _Pace:
    """How long the rest of a stage takes, by the steps that this process did of it."""

    def __init__(self) -> None:
        self._stage: str | None = None
        self._first_step = 0
        self._first_time = 0.0

    def left(self, stage: str, done: int, total: int | None) -> float | None:
        """Seconds to the end of the stage; None as long as they cannot be told."""
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._first_step, self._first_time = stage, done, now
        seen = done - self._first_step
        return None if total is None or seen <= 0 else (now - self._first_time) / seen * (total - done)


def _title(record: StepRecord | EpochRecord) -> str:
    return f"{record.stage} {record.epoch}" + (f"/{record.epochs}" if record.epochs else "")


def _results(record: EpochRecord) -> Iterator[str]:
    yield f"loss {record.loss:.3f}"
    if record.accuracy is not None:
        yield f"train {record.accuracy:.1f} %"
    if record.val_accuracy is not None:
        interval = "" if record.val_ci95 is None else f" ± {record.val_ci95:.2f}"
        best = "" if record.best_epoch is None else f" (best: epoch {record.best_epoch})"
        yield f"val {record.val_accuracy:.2f}{interval}{best}"


def _left(seconds: float | None) -> list[str]:
    return [f"{_duration(seconds)} left"] if seconds else []


def _duration(seconds: float) -> str:
    """Minutes and seconds, with hours if there are any.

    >>> _duration(92), _duration(7384)
    ('1:32', '2:03:04')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@dataclass(frozen=True)
class _Curve:
    """A stage in the picture: its epochs, its steps as (epochs done, loss), and the epoch that is marked."""

    stage: str
    epochs: list[dict[str, Any]]
    steps: list[tuple[float, float]]
    selected: int | None

    @property
    def length(self) -> int:
        """Epochs that were begun."""
        return max([math.ceil(done) for done, _ in self.steps] + [line["epoch"] for line in self.epochs], default=0)


def draw_curve(log: Path, picture: Path) -> None:
    """Draw the validation accuracy with its 95 % interval, and below it the training loss, epoch by epoch.

    The stages stand one after the other, each in its colour. A star is the epoch that was selected, or of a stage that
    still runs, the best so far. Without validation there is only the loss.

    Args:
        log: The file ``log.jsonl`` of a run, which may still be running.
        picture: A ``.png``, ``.svg`` or ``.pdf``, written whole or not at all.
    """
    from matplotlib.figure import Figure

    if not log.is_file():
        raise FileNotFoundError(f"there is no log {log} to draw")
    curves = _curves(log)
    validated = any(line["val_accuracy"] is not None for curve in curves for line in curve.epochs)
    figure = Figure(figsize=(9, 6 if validated else 3.6), layout="constrained")
    heights = (3, 2) if validated else (1,)
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    start = 0
    for index, curve in enumerate(curves):
        colour = _COLOURS[index % len(_COLOURS)]
        _draw_loss(axes[-1], curve, start, colour)
        if validated:
            _draw_validation(axes[0], curve, start, colour)
        start += curve.length
    _furnish(list(axes), curves, validated)
    figure.suptitle(f"Training of {log.absolute().parent.name}", fontsize=13)
    with temporary(picture) as part:
        figure.savefig(part, format=picture.suffix.lstrip(".") or "png", dpi=110)


def _curves(log: Path) -> list[_Curve]:
    """What the log says, by stage in the order of the run."""
    lines = list(_read(log))
    curves = []
    for stage in dict.fromkeys(line["stage"] for line in lines):
        mine = [line for line in lines if line["stage"] == stage]
        epochs = [line for line in mine if line["kind"] == "epoch"]
        steps = [
            (line["epoch"] - 1 + line["step"] / line["steps"], line["loss"])
            for line in mine
            if line["kind"] == "step" and line["loss"] is not None
        ]
        complete = [line["epoch"] for line in mine if line["kind"] == "stage"]
        best = [line["best_epoch"] for line in epochs]
        curves.append(_Curve(stage, epochs, steps, next(reversed([*best, *complete]), None)))
    return curves


def _draw_validation(axis: "Axes", curve: _Curve, start: int, colour: str) -> None:
    measured = [line for line in curve.epochs if line["val_accuracy"] is not None]
    places = [start + line["epoch"] for line in measured]
    values = [line["val_accuracy"] for line in measured]
    widths = [line["val_ci95"] or 0.0 for line in measured]
    low, high = ([v + sign * w for v, w in zip(values, widths, strict=True)] for sign in (-1, 1))
    axis.plot(places, values, color=colour, marker="o", markersize=3, label=curve.stage)
    axis.fill_between(places, low, high, color=colour, alpha=0.18, linewidth=0)
    if len(measured) == 1:  # a band of one place has no width
        axis.errorbar(places, values, widths, color=colour, capsize=4)
    for place, line in zip(places, measured, strict=True):
        if line["epoch"] == curve.selected:
            value = line["val_accuracy"]
            axis.plot([place], [value], marker="*", markersize=15, color=colour, markeredgecolor="white", zorder=5)
            shift, side = ((0, 9), "center") if len(measured) > 1 else ((-12, -3), "right")  # clear of the error bar
            style: Any = {"textcoords": "offset points", "ha": side, "color": colour, "fontsize": 9}
            axis.annotate(f"{value:.2f}", (place, value), shift, **style)


def _draw_loss(axis: "Axes", curve: _Curve, start: int, colour: str) -> None:
    """Steps pale, and in front of them the mean over each epoch, in its middle; without epochs the steps alone."""
    places, losses = [start + done for done, _ in curve.steps], [loss for _, loss in curve.steps]
    axis.plot(places, losses, color=colour, alpha=0.35 if curve.epochs else 1, linewidth=0.8)
    means = [(start + line["epoch"] - 0.5, line["loss"]) for line in curve.epochs if line["loss"] is not None]
    axis.plot([place for place, _ in means], [loss for _, loss in means], color=colour, marker="o", markersize=3)
    axis.plot([], [], color=colour, label=curve.stage)  # for the legend, whichever of the two there are


def _furnish(axes: "list[Axes]", curves: Sequence[_Curve], validated: bool) -> None:
    """Titles, scales, the borders of stages and a legend."""
    from matplotlib.ticker import MaxNLocator

    axes[-1].set_ylabel("training loss")
    axes[-1].set_xlabel("epochs, of all stages together" if len(curves) > 1 else "epochs")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[-1].set_xlim(0, max(1, sum(curve.length for curve in curves)) * 1.03)
    if validated:
        axes[0].set_ylabel("validation accuracy, %")
        axes[0].margins(y=0.15)
        axes[0].plot([], [], "*", color="#64748b", markersize=11, label="selected epoch")
    for axis in axes:
        axis.grid(color="#e2e8f0", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        for index in range(1, len(curves)):
            place = sum(curve.length for curve in curves[:index])
            axis.axvline(place, color="#94a3b8", linewidth=0.8, linestyle=":")
    if curves:
        axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=6, frameon=False, fontsize=9)
    else:
        axes[0].text(0.5, 0.5, "nothing was logged yet", ha="center", transform=axes[0].transAxes)
