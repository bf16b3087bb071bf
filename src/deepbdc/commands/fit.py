"""``deepbdc fit``: learn classes from example pictures, and save the classifier."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deepbdc.commands.common import errors_in_words
from deepbdc.commands.examples import EXAMPLE_FOLDERS, Examples, given_options
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from deepbdc.estimator import EmbeddedImage, FewShotClassifier


def fit_examples(
    examples: str,
    output: str | None = None,
    onnx: str | None = None,
    force: bool = False,
    backbone: str | None = None,
    pool: str | None = None,
    size: int | None = None,
    classifier: str | None = None,
    C: float | None = None,
    device: str | None = None,
    batch_size: int | None = None,
) -> None:
    """Learn classes from a few example pictures each, and save the classifier as one file.

    Make a folder with one folder for each class, and put one or more example pictures into each.
    How well it works is estimated too, by hiding some of the examples and classifying them by the
    others. For example:

        deepbdc fit examples -o birds.safetensors
        deepbdc fit examples -o birds.safetensors --onnx birds.onnx --force

    The file is all that 'deepbdc classify' and 'deepbdc explain' need in place of the folder.

    Args:
        examples: A folder with a folder for each class.
        output: Where to save the classifier, as .safetensors.
        onnx: Save it also as an ONNX model, which runs without this program.
        force: Replace files that are there already.
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

    from deepbdc.report.classification import say

    console = Console()
    with errors_in_words("fit"):
        settings = given_options(
            backbone=backbone, pool=pool, size=size, classifier=classifier, C=C, device=device, batch_size=batch_size
        )
        targets = _targets(output, onnx, force)
        source = Examples.find(examples, settings)
        if source.saved:
            raise UserError(f"{examples} is a fitted classifier already; needed is a folder with {EXAMPLE_FOLDERS}")
        fitted, embedded = source.embed()
        fitted.fit(embedded, source.labels)
        say(console, f"{len(fitted.classes_)} classes, {len(embedded)} pictures: {_counts(source.labels)}")
        say(console, _estimate(fitted, embedded, source.labels))
        for suffix, target in targets.items():
            (fitted.save if suffix == ".safetensors" else fitted.to_onnx)(target)
            say(console, f"Saved: {target}")


def _targets(output: str | None, onnx: str | None, force: bool) -> dict[str, Path]:
    """The files to write, by their suffix."""
    if output is None:
        raise UserError("where to? Give a file, like: deepbdc fit EXAMPLES -o birds.safetensors")
    given = {".safetensors": ("-o", output), ".onnx": ("--onnx", onnx)}
    targets = {suffix: (option, Path(path)) for suffix, (option, path) in given.items() if path is not None}
    for suffix, (option, path) in targets.items():
        if path.suffix != suffix:
            raise UserError(f"{option} must end in {suffix}, got {str(path)!r}")
        if path.is_dir() or (path.exists() and not force):
            mend = "give another name" if path.is_dir() else "give another name, or --force to replace it"
            raise UserError(f"{path} is there already: {mend}")
    return {suffix: path for suffix, (_, path) in targets.items()}


def _counts(labels: Sequence[str], most: int = 12) -> str:
    """How many examples each class has."""
    counts = Counter(labels)
    named = ", ".join(f"{name} ({number})" for name, number in list(counts.items())[:most])
    return named + (", ..." if len(counts) > most else "")


def _estimate(estimator: "FewShotClassifier", embedded: "list[EmbeddedImage]", labels: Sequence[str]) -> str:
    """The accuracy on examples that were hidden in turn; nothing goes through the network again."""
    import numpy as np
    from sklearn.base import clone
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    counts = Counter(labels)
    if len(counts) == 1:
        return f"There is one class only: --reject of 'deepbdc classify' tells what is not {labels[0]}."
    single = [name for name, number in counts.items() if number == 1]
    if single:
        return f"No estimate of the accuracy: that needs two pictures of each class, and {single[0]} has one."
    folds = StratifiedKFold(min(5, *counts.values()), shuffle=True, random_state=0)
    answers = cross_val_predict(clone(estimator), embedded, np.array(labels), cv=folds)
    right = int(np.sum(answers == np.array(labels)))
    few = "" if len(labels) >= 100 else ". With so few pictures this is a rough guess"
    return (
        f"Estimated accuracy: {100 * right / len(labels):.0f} % ({right} of {len(labels)} examples are recognised by "
        f"the others, in {folds.get_n_splits()} rounds){few}."
    )
