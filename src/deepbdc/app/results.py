"""Writes the answers as files: CSV for spreadsheets, JSON for programs and for Label Studio, and ZIP for people.

CSV and JSON have the columns of ``deepbdc classify``, and one more, which says who gave the answer.
"""

import csv
import io
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from deepbdc.app.visitor import Result, Visitor
from deepbdc.estimator import NONE_OF_THESE, Prediction
from deepbdc.report.classification import ClassifiedPicture, from_prediction, write_csv, write_json
from deepbdc.sorting import folder_names, safe_folder_name

ANSWERED_BY = "answered_by"
_BYTE_ORDER_MARK = "\ufeff"  # without it, Excel takes the text for another encoding than UTF-8
_Writer = Callable[[Path, Sequence[str]], AbstractContextManager[Callable[[ClassifiedPicture], None]]]


def to_csv(results: Sequence[Result], classes: Sequence[str], places: Sequence[str] = ()) -> str:
    """One row per picture. Cells that a spreadsheet would run as a formula are defused.

    Args:
        results: The answers.
        classes: The classes in the order of the probabilities.
        places: For each picture, its path in the ZIP file that the table is part of.
    """
    header, *rows = csv.reader(io.StringIO(_written(write_csv, results, classes, places)))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*header, ANSWERED_BY])
    writer.writerows([*row, _author(result)] for row, result in zip(rows, results, strict=True))
    return _BYTE_ORDER_MARK + text.getvalue()


def to_json(results: Sequence[Result], classes: Sequence[str]) -> str:
    """An object with the classes and a list of results."""
    content = json.loads(_written(write_json, results, classes))
    for entry, result in zip(content["results"], results, strict=True):
        entry[ANSWERED_BY] = _author(result)
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def to_label_studio(results: Sequence[Result], classes: Sequence[str]) -> str:
    """Tasks for Label Studio: answers of the classifier are predictions, those of the person are annotations.

    The pictures are given by their paths in the ZIP file, below the folder that Label Studio serves.
    """
    tasks = []
    for result, place in zip(results, places_of(results, classes), strict=True):
        task: dict[str, Any] = {"data": {"image": f"/data/local-files/?d={quote(place)}", "file": result.name}}
        if result.by_person:
            task["annotations"] = [{"result": [_choice(result.answer)]}]
        if result.prediction is not None:
            task["predictions"] = [_guess(result.prediction)]
        tasks.append(task)
    return json.dumps(tasks, ensure_ascii=False, indent=1) + "\n"


def write_zip(path: Path, visitor: Visitor) -> None:
    """The pictures, sorted into one folder per class, and a table of the answers."""
    results, classes = visitor.results(), visitor.answer_names()
    places = places_of(results, classes)
    with zipfile.ZipFile(path, "w") as file:  # not compressed, as pictures are so already
        file.writestr("results.csv", to_csv(results, classes, places))
        for result, place in zip(results, places, strict=True):
            file.writestr(place, visitor.original(result.picture_id))


def places_of(results: Sequence[Result], classes: Sequence[str]) -> list[str]:
    """A path for each picture: the folder of its answer, and its name with a number if that is taken."""
    answers = list(dict.fromkeys([*classes, NONE_OF_THESE, *(result.answer for result in results)]))
    folders = dict(zip(answers, folder_names(answers), strict=True))
    found: list[str] = []
    taken: set[str] = set()
    for result in results:
        candidates = (f"{folders[result.answer]}/{name}" for name in _file_names(result.name))
        place = next(name for name in candidates if name.casefold() not in taken)
        taken.add(place.casefold())
        found.append(place)
    return found


def _file_names(name: str) -> Iterator[str]:
    """``a.jpg``, ``a (2).jpg``, ``a (3).jpg``, ... without the folders of a path."""
    path = Path(safe_folder_name(name.rpartition("/")[2]))
    return (path.name if number == 1 else f"{path.stem} ({number}){path.suffix}" for number in count(1))


def _written(writer: _Writer, results: Sequence[Result], classes: Sequence[str], places: Sequence[str] = ()) -> str:
    """What the command line would write about these results."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "results")
        with writer(path, classes) as add:
            for number, result in enumerate(results):
                place = Path(places[number]) if places else None
                add(replace(_row(result, classes), place=place))
        return path.read_text(encoding="utf-8-sig")


def _row(result: Result, classes: Sequence[str]) -> ClassifiedPicture:
    file = Path(result.name)
    if result.prediction is None:
        return ClassifiedPicture(file, result.answer)
    row = from_prediction(file, result.prediction, reject=True)
    if not result.by_person:
        return row
    known = dict(zip(classes, row.probabilities, strict=True))
    return replace(row, label=result.answer, probability=known.get(result.answer))


def _author(result: Result) -> str:
    return "person" if result.by_person else "classifier"


def _choice(answer: str) -> dict[str, Any]:
    return {"from_name": "label", "to_name": "image", "type": "choices", "value": {"choices": [answer]}}


def _guess(prediction: Prediction) -> dict[str, Any]:
    score = 1 - prediction.probability if prediction.rejected else prediction.probability
    return {"model_version": "deepbdc", "score": float(score), "result": [_choice(str(prediction.answer))]}
