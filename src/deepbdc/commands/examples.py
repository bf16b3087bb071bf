"""What the commands for own pictures share: the source of the classes, the pictures, notes and a progress bar."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepbdc._words import counted
from deepbdc.commands.common import check_device, say_at_once
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from deepbdc.data.images import BadImage
    from deepbdc.estimator import EmbeddedImage, FewShotClassifier

EXAMPLE_FOLDERS = "one folder for each class, like EXAMPLES/kingfisher/1.jpg and EXAMPLES/heron/1.jpg"
NOT_LEARNT = ("device", "batch_size")
"""Settings that do not change what a classifier learns, so that they can be given for a saved one, too."""


@dataclass(frozen=True)
class ExampleSource:
    """Where the classes come from: a folder with example pictures of each class, or a saved classifier."""

    path: Path
    settings: dict[str, Any]
    """Options of `FewShotClassifier` that the user gave."""
    files: tuple[Path, ...] = ()
    """The example pictures; empty for a saved classifier."""
    labels: tuple[str, ...] = ()
    """The class of each file."""

    @property
    def saved(self) -> bool:
        """Whether this is a saved classifier."""
        return not self.files

    @classmethod
    def find(cls, path: Path, settings: dict[str, Any]) -> "ExampleSource":
        """Find the example pictures or the saved classifier at ``path``, check the settings, and say what comes.

        Raises:
            UserError: The path holds neither, or the settings do not fit.
            FileNotFoundError: The path does not exist.
        """
        from deepbdc.sorting import not_there

        if settings.get("batch_size", 1) < 1:
            raise UserError(f"--batch-size must be at least 1, got {settings['batch_size']}")
        if path.is_dir():
            say_at_once(f"Learning from the examples in {path} ...")
            _check_device(settings)
            pairs = [(file, name) for name, files in _class_folders(path).items() for file in files]
            return cls(path, settings, tuple(file for file, _ in pairs), tuple(name for _, name in pairs))
        if not path.exists():
            raise FileNotFoundError(not_there(path))
        if path.suffix != ".safetensors":
            raise UserError(
                f"{path} is neither a folder nor a classifier saved by 'deepbdc fit' (.safetensors). "
                f"Give a folder with {EXAMPLE_FOLDERS}."
            )
        learnt = [f"--{name}" for name in settings if name not in NOT_LEARNT]
        if learnt:
            raise UserError(f"{path} is a saved classifier, which has its own settings: omit {', '.join(learnt)}")
        say_at_once(f"Loading the classifier {path} ...")
        _check_device(settings)
        return cls(path, settings)

    def classifier(self) -> "FewShotClassifier":
        """Load the saved classifier, or fit one to the example pictures."""
        from deepbdc._memory import keep_freed_memory
        from deepbdc.estimator import FewShotClassifier

        keep_freed_memory()
        if self.saved:
            fitted = FewShotClassifier.load(self.path, device=self.settings.get("device", "cpu"))
            fitted.batch_size = self.settings.get("batch_size", fitted.batch_size)
            return fitted
        estimator, embedded = self.embed()
        return estimator.fit(embedded, self.labels)

    def embed(self) -> "tuple[FewShotClassifier, list[EmbeddedImage]]":
        """Return an estimator that is not fitted yet, and the example pictures embedded by its network.

        If some pictures cannot be read, one error names them all.
        """
        from deepbdc.own_images.reading import raise_bad

        bad: list[BadImage] = []
        estimator, embedded = self.embed_readable(bad.append)
        raise_bad(bad)
        return estimator, [image for image in embedded if image is not None]

    def embed_readable(
        self, on_bad: "Callable[[BadImage], None]"
    ) -> "tuple[FewShotClassifier, list[EmbeddedImage | None]]":
        """Like `embed`, but call ``on_bad`` with the error of each unreadable picture, and give None for it."""
        from rich.console import Console

        from deepbdc._memory import keep_freed_memory
        from deepbdc.estimator import FewShotClassifier

        keep_freed_memory()
        estimator = FewShotClassifier(**self.settings)
        embedded: list[EmbeddedImage | None] = []
        with progress_bar(Console(stderr=True), "Learning", len(self.files)) as advance:
            for chunk in _chunks(self.files, estimator.batch_size):
                parts = estimator.looks_at_parts
                found = {image.name: image for image in estimator.embed(chunk, on_bad=on_bad, parts=parts)}
                for file in chunk:
                    image = found.get(str(file))
                    # Paths are relative to the folder of examples: a saved classifier does not reveal absolute paths.
                    name = file.relative_to(self.path).as_posix()
                    embedded.append(None if image is None else replace(image, name=name))
                advance(len(chunk))
        return estimator, embedded


def _check_device(settings: dict[str, Any]) -> None:
    """Check the device, if one was given. This imports torch."""
    if "device" in settings:
        check_device(settings["device"])


def _class_folders(path: Path) -> dict[str, list[Path]]:
    """The pictures in the folder of each class. Prints a note if there are pictures outside of these folders."""
    from deepbdc.data.loading import class_folders
    from deepbdc.sorting import is_picture

    classes = class_folders(path)
    loose = sum(is_picture(file) for file in path.iterdir() if file.is_file())
    if loose:
        are = "is" if loose == 1 else "are"
        note(f"{counted(loose, 'picture')} in {path} {are} not in a class folder and {are} ignored")
    return classes


def find_files(places: Sequence[Path], source: ExampleSource, usage: str) -> list[Path]:
    """The pictures that a person named. Examples are never among them, so that they are not moved away.

    ``usage`` is a right command, for the error if there are none.
    """
    from deepbdc.sorting import find_pictures, is_inside

    if not places:
        raise UserError(f"no pictures are given. Give files or folders, like: {usage}")
    found = find_pictures(places)
    learnt = {file.resolve() for file in source.files}
    files = [
        file
        for file in found.pictures
        if source.saved or (file.resolve() not in learnt and not is_inside(file, source.path))
    ]
    named = ", ".join(map(str, places[:3])) + (", ..." if len(places) > 3 else "")
    others = f" {_no_suffix(found.others)}." if found.others else ""
    if not found.pictures:
        raise UserError(f"there is no picture in {named}.{others}")
    left_out = len(found.pictures) - len(files)
    if not files:
        raise UserError(f"all pictures in {named} are examples in {source.path}: give others")
    if left_out:
        what = "picture is an example" if left_out == 1 else "pictures are examples"
        note(f"{left_out:,} {what} in {source.path}, skipped")
    if found.others:
        note(f"{_no_suffix(found.others)}, skipped")
    if found.links:
        note(f"{counted(found.links, 'link')} to folders, or to pictures that are classified anyway, skipped")
    return files


def _no_suffix(number: int) -> str:
    return f"{counted(number, 'file has', 'files have')} no suffix of a picture"


def note(text: str) -> None:
    """Print a note to stderr."""
    from rich.console import Console

    from deepbdc.report.classification import say

    say(Console(stderr=True), f"Note: {text}.")


@contextmanager
def progress_bar(screen: "Console", what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar if ``screen`` is a terminal. Yields a function that advances it by a number of steps."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = not screen.is_terminal
    with Progress(*columns, console=screen, transient=True, disable=hidden, redirect_stdout=False) as bar:
        task = bar.add_task(what, total=total)
        yield lambda number: bar.advance(task, number)


def _chunks(files: Sequence[Path], size: int) -> Iterator[list[Path]]:
    for start in range(0, len(files), size):
        yield list(files[start : start + size])
