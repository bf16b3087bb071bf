"""``deepbdc classify``: say what is on a person's own pictures, and sort them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from deepbdc.commands.common import errors_in_words
from deepbdc.commands.examples import Examples, given_options, note, progress_bar
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from deepbdc.data.images import BadImage
    from deepbdc.estimator import FewShotClassifier
    from deepbdc.report.classification import Answer, Tally
    from deepbdc.sorting import Sorter


def classify_images(
    examples: str,
    *images: str,
    csv: str | None = None,
    json: str | None = None,
    move_to: str | None = None,
    copy_to: str | None = None,
    dry_run: bool = False,
    reject: bool = False,
    truth: bool = False,
    quiet: bool = False,
    backbone: str | None = None,
    pool: str | None = None,
    size: int | None = None,
    classifier: str | None = None,
    C: float | None = None,
    device: str | None = None,
    batch_size: int | None = None,
) -> None:
    """Say what is on pictures, after a few examples of each class; sort them into folders if you like.

    Make a folder with one folder for each class, and put one or more example pictures into each.
    The names of these folders are the labels. For example:

        deepbdc classify examples photos --reject --csv photos.csv
        deepbdc classify examples photos --move-to sorted --dry-run

    Nothing is ever overwritten: a picture whose name is taken gets another, like "1 (2).jpg". Pictures
    that cannot be read are named and stay where they are. The exit code is 1 if no picture could be
    read, or if one could not be moved or copied. The options from --backbone to --C are for EXAMPLES that
    are a folder: a saved classifier has its own.

    Args:
        examples: A folder with a folder for each class; or a classifier saved by 'deepbdc fit' (.safetensors).
        images: Pictures, and folders, which are searched with all folders in them.
        csv: A file for all results as a table, with the probability of every class.
        json: The same as JSON.
        move_to: Sort the pictures into folders of this folder, named like the classes.
        copy_to: The same with copies: the pictures also stay where they are.
        dry_run: Only show where --move-to or --copy-to would put each picture.
        reject: Answer 'none of these' for pictures that look like none of the classes.
        truth: Print the accuracy, for pictures that lie in folders named like the classes.
        quiet: Print no line for each picture, only the summary.
        backbone: The network: the folder of a run of 'deepbdc train', or timm/NAME, which is downloaded (default:
            efficientnet_lite0, which knows ImageNet and came with the installation). efficientnet_lite0_fine is
            far better on handwritten characters, and far worse on photos.
        pool: How feature maps become representations: bdc or average (default: bdc).
        size: Side of the pictures as the network sees them, in pixels (default: the network's own).
        classifier: What learns the classes: logistic, prototype or softmax (default: logistic).
        C: How closely logistic follows the examples (default: 10).
        device: Where the network runs, like cpu or cuda (default: cpu).
        batch_size: Pictures that go through the network at once (default: 8).
    """
    from rich.console import Console

    console = Console()
    with errors_in_words("classify"):
        settings = given_options(
            backbone=backbone, pool=pool, size=size, classifier=classifier, C=C, device=device, batch_size=batch_size
        )
        places = [Path(image) for image in images]
        sorter = _sorter(move_to, copy_to, dry_run, places, Path(examples))
        _check_outputs(csv, json)
        source = Examples.find(examples, settings)
        files = _pictures(places, source)
        fitted = source.classifier()
        if len(fitted.classes_) == 1 and not reject:
            note(f"there is one class only, so every picture is {fitted.classes_[0]!s}, unless you give --reject")
        tally = _classify(fitted, files, console, sorter, reject=reject, quiet=quiet, csv=csv, json=json)
        tally.print(console)
        if truth:
            tally.print_truth(console)
        _say_outputs(console, sorter, tally, csv, json)
        if tally.interrupted:
            raise KeyboardInterrupt(f"stopped at {tally.seen:,} of {len(files):,} pictures. What was done is kept.")
        if tally.unmoved or not tally.classified:
            raise SystemExit(1)


def _sorter(
    move_to: str | None, copy_to: str | None, dry_run: bool, places: Sequence[Path], examples: Path
) -> "Sorter | None":
    """What puts files into folders; None if they stay where they are."""
    from deepbdc.sorting import Sorter, is_inside

    if move_to is not None and copy_to is not None:
        raise UserError("give --move-to or --copy-to, not both")
    given = move_to or copy_to
    if given is None:
        if dry_run:
            raise UserError("--dry-run shows what --move-to or --copy-to would do: give one of them")
        return None
    target = Path(given)
    option = "--move-to" if move_to else "--copy-to"
    if target.exists() and not target.is_dir():
        raise UserError(f"{option} needs a folder, but {target} is a file")
    for place in places:
        if place.is_dir() and is_inside(target, place):
            raise UserError(
                f"the target {target} lies in {place}, whose pictures are to be sorted, so that a second time the "
                "sorted ones would be sorted again: choose a folder beside it"
            )
    if examples.is_dir() and is_inside(target, examples):
        raise UserError(
            f"the target {target} lies in the examples {examples}, where a wrongly sorted picture would teach a wrong "
            "class: choose another folder"
        )
    return Sorter(target, copy=copy_to is not None, dry_run=dry_run)


def _check_outputs(csv: str | None, json: str | None) -> None:
    """Whether results can be written is known before the work, not after it."""
    for path in (csv, json):
        if path is not None and Path(path).is_dir():
            raise UserError(f"{path} is a folder: give a file for the results")
    if csv is not None and json is not None and Path(csv).resolve() == Path(json).resolve():
        raise UserError("--csv and --json need a file each")


def _pictures(places: Sequence[Path], source: Examples) -> list[Path]:
    """The files to classify. The examples are never among them, so that nobody sorts them away."""
    from deepbdc.sorting import find_pictures, is_inside

    if not places:
        raise UserError("which pictures? Give files or folders, like: deepbdc classify examples photos")
    found = find_pictures(places)
    learnt = {file.resolve() for file in source.files}
    files = [
        file
        for file in found.pictures
        if source.saved or (file.resolve() not in learnt and not is_inside(file, source.path))
    ]
    named = ", ".join(map(str, places[:3])) + (", ..." if len(places) > 3 else "")
    others = f" {found.others:,} files do not end like a picture." if found.others else ""
    if not found.pictures:
        raise UserError(f"no picture in {named}.{others}")
    left_out = len(found.pictures) - len(files)
    if not files:
        raise UserError(f"all pictures in {named} are examples in {source.path}: give others to classify")
    if left_out:
        note(f"{left_out:,} of the pictures are examples in {source.path}, and left out")
    if found.others:
        note(f"{found.others:,} files do not end like a picture, and are left out")
    if found.links:
        note(f"{found.links:,} links to folders, or to pictures that are there anyway, are left out")
    return files


def _classify(
    fitted: "FewShotClassifier",
    files: Sequence[Path],
    console: "Console",
    sorter: "Sorter | None",
    *,
    reject: bool,
    quiet: bool,
    csv: str | None,
    json: str | None,
) -> "Tally":
    """Classify picture by picture: print, write, sort and count each answer when it comes."""
    from rich.console import Console

    from deepbdc.report import classification as report
    from deepbdc.sorting import folder_names

    classes = [str(name) for name in fitted.classes_]
    folders = dict(zip([*classes, None], folder_names([*classes, report.NONE_OF_THESE]), strict=True))
    tally = report.Tally(classes, reject)
    rows = report.Rows(files, classes, console.width if console.is_terminal else None, _heading(sorter))
    with ExitStack() as stack:
        writers: list[Callable[[Answer], None]] = [tally.add]
        writers += [stack.enter_context(report.write_csv(Path(csv), classes))] if csv else []
        writers += [stack.enter_context(report.write_json(Path(json), classes))] if json else []
        screen = console if console.is_terminal else Console(stderr=True)
        advance = stack.enter_context(progress_bar(screen, "Classifying", len(files)))
        if not quiet:
            console.print(rows.head(), soft_wrap=True)
        stack.enter_context(_until_interrupted(tally))
        for answer in _answers(fitted, files, reject):
            if sorter is not None and answer.readable:
                answer = _place(sorter, answer, folders[None if answer.probability is None else answer.label])
            for write in writers:
                write(answer)
            if answer.readable and not quiet:
                console.print(rows.row(answer), soft_wrap=True)
            advance(1)
    return tally


@contextmanager
def _until_interrupted(tally: "Tally") -> Iterator[None]:
    """After Ctrl-C, what was done is still written and counted: files may have been moved."""
    try:
        yield
    except KeyboardInterrupt:
        tally.interrupted = True


def _answers(fitted: "FewShotClassifier", files: Sequence[Path], reject: bool) -> "Iterator[Answer]":
    """An answer for each file, in order. There is no prediction for those that cannot be read."""
    from deepbdc.report.classification import Answer, answer_of

    bad: list[BadImage] = []
    waiting = iter(files)
    for prediction in fitted.classify(files, on_bad=bad.append):
        for file in waiting:
            if str(file) == prediction.name:
                yield answer_of(file, prediction, reject)
                break
            yield Answer(file, problem=str(bad.pop(0)))  # they come in order, too
    for file in waiting:
        yield Answer(file, problem=str(bad.pop(0)))


def _place(sorter: "Sorter", answer: "Answer", folder: str) -> "Answer":
    """Put a file into its folder. If that cannot be, it stays, and the others go on."""
    try:
        return replace(answer, place=sorter.place(answer.file, folder))
    except OSError as error:
        return replace(answer, problem=f"{answer.file}: {error}")


def _heading(sorter: "Sorter | None") -> str | None:
    """Over the column of where files go."""
    if sorter is None:
        return None
    verb = "copy" if sorter.copy else "move"
    return f"would {verb} to" if sorter.dry_run else {"copy": "copied to", "move": "moved to"}[verb]


def _say_outputs(console: "Console", sorter: "Sorter | None", tally: "Tally", *written: str | None) -> None:
    """What is now where."""
    from deepbdc.report.classification import say

    if sorter is not None:
        many = f"{tally.placed:,} {'picture' if tally.placed == 1 else 'pictures'}"
        if sorter.dry_run:
            say(console, f"Dry run: nothing was done. {many} would go to {sorter.target}.")
        else:
            say(console, f"{'Copied' if sorter.copy else 'Moved'} {many} to {sorter.target}.")
    for path in written:
        if path is not None:
            say(console, f"Results: {path}")
