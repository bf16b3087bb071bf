"""Checkpoints: what is needed to use a trained network, or to continue its training."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from deepbdc.errors import UserError
from deepbdc.stages import Objective
from deepbdc.weight_files import load, load_into, save

_WEIGHTS, _OPTIMISER = "weights.", "optimiser."
LAYOUT = 2
"""Version of the checkpoints to resume from; version 1 held the momentum of SGD only."""


@dataclass
class Progress:
    """How far a stage is: everything that is needed to continue, besides the weights and the optimiser's state."""

    stage: str
    epoch: int = 0
    """Complete epochs."""
    step: int = 0
    """Steps done of the next epoch."""
    sums: dict[str, float] = field(default_factory=dict)
    """Sums over these steps of the loss and of the other numbers that are logged."""
    best_epoch: int | None = None
    best_accuracy: float | None = None
    seconds: float = 0.0
    """Duration of the whole run so far."""
    precision: dict[str, Any] = field(default_factory=dict)
    """State of the loss scaling of half precision."""
    seed: int = 0
    """The seed and the position determine all random numbers, so no generator state is kept."""
    processes: int = 1
    """Processes that trained together."""

    def add(self, numbers: Mapping[str, float]) -> None:
        """Add the numbers of one more step of the epoch."""
        self.step += 1
        for name, value in numbers.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def finish_epoch(self) -> None:
        """Begin the next epoch."""
        self.epoch, self.step, self.sums = self.epoch + 1, 0, {}


def save_weights(path: Path, objective: Objective, header: Mapping[str, Any]) -> None:
    """Write a trained network with ``header`` and its pre-processing."""
    save(path, objective.state_dict(), {**header, "kind": "weights", "preprocessing": _preprocessing(objective)})


def _preprocessing(objective: Objective) -> dict[str, Any]:
    return asdict(objective.method.embedding.preprocessing)


def save_progress(
    path: Path, objective: Objective, optimiser: Optimizer, progress: Progress, header: Mapping[str, Any]
) -> None:
    """Write everything that is needed to continue. Refuses to replace a good checkpoint by broken weights."""
    weights = objective.state_dict()
    broken = [name for name, value in weights.items() if value.is_floating_point() and not value.isfinite().all()]
    if broken:
        raise FloatingPointError(f"weights are no longer finite ({', '.join(broken[:3])})")
    tensors = {_WEIGHTS + name: value for name, value in weights.items()}
    state = optimiser.state_dict()
    values: dict[str, dict[str, Any]] = {}
    for number, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{_OPTIMISER}{number}.{name}"] = value
            elif value is not None:
                values.setdefault(str(number), {})[name] = value
    own = {
        "kind": "progress",
        "layout": LAYOUT,
        "progress": asdict(progress),
        "optimiser": {"values": values, "groups": state["param_groups"]},
        "preprocessing": _preprocessing(objective),
    }
    save(path, tensors, {**header, **own})


@dataclass(frozen=True)
class Saved:
    """A checkpoint to resume from."""

    progress: Progress
    tensors: dict[str, Tensor]
    header: dict[str, Any]


def read_progress(path: Path) -> Saved | None:
    """The last checkpoint of a run, if there is one."""
    if not path.is_file():
        return None
    tensors, header = load(path)
    if header.get("layout") != LAYOUT:
        raise UserError(
            f"{path} was written by an earlier version of deepbdc, which kept other states of the optimiser: finish "
            "the run with that version, or train it again in another folder (--run)"
        )
    return Saved(Progress(**header["progress"]), tensors, header)


def restore(objective: Objective, optimiser: Optimizer, saved: Saved, source: Path) -> None:
    """Put the weights and the optimiser's state back where `save_progress` took them from."""
    load_into(objective, saved.tensors, _WEIGHTS, source, ignore=(_OPTIMISER,))
    stored = saved.header["optimiser"]
    state: dict[int, dict[str, Any]] = {int(number): dict(entries) for number, entries in stored["values"].items()}
    for name, value in saved.tensors.items():
        if name.startswith(_OPTIMISER):
            number, _, key = name.removeprefix(_OPTIMISER).partition(".")
            state.setdefault(int(number), {})[key] = value
    optimiser.load_state_dict({"state": state, "param_groups": stored["groups"]})
    for value, entries in optimiser.state.items():  # in the memory layout of the parameter, which decides on rounding
        for key, entry in entries.items():
            if isinstance(entry, Tensor) and entry.shape == value.shape:
                entries[key] = torch.empty_like(value, dtype=entry.dtype).copy_(entry)
