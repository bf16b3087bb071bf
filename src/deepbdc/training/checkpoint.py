"""Checkpoints: what is needed to use a trained network, or to go on with its training."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD

from deepbdc.training.stages import Task
from deepbdc.weight_files import load, load_into, save

_WEIGHTS, _MOMENTUM = "weights.", "momentum."


@dataclass
class Progress:
    """How far a stage is: all that is needed to go on, besides weights and momentum."""

    stage: str
    epoch: int = 0
    """Epochs that are complete."""
    step: int = 0
    """Steps done of the epoch that is not."""
    losses: float = 0.0
    """Sum over these steps."""
    accuracies: float = 0.0
    best_epoch: int | None = None
    best_accuracy: float | None = None
    seconds: float = 0.0
    """Of the whole run."""
    precision: dict[str, Any] = field(default_factory=dict)
    """State of the loss scaling of half precision."""
    seed: int = 0
    """With the position it is the state of all random streams: each is drawn from its place alone."""


def save_weights(path: Path, task: Task, header: Mapping[str, Any]) -> None:
    """Write a trained network, with what a user of it must know: ``header`` and the pre-processing."""
    save(path, task.state_dict(), {**header, "kind": "weights", "preprocessing": _preprocessing(task)})


def _preprocessing(task: Task) -> dict[str, Any]:
    return asdict(task.method.embedding.preprocessing)


def save_progress(path: Path, task: Task, optimiser: SGD, progress: Progress, header: Mapping[str, Any]) -> None:
    """Write all that is needed to go on. Refuses to replace a good checkpoint by broken weights."""
    weights = task.state_dict()
    broken = [name for name, value in weights.items() if value.is_floating_point() and not value.isfinite().all()]
    if broken:
        raise FloatingPointError(f"weights are no longer finite ({', '.join(broken[:3])})")
    momentum = {
        name: optimiser.state[value]["momentum_buffer"]
        for name, value in task.named_parameters()
        if optimiser.state.get(value, {}).get("momentum_buffer") is not None
    }
    tensors = {_WEIGHTS + name: value for name, value in weights.items()}
    tensors |= {_MOMENTUM + name: value for name, value in momentum.items()}
    own = {"kind": "progress", "progress": asdict(progress), "preprocessing": _preprocessing(task)}
    save(path, tensors, {**header, **own})


def read_progress(path: Path) -> tuple[Progress, dict[str, Tensor], dict[str, Any]] | None:
    """The last checkpoint of a run, if there is one: progress, tensors and header."""
    if not path.is_file():
        return None
    tensors, header = load(path)
    return Progress(**header["progress"]), tensors, header


def restore(task: Task, optimiser: SGD, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Put weights and momentum back where `save_progress` took them from."""
    load_into(task, tensors, _WEIGHTS, source, ignore=(_MOMENTUM,))
    for name, value in task.named_parameters():
        if _MOMENTUM + name in tensors:
            buffer = torch.empty_like(value, memory_format=torch.preserve_format)
            optimiser.state[value]["momentum_buffer"] = buffer.copy_(tensors[_MOMENTUM + name])
