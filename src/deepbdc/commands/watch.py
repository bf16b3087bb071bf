"""``deepbdc watch``: classify or sort pictures as they arrive in a folder."""

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from deepbdc._words import counted
from deepbdc.commands.classify import SORTING, class_folder_names, heading, place_result, results, say_outputs
from deepbdc.commands.examples import ExampleSource
from deepbdc.commands.options import OUTPUT, EstimatorOptions, Flag
from deepbdc.commands.targets import find_sorter
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from deepbdc.estimator import FewShotClassifier
    from deepbdc.report.classification import ClassifiedPicture, Tally
    from deepbdc.sorting import Arrivals, Sorter


def watch_folder(
    examples: Path,
    folder: Path,
    /,
    *,
    reject: Flag = False,
    new_only: Flag = False,
    every: Annotated[float, Parameter(metavar="SECONDS")] = 2.0,
    csv: Annotated[Path | None, Parameter(metavar="FILE", group=OUTPUT)] = None,
    move_to: Annotated[Path | None, Parameter(metavar="FOLDER", group=SORTING)] = None,
    copy_to: Annotated[Path | None, Parameter(metavar="FOLDER", group=SORTING)] = None,
    options: EstimatorOptions | None = None,
) -> None:
    """Watch a folder, and classify or sort the pictures that arrive in it, until you press Ctrl-C.

    For example:

        deepbdc watch birds.safetensors inbox --csv birds.csv
        deepbdc watch birds.safetensors inbox --reject --move-to sorted

    A picture is read when it is complete: when its file has not changed for a while. One that cannot be read is
    named once, stays where it is, and is tried again when it changes. `deepbdc undo` takes a sorting back.

    Args:
        examples: A folder that contains one folder of example pictures for each class, or a classifier saved by
            `deepbdc fit` (.safetensors).
        folder: The folder to watch, with all its subfolders.
        reject: Label pictures that look like none of the classes 'none of these'.
        new_only: Leave the pictures alone that are in the folder already.
        every: How often to look, in seconds.
        csv: Add the results to this file as CSV. Rows that it has already stay.
        move_to: Move each picture into a subfolder of this folder that is named after its class. A log in this folder
            tells which picture came from where.
        copy_to: Like --move-to, but copy the pictures.
    """
    from rich.console import Console

    from deepbdc.report.classification import say
    from deepbdc.sorting import Arrivals

    console = Console()
    if not every > 0:
        raise UserError(f"--every must be more than 0 seconds, got {every:g}")
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder} to watch")
    if csv is not None and csv.is_dir():
        raise UserError(f"{csv} is a folder: give a file for the results")
    sorter = find_sorter(move_to, copy_to, False, [folder], examples)
    source = ExampleSource.find(examples, options.given() if options else {})
    fitted = source.classifier()
    arrivals = Arrivals(folder)
    left = arrivals.skip_present() if new_only else 0
    without = f", without the {counted(left, 'picture')} in it" if left else ""
    say(console, f"Watching {folder}{without}. Ctrl-C stops.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # how services are stopped
    tally = _watch(fitted, arrivals, console, sorter, reject=reject, every=every, csv=csv)
    tally.print(console)
    say_outputs(console, sorter, tally, csv)


def _watch(
    fitted: "FewShotClassifier",
    arrivals: "Arrivals",
    console: "Console",
    sorter: "Sorter | None",
    *,
    reject: bool,
    every: float,
    csv: Path | None,
) -> "Tally":
    """Classify what arrives until Ctrl-C. A picture that is being sorted is finished first."""
    from deepbdc.report import classification as report

    classes = [str(name) for name in fitted.classes_]
    tally = report.Tally(classes, reject)
    with ExitStack() as stack:
        writers: list[Callable[[ClassifiedPicture], None]] = [tally.add]
        writers += [stack.enter_context(report.append_csv(csv, classes))] if csv else []
        folders = class_folder_names(classes)
        try:
            while True:
                for result in results(fitted, arrivals.complete(), reject):
                    with _uninterrupted():
                        if sorter is not None and result.readable:
                            result = place_result(sorter, result, folders)
                        for write in writers:
                            write(result)
                    _print(console, result, classes, sorter)
                time.sleep(every)
        except KeyboardInterrupt:
            return tally


class _uninterrupted:
    """While a picture is moved and written down, Ctrl-C waits until both are done."""

    def __enter__(self) -> None:
        self._came: list[int] = []
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in self._before:
            signal.signal(number, lambda came, _: self._came.append(came))

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._came:
            raise KeyboardInterrupt


def _print(console: "Console", result: "ClassifiedPicture", classes: Sequence[str], sorter: "Sorter | None") -> None:
    from deepbdc.report import classification as report

    if not result.readable:
        report.say(console, f"Could not be read: {result.problem}")
        return
    width = console.width if console.is_terminal else None
    rows = report.Rows([result.file], classes, width, heading(sorter))
    console.print(rows.row(result), soft_wrap=True)
