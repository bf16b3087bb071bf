"""Writes the answers as CSV for spreadsheets and as JSON for programs."""

import csv
import io
import json
from collections.abc import Sequence

from deepbdc.app.visitor import Result
from deepbdc.report.classification import defused


def to_csv(results: Sequence[Result]) -> str:
    """One row per picture: its name, the answer, who gave the answer, and the probability of every class."""
    names = sorted({name for result in results for name in result.probabilities or {}})
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["picture", "answer", "answered by", *(defused(f"probability of {name}") for name in names)])
    for result in results:
        known = result.probabilities or {}
        values = [f"{known[name]:.4f}" if name in known else "" for name in names]
        writer.writerow([defused(result.name), defused(result.answer), _author(result), *values])
    return text.getvalue()


def to_json(results: Sequence[Result]) -> str:
    """A list with one object per picture."""
    entries = [
        {
            "picture": result.name,
            "answer": result.answer,
            "answered_by": _author(result),
            "probabilities": result.probabilities,
        }
        for result in results
    ]
    return json.dumps(entries, ensure_ascii=False, indent=2) + "\n"


def _author(result: Result) -> str:
    return "person" if result.probabilities is None else "classifier"
