"""Checks the examples that a person gives: each picture has one label, and equal pictures are found."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepbdc.errors import UserError
from deepbdc.own_images import pictures
from deepbdc.own_images.explanation import NONE_OF_THESE
from deepbdc.own_images.pictures import EmbeddedImage, ImageLike


def check_labels(images: Any, labels: Any) -> tuple[Sequence[ImageLike], NDArray[Any]]:
    """The pictures as a sequence and their labels as an array of one type.

    Without labels, ``images`` is a folder that holds one folder of pictures per class.
    """
    if labels is None:
        if not isinstance(images, (str, Path)):
            raise UserError("labels are missing: give the class of each picture, or a folder with one folder per class")
        images, labels = pictures.folder_examples(images)
    images = pictures.as_list(images)
    labels = [labels] if isinstance(labels, str) and len(images) == 1 else labels
    if isinstance(labels, str):
        raise UserError(f"labels must be a list with one label per picture, got the single text {labels!r}")
    labels = list(pictures.one_column(labels))
    if len(images) != len(labels):
        raise UserError(f"every picture needs one label: there are {len(images)} pictures and {len(labels)} labels")
    if not labels:
        raise UserError("there is nothing to learn from: give at least one picture")
    array = np.array(labels)
    kinds = {_kind(label) for label in labels}
    if array.ndim != 1 or array.dtype.kind not in "UiufbO" or len(kinds) > 1 or any(label is None for label in labels):
        raise UserError(f"labels must be all strings or all numbers, got {', '.join(sorted(kinds))}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise UserError("labels must not be NaN or infinite")
    if NONE_OF_THESE in labels:
        raise UserError(f"no class may be called {NONE_OF_THESE!r}: this is the answer for pictures of no class")
    return images, array


def check_same_type(before: NDArray[Any], now: NDArray[Any]) -> None:
    """Refuse to add labels of another type: strings to numbers, for example."""
    kinds = [array.dtype.kind.replace("u", "i") for array in (before, now)]
    if kinds[0] != kinds[1]:
        raise UserError(f"labels were {before.dtype} before and are {now.dtype} now: give all of one type")


def without_duplicates(examples: Sequence[EmbeddedImage], labels: NDArray[Any]) -> tuple[list[int], str]:
    """Find pictures that were given more than once.

    Returns:
        The indices of the examples to learn from, where equal pictures with the same label count once; and one message
        about all pictures that equal another, which is empty if there are none.
    """
    first_with_label: dict[tuple[bytes, Any], int] = {}
    first: dict[bytes, int] = {}
    twins, contradictions = [], []
    for index, (example, label) in enumerate(zip(examples, labels.tolist(), strict=True)):
        twin = first_with_label.setdefault((example.thumbnail, label), index)
        other = first.setdefault(example.thumbnail, index)
        if twin != index:
            twins.append(f"{example.name} is the same picture as {examples[twin].name}: it counts once")
        elif other != index:
            contradictions.append(
                f"{example.name} is the same picture as {examples[other].name}, but one is labelled {label} "
                f"and the other {labels[other]}"
            )
    return sorted(first_with_label.values()), _at_most([*contradictions, *twins])


def _at_most(messages: Sequence[str], most: int = 3) -> str:
    """Join the first messages to one, so that a person is told once and not for every picture."""
    more = [f"and {len(messages) - most} more like these"] if len(messages) > most else []
    return "; ".join([*messages[:most], *more])


def _kind(label: Any) -> str:
    """The kind of a label. All labels must be of one kind."""
    if isinstance(label, (int, float, np.number)):
        return "number"
    return "text" if isinstance(label, str) else type(label).__name__
