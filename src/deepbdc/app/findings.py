"""What a check of a visitor's examples found, for the page: with the ids of pictures and classes."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from deepbdc.app.pictures import Picture
from deepbdc.own_images.checking import ExampleReport, first_twins

LABEL, TWINS, OUTLIER = "label", "twins", "outlier"
"""The findings that a visitor can answer with: keep it as it is."""


class Findings:
    """The findings of a report. Those that the visitor answered already are left out.

    Args:
        report: What the check found.
        examples: The examples by their ids, in the order of the report.
        classes: The id of each class, by its name.
    """

    def __init__(self, report: ExampleReport, examples: Mapping[str, Picture], classes: Mapping[str, str]) -> None:
        self._report = report
        self._examples = examples
        self._ids = list(examples)
        self._classes = classes

    def as_json(self) -> dict[str, Any]:
        """All findings as JSON values, each with an id."""
        return {
            "examples": len(self._ids),
            "wrong_labels": self._wrong_labels(),
            "twins": self._twins(),
            "outliers": self._outliers(),
            "alike": [
                {
                    "id": f"alike:{self._classes[one.first]}:{self._classes[one.second]}",
                    "classes": [self._classes[one.first], self._classes[one.second]],
                    "confused": one.confused,
                    "examples": one.examples,
                }
                for one in self._report.alike
            ],
            "few": [
                {"id": f"few:{self._classes[one.label]}", "class": self._classes[one.label], "examples": one.examples}
                for one in self._report.few
            ],
        }

    def _is_open(self, finding: str, picture_ids: Sequence[str]) -> bool:
        return not all(finding in self._examples[picture_id].kept for picture_id in picture_ids)

    def _wrong_labels(self) -> list[dict[str, Any]]:
        return [
            {
                "id": f"{LABEL}:{self._ids[one.index]}",
                "pictures": [self._ids[one.index]],
                "class": self._classes[one.label],
                "suggestion": self._classes[one.suggestion],
                "sureness": one.sureness,
            }
            for one in self._report.wrong_labels
            if self._is_open(LABEL, [self._ids[one.index]])
        ]

    def _outliers(self) -> list[dict[str, Any]]:
        return [
            {
                "id": f"{OUTLIER}:{self._ids[one.index]}",
                "pictures": [self._ids[one.index]],
                "class": self._classes[one.label],
            }
            for one in self._report.outliers
            if self._is_open(OUTLIER, [self._ids[one.index]])
        ]

    def _twins(self) -> list[dict[str, Any]]:
        """Pictures that occur several times, each with all its copies. Those with different labels come first."""
        first = first_twins(self._report.twins, len(self._ids)).tolist()
        copies: dict[int, list[str]] = defaultdict(list)
        for picture_id, original in zip(self._ids, first, strict=True):
            copies[original].append(picture_id)
        different = {first[pair.first] for pair in self._report.twins if not pair.identical}
        found = [
            {
                "id": f"{TWINS}:{picture_ids[0]}",
                "pictures": picture_ids,
                "identical": original not in different,
                "same_label": len({self._examples[picture_id].class_id for picture_id in picture_ids}) == 1,
            }
            for original, picture_ids in copies.items()
            if len(picture_ids) > 1 and self._is_open(TWINS, picture_ids)
        ]
        return sorted(found, key=lambda one: bool(one["same_label"]))
