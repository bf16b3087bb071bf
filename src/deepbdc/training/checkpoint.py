"""Checkpoints: tensors and a JSON header in one safetensors file, written whole or not at all. Nothing is unpickled."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from deepbdc._files import write_bytes
from deepbdc.backbones.base import Preprocessing
from deepbdc.training.stages import Task

FORMAT = 1
_KEY = "deepbdc"
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


def save(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a header of plain values."""
    from safetensors.torch import save as as_bytes

    whole = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    write_bytes(path, as_bytes(whole, {_KEY: json.dumps({"format": FORMAT, **header})}))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save` wrote; anything else is an error that names the file."""
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    content = path.read_bytes()  # at once: the file may be replaced by a newer one while we look
    try:
        tensors: dict[str, Tensor] = from_bytes(content)
        length = int.from_bytes(content[:8], "little")
        header: dict[str, Any] = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][_KEY])
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged, or was not written by deepbdc ({type(error).__name__})") from error
    if header.get("format") != FORMAT:
        raise ValueError(f"{path} has format {header.get('format')}, this version of deepbdc reads {FORMAT}")
    return tensors, header


def save_weights(path: Path, task: Task, header: Mapping[str, Any]) -> None:
    """Write a trained network, with what a user of it must know: ``header`` and the pre-processing."""
    save(path, task.state_dict(), {**header, "kind": "weights", "preprocessing": _preprocessing(task)})


def _preprocessing(task: Task) -> dict[str, Any]:
    return asdict(task.method.embedding.preprocessing)


def load_into(
    network: nn.Module, tensors: Mapping[str, Tensor], prefix: str, source: Path, ignore: tuple[str, ...] = ()
) -> None:
    """Give ``network`` the tensors whose names begin with ``prefix``: all of its own, and no other.

    What begins with one of ``ignore``, or lies beside the prefix in a checkpoint, is left aside.
    """
    others = [name for name in tensors if not name.startswith((prefix, _MOMENTUM, *ignore))]
    if others:
        raise ValueError(f"{source} does not fit the network: it also has {', '.join(others[:3])}")
    chosen = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    own = {name: value.shape for name, value in network.state_dict().items()}
    given = {name: value.shape for name, value in chosen.items()}
    wrong = sorted(name for name in own.keys() | given.keys() if own.get(name) != given.get(name))
    if wrong:
        raise ValueError(f"{source} does not fit the network: different or missing are {', '.join(wrong[:3])}")
    network.load_state_dict(chosen)


def read_preprocessing(header: Mapping[str, Any]) -> Preprocessing:
    """The pre-processing in the header of a weights file."""
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in header["preprocessing"].items()
    }
    return Preprocessing(**given)


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
    load_into(task, tensors, _WEIGHTS, source)
    for name, value in task.named_parameters():
        if _MOMENTUM + name in tensors:
            buffer = torch.empty_like(value, memory_format=torch.preserve_format)
            optimiser.state[value]["momentum_buffer"] = buffer.copy_(tensors[_MOMENTUM + name])
