"""What ``deepbdc classify``, ``fit`` and ``explain`` share: the examples that a person gave, notes, a progress bar."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepbdc.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from deepbdc.estimator import EmbeddedImage, FewShotClassifier

EXAMPLE_FOLDERS = "one folder for each class, like EXAMPLES/kingfisher/1.jpg and EXAMPLES/heron/1.jpg"
NOT_LEARNT = ("device", "batch_size")
"""Settings that leave the answers as they are."""


@dataclass(frozen=True)
class Examples:
    """Where classes are learnt from: example pictures in folders, or a classifier that has learnt already."""

    path: Path
    settings: dict[str, Any]
    """Of the estimator, where given."""
    files: tuple[Path, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def saved(self) -> bool:
        """Whether this is a fitted classifier."""
        return not self.files

    @classmethod
    def find(cls, given: str, settings: dict[str, Any]) -> "Examples":
        """Look at what a person gave, and say in words if it is not what is needed."""
        from deepbdc.sorting import not_there

        path = Path(given)
        if settings.get("batch_size", 1) < 1:
            raise UserError(f"--batch-size must be at least 1, got {settings['batch_size']}")
        if path.is_dir():
            pairs = [(file, name) for name, files in _class_folders(path).items() for file in files]
            return cls(path, settings, tuple(file for file, _ in pairs), tuple(name for _, name in pairs))
        if not path.exists():
            raise FileNotFoundError(not_there(path))
        if path.suffix != ".safetensors":
            raise UserError(
                f"{given} is neither a folder nor a classifier saved by 'deepbdc fit' (.safetensors). "
                f"Needed is a folder with {EXAMPLE_FOLDERS}."
            )
        learnt = [f"--{name}" for name in settings if name not in NOT_LEARNT]
        if learnt:
            raise UserError(
                f"{given} is a fitted classifier, which has settings of its own: leave out {', '.join(learnt)}"
            )
        return cls(path, settings)

    def classifier(self) -> "FewShotClassifier":
        """The fitted classifier."""
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
        """An estimator that is not fitted yet, and the examples after their way through the network."""
        from rich.console import Console

        from deepbdc._memory import keep_freed_memory
        from deepbdc.estimator import FewShotClassifier

        keep_freed_memory()
        estimator = FewShotClassifier(**self.settings)
        embedded: list[EmbeddedImage] = []
        with progress_bar(Console(stderr=True), "Learning", len(self.files)) as advance:
            for chunk in _chunks(self.files, estimator.batch_size):
                # By their place among the examples: a saved classifier need not tell where on a machine they lay.
                embedded += [
                    replace(image, name=file.relative_to(self.path).as_posix())
                    for image, file in zip(estimator.embed(chunk), chunk, strict=True)
                ]
                advance(len(chunk))
        return estimator, embedded


def _class_folders(path: Path) -> dict[str, list[Path]]:
    """The pictures of each class."""
    from deepbdc.data.loading import class_folders
    from deepbdc.sorting import is_picture

    classes = class_folders(path)
    loose = sum(is_picture(file) for file in path.iterdir() if file.is_file())
    if loose:
        note(f"{loose:,} of the pictures in {path} lie in no class folder, and are not used")
    return classes


def given_options(**options: Any) -> dict[str, Any]:
    """Those options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def note(text: str) -> None:
    """Something that is worth knowing, beside the results."""
    from rich.console import Console

    from deepbdc.report.classification import say

    say(Console(stderr=True), f"Note: {text}.")


@contextmanager
def progress_bar(screen: "Console", what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, nothing elsewhere; yields a function that moves it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = not screen.is_terminal
    with Progress(*columns, console=screen, transient=True, disable=hidden, redirect_stdout=False) as bar:
        task = bar.add_task(what, total=total)
        yield lambda number: bar.advance(task, number)


def _chunks(files: Sequence[Path], size: int) -> Iterator[list[Path]]:
    for start in range(0, len(files), size):
        yield list(files[start : start + size])
