"""The numbers of a table as plain values, with where each comes from."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from deepbdc import __version__
from deepbdc.paper.cells import Cell, FilledRow
from deepbdc.paper.experiments import Experiment
from deepbdc.report.latency import Latency


def as_json(
    experiment: Experiment, rows: Sequence[FilledRow], latencies: Mapping[int, Mapping[str, Latency]], data: str
) -> dict[str, Any]:
    """The numbers of a table.

    Args:
        experiment: The table.
        rows: Its rows with their results.
        latencies: By shots and name of the row.
        data: The data set of ours.
    """
    return {
        "deepbdc": __version__,
        "name": experiment.name,
        "place": experiment.place,
        "title": experiment.title,
        "data": data,
        "rows": [_row(experiment, filled, latencies) for filled in rows],
    }


def _row(experiment: Experiment, filled: FilledRow, latencies: Mapping[int, Mapping[str, Latency]]) -> dict[str, Any]:
    row = filled.row
    published = dict.fromkeys(experiment.data[:1], row.published) | dict(row.beside)
    return {
        "name": row.name,
        "method": row.method,
        "identity": dict(row.identity),
        "classifier": row.classifier,
        "published": {
            on: {str(shot): list(value) for shot, value in paper.accuracies.items()} | dict(paper.values)
            for on, paper in published.items()
            if paper is not None
        },
        "ours": {str(shot): _cell(cell) for shot, cell in filled.cells.items()},
        "latency_ms": {str(shot): asdict(timed[row.name]) for shot, timed in latencies.items() if row.name in timed},
    }


def _cell(cell: Cell) -> dict[str, Any]:
    result = cell.result
    if result is None:
        return {"reason": cell.reason}
    return {
        "mean": result.mean,
        "ci95": result.ci95,
        "ci95_classes": result.ci95_classes,
        "transductive": result.transductive,
        "run": str(cell.run),
        "training_seed": cell.seed,
        "looks": cell.looks,
        "dataset": result.dataset,
        "data_fingerprint": result.data_fingerprint,
        "episodes": len(result.accuracies),
        "episodes_seed": result.seed,
        "episodes_fingerprint": result.episodes_fingerprint,
        "weights_fingerprint": result.weights_fingerprint,
        "other_seeds": [other.mean for other in cell.other_seeds],
    }
