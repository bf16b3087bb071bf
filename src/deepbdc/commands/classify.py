"""``deepbdc classify``: label a person's own pictures, and sort them into folders."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from deepbdc.commands.examples import ExampleSource, note, progress_bar
from deepbdc.commands.options import NETWORK, OUTPUT, EstimatorOptions, Flag
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

    Files are never overwritten: if a name is taken, the picture gets another, like "1 (2).jpg". Pictures that
    cannot be read are listed and stay where they are. The exit code is 1 if no picture could be read, or if one
    could not be moved or copied. A saved classifier has its own network and settings: for it, only --device and
    --batch-size can be given.

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
        quiet: Print only the summary, not a line for each picture.
        move_to: Move each picture into a subfolder of this folder that is named after its class.
        copy_to: Like --move-to, but copy the pictures.
        dry_run: Only show where --move-to or --copy-to would put each picture.
    """
    from rich.console import Console

    console = Console()
    rate = reject_rate(reject)
    sorter = _sorter(move_to, copy_to, dry_run, images, examples)
    _check_outputs(csv, json)
    source = ExampleSource.find(examples, options.given() if options else {})
    files = _pictures(images, source)
    fitted = source.classifier()
    if len(fitted.classes_) == 1 and rate is None:
        note(f"there is only one class, so every picture is labelled {fitted.classes_[0]!s} unless you give --reject")
    centred = _centred(fitted, files) if centre == "auto" else files
    tally = _classify(fitted, files, console, sorter, reject=rate, quiet=quiet, csv=csv, json=json, pictures=centred)
    tally.print(console)
    if truth:
        tally.print_truth(console)
    _say_outputs(console, sorter, tally, csv, json)
    if tally.interrupted:
        raise KeyboardInterrupt(f"interrupted after {tally.seen:,} of {len(files):,} pictures. Finished work is kept.")
    if tally.unmoved or not tally.classified:
        raise SystemExit(1)


def _sorter(
    move_to: Path | None, copy_to: Path | None, dry_run: bool, places: Sequence[Path], examples: Path
) -> "Sorter | None":
    """Check the sorting options; return None if files stay where they are."""
    from deepbdc.sorting import Sorter, is_inside

    if move_to is not None and copy_to is not None:
        raise UserError("give --move-to or --copy-to, not both")
    target = move_to or copy_to
    if target is None:
        if dry_run:
            raise UserError("--dry-run shows what --move-to or --copy-to would do: give one of them")
        return None
    option = "--move-to" if move_to else "--copy-to"
    if target.exists() and not target.is_dir():
        raise UserError(f"{option} needs a folder, but {target} is a file")
    for place in places:
        if place.is_dir() and is_inside(target, place):
            raise UserError(
                f"the target {target} is inside {place}, so a second run would sort the sorted pictures again: "
                f"choose a folder outside of {place}"
            )
    if examples.is_dir() and is_inside(target, examples):
        raise UserError(
            f"the target {target} is inside the examples {examples}, so wrongly sorted pictures would become examples: "
            "choose another folder"
        )
    return Sorter(target, copy=copy_to is not None, dry_run=dry_run)


def _check_outputs(csv: Path | None, json: Path | None) -> None:
    """Check the names of the output files before the work begins."""
    for path in (csv, json):
        if path is not None and path.is_dir():
            raise UserError(f"{path} is a folder: give a file for the results")
    if csv is not None and json is not None and csv.resolve() == json.resolve():
        raise UserError("--csv and --json must be different files")


def _pictures(places: Sequence[Path], source: ExampleSource) -> list[Path]:
    """The files to classify. Example pictures are never among them, so that they are not moved away."""
    from deepbdc.sorting import find_pictures, is_inside

    if not places:
        raise UserError("no pictures to classify. Give files or folders, like: deepbdc classify examples photos")
    found = find_pictures(places)
    learnt = {file.resolve() for file in source.files}
    files = [
        file
        for file in found.pictures
        if source.saved or (file.resolve() not in learnt and not is_inside(file, source.path))
    ]
    named = ", ".join(map(str, places[:3])) + (", ..." if len(places) > 3 else "")
    others = f" {found.others:,} files have no suffix of a picture." if found.others else ""
    if not found.pictures:
        raise UserError(f"there is no picture in {named}.{others}")
    left_out = len(found.pictures) - len(files)
    if not files:
        raise UserError(f"all pictures in {named} are examples in {source.path}: give others to classify")
    if left_out:
        note(f"{left_out:,} pictures are examples in {source.path} and are skipped")
    if found.others:
        note(f"{found.others:,} files have no suffix of a picture and are skipped")
    if found.links:
        note(f"{found.links:,} links to folders, or to pictures that are classified anyway, are skipped")
    return files


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
    from deepbdc.sorting import folder_names

    classes = [str(name) for name in fitted.classes_]
    folders = dict(zip([*classes, None], folder_names([*classes, report.NONE_OF_THESE]), strict=True))
    tally = report.Tally(classes, reject)
    rows = report.Rows(files, classes, console.width if console.is_terminal else None, _heading(sorter))
    with ExitStack() as stack:
        writers: list[Callable[[ClassifiedPicture], None]] = [tally.add]
        writers += [stack.enter_context(report.write_csv(csv, classes))] if csv else []
        writers += [stack.enter_context(report.write_json(json, classes))] if json else []
        screen = console if console.is_terminal else Console(stderr=True)
        advance = stack.enter_context(progress_bar(screen, "Classifying", len(files)))
        if not quiet:
            console.print(rows.head(), soft_wrap=True)
        stack.enter_context(_until_interrupted(tally))
        for result in _results(fitted, files, pictures or files, reject):
            if sorter is not None and result.readable:
                result = _place(sorter, result, folders[None if result.probability is None else result.label])
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


def _results(
    fitted: "FewShotClassifier",
    files: Sequence[Path],
    pictures: "Sequence[Path | EmbeddedImage]",
    reject: float | None,
) -> "Iterator[ClassifiedPicture]":
    """Yield a result for each file, in order. Some of the ``pictures`` in the files may be embedded already."""
    from deepbdc.report.classification import ClassifiedPicture, from_prediction

    bad: list[BadImage] = []  # errors of the unreadable files, for which there is no prediction, in order
    waiting = iter(files)
    for prediction in fitted.classify(pictures, on_bad=bad.append):
        for file in waiting:
            if str(file) == prediction.name:
                yield from_prediction(file, prediction, reject)
                break
            yield ClassifiedPicture(file, problem=str(bad.pop(0)))
    for file in waiting:
        yield ClassifiedPicture(file, problem=str(bad.pop(0)))


def _place(sorter: "Sorter", result: "ClassifiedPicture", folder: str) -> "ClassifiedPicture":
    """Move or copy a file into its folder. If that fails, the file stays where it is and the result says why."""
    try:
        return replace(result, place=sorter.place(result.file, folder))
    except OSError as error:
        return replace(result, problem=f"{result.file}: {error}")


def _heading(sorter: "Sorter | None") -> str | None:
    """The heading of the column with the new paths."""
    if sorter is None:
        return None
    verb = "copy" if sorter.copy else "move"
    return f"would {verb} to" if sorter.dry_run else {"copy": "copied to", "move": "moved to"}[verb]


def _say_outputs(console: "Console", sorter: "Sorter | None", tally: "Tally", *written: Path | None) -> None:
    """Print how many pictures were moved or copied, and which files were written."""
    from deepbdc.report.classification import say

    if sorter is not None:
        many = f"{tally.placed:,} {'picture' if tally.placed == 1 else 'pictures'}"
        if sorter.dry_run:
            verb = "copied" if sorter.copy else "moved"
            say(console, f"Dry run: nothing was changed. {many} would be {verb} to {sorter.target}.")
        else:
            say(console, f"{'Copied' if sorter.copy else 'Moved'} {many} to {sorter.target}.")
    for path in written:
        if path is not None:
            say(console, f"Results: {path}")
