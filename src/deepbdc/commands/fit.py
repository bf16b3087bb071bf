"""``deepbdc fit``: learn classes from example pictures, and save the classifier."""

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from deepbdc._words import counted
from deepbdc.commands.examples import EXAMPLE_FOLDERS, ExampleSource
from deepbdc.commands.options import OUTPUT, EstimatorOptions, Flag
from deepbdc.commands.targets import check_output
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from deepbdc.estimator import EmbeddedImage, FewShotClassifier


def fit_examples(
    examples: Path,
    /,
    *,
    output: Annotated[Path | None, Parameter(alias="-o", metavar="FILE", group=OUTPUT)] = None,
    onnx: Annotated[Path | None, Parameter(metavar="FILE", group=OUTPUT)] = None,
    force: Annotated[Flag, Parameter(group=OUTPUT)] = False,
    options: EstimatorOptions | None = None,
) -> None:
    """Learn classes from a few example pictures each, and save the classifier as one file.

    Make a folder that contains one folder for each class, and put one or more example pictures into each.
    The names of these folders are the labels. For example:

        deepbdc fit examples -o birds.safetensors
        deepbdc fit examples -o birds.safetensors --onnx birds.onnx --force

    The command also estimates the accuracy by cross-validation on the examples. `deepbdc classify` and
    `deepbdc explain` accept the saved file in place of the folder.

    Args:
        examples: A folder that contains one folder of example pictures for each class.
        output: Where to save the classifier (.safetensors). Required.
        onnx: Also save an ONNX model, which runs without deepbdc.
        force: Replace existing files.
    """
    from rich.console import Console

    from deepbdc.report.classification import say

    console = Console()
    targets = _targets(output, onnx, force)
    source = ExampleSource.find(examples, options.given() if options else {})
    if source.saved:
        raise UserError(f"{examples} is a saved classifier already. Give a folder with {EXAMPLE_FOLDERS}.")
    fitted, embedded = source.embed()
    fitted.fit(embedded, source.labels)
    numbers = f"{counted(len(fitted.classes_), 'class', 'classes')}, {counted(len(embedded), 'picture')}"
    say(console, f"{numbers}: {_counts(source.labels)}")
    say(console, _estimate(fitted, embedded, source.labels))
    say(console, _rejection(fitted, source.labels))
    for suffix, target in targets.items():
        (fitted.save if suffix == ".safetensors" else fitted.to_onnx)(target)
        say(console, f"Saved: {target}")


def _targets(output: Path | None, onnx: Path | None, force: bool) -> dict[str, Path]:
    """Check the files to write; return them by their suffix."""
    if output is None:
        raise UserError("--output is missing. Give a file, like: deepbdc fit EXAMPLES -o birds.safetensors")
    given = {".safetensors": ("-o", output), ".onnx": ("--onnx", onnx)}
    targets = {suffix: (option, path) for suffix, (option, path) in given.items() if path is not None}
    for suffix, (option, path) in targets.items():
        if path.suffix != suffix:
            raise UserError(f"{option} must end in {suffix}, got {str(path)!r}")
        check_output(path, force=force)
    return {suffix: path for suffix, (_, path) in targets.items()}


def _counts(labels: Sequence[str], most: int = 12) -> str:
    """List the first ``most`` classes with the number of their examples."""
    counts = Counter(labels)
    named = ", ".join(f"{name} ({number})" for name, number in list(counts.items())[:most])
    return named + (", ..." if len(counts) > most else "")


def _rejection(fitted: "FewShotClassifier", labels: Sequence[str]) -> str:
    """What to expect of ``--reject``: how many pictures of other classes it finds, if each class were unknown."""
    from deepbdc.own_images.rejection import USUAL_RATE

    found = fitted.confidence_.familiarity.others_rejected(USUAL_RATE)
    kept = f"{100 * (1 - USUAL_RATE):.0f} %"
    if max(Counter(labels).values()) == 1:
        return (
            "With a single example per class, --reject cannot know how much the pictures of a class differ: it finds "
            "only pictures that are very different. Give two or more examples of each class."
        )
    if found is None:
        return f"'deepbdc classify --reject {USUAL_RATE}' keeps about {kept} of the pictures of this class."
    return (
        f"'deepbdc classify --reject {USUAL_RATE}' keeps about {kept} of the pictures of these classes, and would find "
        f"{100 * found:.0f} % of the pictures of a class that is as close to them as they are to each other."
    )


def _estimate(estimator: "FewShotClassifier", embedded: "list[EmbeddedImage]", labels: Sequence[str]) -> str:
    """Estimate the accuracy by cross-validation. The examples are embedded already, so this is fast."""
    import numpy as np
    from sklearn.base import clone
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    counts = Counter(labels)
    if len(counts) == 1:
        return f"There is only one class. 'deepbdc classify --reject' finds pictures that are not {labels[0]}."
    single = [name for name, number in counts.items() if number == 1]
    if single:
        return f"No estimate of the accuracy: it needs two pictures of each class, and {single[0]} has one."
    folds = StratifiedKFold(min(5, *counts.values()), shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `fit` has given the same warnings once
        predicted = cross_val_predict(clone(estimator), embedded, np.array(labels), cv=folds)
    right = int(np.sum(predicted == np.array(labels)))
    few = "" if len(labels) >= 100 else ". With so few pictures this is a rough estimate"
    return (
        f"Estimated accuracy: {100 * right / len(labels):.0f} % ({right} of {len(labels)} examples are recognised from "
        f"the others, in {folds.get_n_splits()}-fold cross-validation){few}."
    )
