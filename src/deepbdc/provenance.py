"""Where a result comes from: the version and time of a result file, and the ledger of looks at test classes.

Whoever chooses a method or its settings by the test classes overestimates it. The folder of a run therefore has a
ledger, ``looks.jsonl``, with one line for each evaluation of the run on a test split by ``deepbdc train``, ``evaluate``
or ``compare``, and result files say how many looks there were.
"""

import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deepbdc import __version__
from deepbdc.evaluation import EvaluationResult
from deepbdc.preprocessing import AS_USUAL

LEDGER = "looks.jsonl"


def origin() -> dict[str, Any]:
    """What every result file says about the program that wrote it: its version, and the time (UTC)."""
    return {"deepbdc": __version__, "time": _now()}


def record_look(folder: str | Path, command: str, results: Sequence[EvaluationResult]) -> int | None:
    """Add an evaluation of a run to its ledger, if it was on a test split.

    A look at results that the ledger has already (the same weights, classifier and episodes, with the same views, power
    and mean) is written down as well, but is a repetition: it shows nothing new and is not counted.

    Args:
        folder: The folder of the run, or its folder of checkpoints.
        command: The command that evaluated it, such as ``evaluate``.
        results: The results, one for each number of shots.

    Returns:
        How often the test classes of this data have been looked at by this run, this time included; None for other
        splits. If the ledger cannot be written, a warning says so.
    """
    if not results or results[0].split != "test":
        return None
    folder = Path(folder)
    ledger = (folder.parent if folder.name == "checkpoints" else folder) / LEDGER
    look = {
        "time": _now(),
        "command": command,
        "dataset": results[0].dataset,
        "split": results[0].split,
        "data_fingerprint": results[0].data_fingerprint,
        "shots": [result.shot for result in results],
        "weights_fingerprints": [result.weights_fingerprint for result in results],
        "episodes_fingerprints": [result.episodes_fingerprint for result in results],
        "test_times": [asdict(result.test_time) for result in results],
    }
    looks = [*_read(ledger), look]
    try:
        _append(ledger, look)
    except OSError as error:
        warnings.warn(
            f"this look at the test classes could not be written to {ledger} ({error.strerror}); later results of the "
            "run will not count it",
            stacklevel=2,
        )
    return _count(looks, results[0].data_fingerprint)


def looks_of(folder: str | Path, data_fingerprint: str) -> int:
    """How often a run has looked at the test classes of this data, by its ledger."""
    return _count(_read(Path(folder) / LEDGER), data_fingerprint)


def _count(looks: Sequence[dict[str, Any]], data_fingerprint: str) -> int:
    """How many of the looks at the data showed something new."""
    seen: set[tuple[str, str, tuple[Any, ...]]] = set()
    count = 0
    for look in looks:
        if look["data_fingerprint"] == data_fingerprint:
            made = look.get("test_times", [asdict(AS_USUAL)] * len(look["shots"]))
            test_times = [tuple(sorted(one.items())) for one in made]
            shown = set(zip(look["weights_fingerprints"], look["episodes_fingerprints"], test_times, strict=True))
            count += not shown <= seen
            seen |= shown
    return count


def _read(ledger: Path) -> list[dict[str, Any]]:
    """The lines of a ledger. A line that a killed process did not complete is skipped."""
    if not ledger.is_file():
        return []
    looks = []
    for line in ledger.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            looks.append(json.loads(line))
        except ValueError:
            continue
    return looks


def _append(ledger: Path, look: dict[str, Any]) -> None:
    """Append one line in a single write, on a new line even if the last one is incomplete."""
    handle = os.open(ledger, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        end = os.lseek(handle, 0, os.SEEK_END)
        incomplete = False
        if end:
            os.lseek(handle, end - 1, os.SEEK_SET)
            incomplete = os.read(handle, 1) != b"\n"
        os.write(handle, ("\n" * incomplete + json.dumps(look) + "\n").encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
