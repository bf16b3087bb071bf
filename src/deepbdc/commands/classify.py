"""``deepbdc classify``: label a person's own pictures, and sort them into folders."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from deepbdc._words import counted
from deepbdc.commands.examples import ExampleSource, find_files, note, progress_bar
from deepbdc.commands.options import NETWORK, OUTPUT, EstimatorOptions, Flag
from deepbdc.commands.targets import check_output, check_space, find_sorter
from deepbdc.errors import UserError
from deepbdc.own_images.rejection import reject_rate

if TYPE_CHECKING:
    from rich.console import Console

    from deepbdc.data.images import BadImage
    from deepbdc.estimator import EmbeddedImage, FewShotClassifier
    from deepbdc.report.classification import ClassifiedPicture, Tally
    from deepbdc.sorting import Sorter

SORTING = Group("Sorting", sort_key=2)


def classify_images(
    examples: Path,
    /,
    *images: Path,
    reject: Annotated[float | bool, Parameter(metavar="SHARE", negative="", show_default=False)] = False,
    truth: Flag = False,
    centre: Annotated[Literal["auto", "none"], Parameter(group=NETWORK)] = "auto",
    csv: Annotated[Path | None, Parameter(metavar="FILE", group=OUTPUT)] = None,
    json: Annotated[Path | None, Parameter(metavar="FILE", group=OUTPUT)] = None,
    force: Annotated[Flag, Parameter(group=OUTPUT)] = False,
    quiet: Annotated[Flag, Parameter(group=OUTPUT)] = False,
    move_to: Annotated[Path | None, Parameter(metavar="FOLDER", group=SORTING)] = None,
    copy_to: Annotated[Path | None, Parameter(metavar="FOLDER", group=SORTING)] = None,
    dry_run: Annotated[Flag, Parameter(group=SORTING)] = False,
    options: EstimatorOptions | None = None,
) -> None:
    """Label pictures after a few examples of each class, and sort them into folders if you like.

    Make a folder that contains one folder for each class, and put one or more example pictures into each.
    The names of these folders are the labels. For example:

        deepbdc classify examples photos --reject 0.05 --csv photos.csv
        deepbdc classify examples photos --move-to sorted --dry-run

    Pictures are never overwritten: if a name is taken, the picture gets another, like "1 (2).jpg". `deepbdc undo`
    takes the sorting back. Pictures that cannot be read are listed and stay where they are. The exit code is 1 if
    no picture could be read, or if one could not be moved or copied. A saved classifier has its own network and
    settings: for it, only --device and --batch-size can be given.

    Args:
        examples: A folder that contains one folder of example pictures for each class, or a classifier saved by
            `deepbdc fit` (.safetensors).
        images: The pictures to classify: files, and folders, which are searched with all their subfolders.
        reject: Label pictures that look like none of the classes 'none of these'. The number is the share of the
            pictures of your classes that may be lost by that (without a number: 0.05).
        centre: Whether the mean of the pictures to classify is subtracted: with auto, if most classes have a single
            example and there are enough pictures of many classes; with none, each answer is independent of the other
            pictures.
        truth: Print the accuracy. The true class of a picture is the name of its folder.
        csv: Write all results to this file as CSV, with the probability of every class.
        json: Write all results to this file as JSON.
        force: Replace the files of --csv and --json if they exist.
        quiet: Print only the summary, not a line for each picture.
        move_to: Move each picture into a subfolder of this folder that is named after its class. A log in this folder
            tells which picture came from where.
        copy_to: Like --move-to, but copy the pictures. A copy that is there already is not made again.
        dry_run: Only show where --move-to or --copy-to would put each picture.
    """
    from rich.console import Console

    console = Console()
    rate = reject_rate(reject)
    sorter = find_sorter(move_to, copy_to, dry_run, images, examples)
    _check_outputs(csv, json, force)
    source = ExampleSource.find(examples, options.given() if options else {})
    files = find_files(images, source, "deepbdc classify examples photos")
    check_space(sorter, files)
    fitted = source.classifier()
    if len(fitted.classes_) == 1 and rate is None:
        note(f"there is only one class, so every picture is labelled {fitted.classes_[0]!s} unless you give --reject")
    centred = _centred(fitted, files) if centre == "auto" else files
    tally = _classify(fitted, files, console, sorter, reject=rate, quiet=quiet, csv=csv, json=json, pictures=centred)
    tally.print(console)
    if truth:
        tally.print_truth(console)
    say_outputs(console, sorter, tally, csv, json)
    if tally.interrupted:
        raise KeyboardInterrupt(f"interrupted after {tally.seen:,} of {len(files):,} pictures. Finished work is kept.")
    if tally.unmoved or not tally.classified:
        raise SystemExit(1)


def _check_outputs(csv: Path | None, json: Path | None, force: bool) -> None:
    """Check the output files before the work begins."""
    if csv is not None and json is not None and csv.resolve() == json.resolve():
        raise UserError("--csv and --json must be different files")
    for path in (csv, json):
        check_output(path, force=force)


def _centred(fitted: "FewShotClassifier", files: Sequence[Path]) -> "Sequence[Path | EmbeddedImage]":
    """Subtract the mean of the pictures if that can be expected to help, and say so. Return the pictures."""
    from deepbdc.own_images.centring import centre

    done = centre(fitted, files)
    if done.used:
        note(
            f"the classes have about one example each, so the mean of {done.used:,} of the pictures was subtracted. "
            "That makes the answers better on average, but each depends a little on the other pictures; "
            "--centre none prevents it"
        )
    return done.images


def _classify(
    fitted: "FewShotClassifier",
    files: Sequence[Path],
    console: "Console",
    sorter: "Sorter | None",
    *,
    reject: float | None,
    quiet: bool,
    csv: Path | None,
    json: Path | None,
    pictures: "Sequence[Path | EmbeddedImage] | None" = None,
) -> "Tally":
    """Classify the files one by one. Print, write, sort and count each result before the next.

    ``pictures`` are those of the files, if some of them are embedded already.
    """
    from rich.console import Console

    from deepbdc.report import classification as report

    classes = [str(name) for name in fitted.classes_]
    folders = class_folder_names(classes)
    tally = report.Tally(classes, reject)
    rows = report.Rows(files, classes, console.width if console.is_terminal else None, heading(sorter))
    with ExitStack() as stack:
        writers: list[Callable[[ClassifiedPicture], None]] = [tally.add]
        writers += [stack.enter_context(report.write_csv(csv, classes))] if csv else []
        writers += [stack.enter_context(report.write_json(json, classes))] if json else []
        screen = console if console.is_terminal else Console(stderr=True)
        advance = stack.enter_context(progress_bar(screen, "Classifying", len(files)))
        if not quiet:
            console.print(rows.head(), soft_wrap=True)
        stack.enter_context(_until_interrupted(tally))
        for result in results(fitted, files, reject, pictures):
            if sorter is not None and result.readable:
                result = place_result(sorter, result, folders)
            for write in writers:
                write(result)
            if result.readable and not quiet:
                console.print(rows.row(result), soft_wrap=True)
            advance(1)
    return tally


@contextmanager
def _until_interrupted(tally: "Tally") -> Iterator[None]:
    """End the block at Ctrl-C without an error, so that the results so far are written: files may have been moved."""
    try:
        yield
    except KeyboardInterrupt:
        tally.interrupted = True


def results(
    fitted: "FewShotClassifier",
    files: Sequence[Path],
    reject: float | None,
    pictures: "Sequence[Path | EmbeddedImage] | None" = None,
) -> "Iterator[ClassifiedPicture]":
    """Yield a result for each file, in order. Some of the ``pictures`` in the files may be embedded already."""
    from deepbdc.report.classification import ClassifiedPicture, from_prediction

    bad: list[BadImage] = []  # errors of the unreadable files, for which there is no prediction, in order
    waiting = iter(files)
    for prediction in fitted.classify(files if pictures is None else pictures, on_bad=bad.append):
        for file in waiting:
            if str(file) == prediction.name:
                yield from_prediction(file, prediction, reject)
                break
            yield ClassifiedPicture(file, problem=str(bad.pop(0)))
    for file in waiting:
        yield ClassifiedPicture(file, problem=str(bad.pop(0)))


def class_folder_names(classes: Sequence[str]) -> dict[str | None, str]:
    """The name of the folder of each class, and under None that of "none of these"."""
    from deepbdc.report.classification import NONE_OF_THESE
    from deepbdc.sorting import folder_names

    return dict(zip([*classes, None], folder_names([*classes, NONE_OF_THESE]), strict=True))


def place_result(sorter: "Sorter", result: "ClassifiedPicture", folders: dict[str | None, str]) -> "ClassifiedPicture":
    """Move or copy a file into the folder of its label. If that fails, it stays where it is and the result says why."""
    folder = folders[None if result.probability is None else result.label]
    try:
        return replace(result, place=sorter.place(result.file, folder))
    except OSError as error:
        return replace(result, problem=f"{result.file}: {error}")


def heading(sorter: "Sorter | None") -> str | None:
    """The heading of the column with the new paths."""
    if sorter is None:
        return None
    verb = "copy" if sorter.copy else "move"
    return f"would {verb} to" if sorter.dry_run else {"copy": "copied to", "move": "moved to"}[verb]


def say_outputs(console: "Console", sorter: "Sorter | None", tally: "Tally", *written: Path | None) -> None:
    """Print how many pictures were moved or copied, how to undo it, and which files were written."""
    from deepbdc.report.classification import say

    if sorter is not None:
        verb = "copied" if sorter.copy else "moved"
        many = counted(tally.placed - sorter.already_there, "picture")
        already = f" {_already(sorter)}" if sorter.already_there else ""
        if sorter.dry_run:
            say(console, f"Dry run: nothing was changed. {many} would be {verb} to {sorter.target}.{already}")
        else:
            say(console, f"{verb.capitalize()} {many} to {sorter.target}.{already}")
        if sorter.log is not None:
            say(console, f"Log: {sorter.log}")
            say(console, f"To take this back: deepbdc undo {shlex.quote(str(sorter.target))}")
    for path in written:
        if path is not None:
            say(console, f"Results: {path}")


def _already(sorter: "Sorter") -> str:
    was = "was" if sorter.already_there == 1 else "were"
    return f"{sorter.already_there:,} {was} there already."
