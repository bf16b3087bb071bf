"""Kept results with the accuracy of every episode: a new method can be paired with them without their networks.

The gallery is the folder ``gallery/DATA/BACKBONE/METHOD.json`` of the repository; it is not part of the installed
package. ``benchmarks/keep.py`` adds finished runs to it.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepbdc._files import folders_of_repository
from deepbdc.errors import UserError
from deepbdc.evaluation import EvaluationResult
from deepbdc.runs import RESULT


@dataclass(frozen=True)
class KeptResult:
    """The results of one training, one for each number of shots, from a file. Fields that the file lacks are None."""

    name: str
    path: Path
    results: tuple[EvaluationResult, ...] = field(repr=False)
    method: str | None = None
    training_seed: int | None = None
    version: str | None = None
    """The version of deepbdc that evaluated it."""
    time: str | None = None
    """When it was evaluated (UTC)."""
    looks: int | None = None
    """How often the run had been evaluated on the test classes by then, see `record_look`."""


def load_result(path_or_name: str | Path) -> KeptResult:
    """Read the results of a training, with the accuracy of every episode.

    Args:
        path_or_name: The folder of a finished run; a file of results (``result.json``, ``evaluation-*.json``, or one of
            the gallery, with or without ``.json``); or a name in the gallery, such as ``cifar_fs/conv4/stl_deepbdc``.
    """
    path = find_result(path_or_name)
    if path is None:
        raise FileNotFoundError(
            f"there is no result {path_or_name}: give the folder of a finished run, a file of results, or a name in "
            f"the gallery.{_names_in_gallery()}"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        results = tuple(EvaluationResult.from_json(one) for one in content["results"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged or is not a file of results ({type(error).__name__}: {error})") from error
    known: dict[str, Any] = {key: content.get(key) for key in ("method", "training_seed", "time", "looks")}
    name = path.parent.name if path.name == RESULT else path.stem
    return KeptResult(name, path, results, version=content.get("deepbdc"), **known)


def find_result(path_or_name: str | Path) -> Path | None:
    """The file of results that a path or name of `load_result` means; None if there is none."""
    path = Path(path_or_name)
    if path.is_dir():
        return path / RESULT if (path / RESULT).is_file() else None
    if path.is_file():
        return path if path.suffix == ".json" else None
    text = str(path_or_name)
    inner = text.removeprefix("gallery/")
    candidates = [Path(f"{text}.json"), *(root / end for root in _roots() for end in (inner, f"{inner}.json"))]
    return next((file for file in candidates if file.is_file()), None)


def _roots() -> list[Path]:
    """The folders that may be the gallery."""
    return folders_of_repository("gallery")


def _names_in_gallery() -> str:
    """A sentence with some of the names in the gallery; empty if there is no gallery."""
    for root in _roots():
        names = sorted(str(file.relative_to(root).with_suffix("")) for file in root.glob("*/*/*.json"))
        if names:
            return f" The gallery has {', '.join(names)}."
    return ""
