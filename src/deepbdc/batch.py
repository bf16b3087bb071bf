"""Classifies any number of picture files on many processes or machines with Ray Data, into Parquet files.

Work that was interrupted continues: files whose answers are in the output are not classified again.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepbdc._optional import require
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from deepbdc.data.images import BadImage

COLUMNS = ("file", "label", "probability", "runner_up", "runner_up_probability", "looks_like_none", "problem")


class Worker:
    """One process: it loads the classifier once and answers batches of files.

    Args:
        model: The file of a saved classifier, which every machine must be able to read.
        threads: How many threads torch may use.
    """

    def __init__(self, model: str, threads: int = 1) -> None:
        import torch

        from deepbdc.estimator import FewShotClassifier

        torch.set_num_threads(threads)
        self.fitted = FewShotClassifier.load(model)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Answers for the files of a batch, as columns. A file that cannot be read has a problem and no label."""
        files = [str(file) for file in batch["file"]]
        bad: list[BadImage] = []
        answers = {answer.name: answer for answer in self.fitted.classify(files, on_bad=bad.append)}
        problems = iter(bad)  # in the order of the files
        rows = [_row(file, answers.get(file), problems, len(self.fitted.classes_)) for file in files]
        columns: dict[str, Any] = {name: np.array([row[name] for row in rows], dtype=object) for name in COLUMNS}
        for name, kind in (("probability", np.float64), ("runner_up_probability", np.float64)):
            columns[name] = columns[name].astype(kind)
        columns["looks_like_none"] = columns["looks_like_none"].astype(bool)
        columns["probabilities"] = np.stack([row["probabilities"] for row in rows])
        return columns


def _row(file: str, answer: Any, problems: Any, classes: int) -> dict[str, Any]:
    if answer is None:
        empty = {"label": "", "probability": np.nan, "runner_up": "", "runner_up_probability": np.nan}
        nothing = {"looks_like_none": False, "probabilities": np.full(classes, np.nan)}
        return {"file": file, **empty, **nothing, "problem": str(next(problems))}
    return {
        "file": file,
        "label": str(answer.label),
        "probability": answer.probability,
        "runner_up": "" if answer.runner_up is None else str(answer.runner_up),
        "runner_up_probability": answer.runner_up_probability,
        "looks_like_none": answer.rejected,
        "problem": "",
        "probabilities": answer.probabilities,
    }


def classify_files(
    model: str | Path,
    files: Sequence[str | Path],
    output: str | Path,
    *,
    workers: int = 2,
    batch_size: int = 64,
    files_per_part: int = 1000,
) -> int:
    """Classify files on a Ray cluster, or on this machine, and write the answers into Parquet files.

    Call it again with the same ``output`` to continue after an interruption, or to classify files that were added.

    Args:
        model: A classifier saved by `deepbdc fit`.
        files: The pictures.
        output: The folder of the Parquet files. Each has at most ``files_per_part`` answers, and is written when these
            are known.
        workers: Processes, each with the classifier in its memory.
        batch_size: Pictures that a process is given at a time.
        files_per_part: Pictures whose answers are written together; this much is lost by an interruption.

    Returns:
        How many pictures were classified now.
    """
    data = require("ray.data", "ray")
    path = Path(model).resolve()
    if not path.is_file():
        raise UserError(f"there is no saved classifier {model}: make one with 'deepbdc fit'")
    folder = Path(output).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    done = finished(folder)
    left = [name for name in map(str, files) if name not in done]
    if not left:
        return 0
    parts = math.ceil(len(left) / files_per_part)
    dataset = data.from_items([{"file": name} for name in left], override_num_blocks=parts)
    answers = dataset.map_batches(
        Worker, fn_constructor_args=(str(path),), concurrency=workers, batch_size=min(batch_size, files_per_part)
    )
    answers.write_parquet(str(folder), mode=data.SaveMode.APPEND)
    return len(left)


def finished(folder: Path) -> set[str]:
    """The files whose answers are in the Parquet files of a folder. A file that an interruption damaged is deleted."""
    parquet = require("pyarrow.parquet", "ray")
    error = require("pyarrow", "ray").ArrowInvalid
    done: set[str] = set()
    for part in sorted(folder.glob("*.parquet")):
        try:
            done.update(parquet.read_table(part, columns=["file"])["file"].to_pylist())
        except error:
            part.unlink()
    return done
