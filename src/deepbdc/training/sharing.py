"""Stages that runs have in common: what one run has trained, another takes over.

ProtoNet, DN4 and ADM, say, start from the same network after ordinary training on all classes. Two stages are the same
if they have the same data, settings and seed, and if they start from the same values and find the same loss and the
same gradients for the batches of the first two steps. Numbers are compared with a tolerance, because they round
differently on another machine or in another version. For the same reason the precision does not count: a network that
was trained in bf16 serves a processor that has no instructions for it. Names of methods and layers do not count,
because the same network has other names in other methods.
"""

import copy
import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepbdc import weight_files
from deepbdc._seeds import derive
from deepbdc.errors import NotFinite, UserError
from deepbdc.recipes import Recipe, Stage
from deepbdc.stages import Batches, Objective

_OF_VALIDATION = ("validate_from", "validate_every", "validation_shot")
_SAME_VALUES = 1e-5  # initial weights round only in their last bits
_SAME_RESPONSES = 2e-3  # losses and gradients round in every layer


@dataclass(frozen=True)
class Identity:
    """What a stage trains, independent of names."""

    key: str
    """Data, settings and shapes: equal for two stages that train the same."""
    values: tuple[float, ...]
    """What the tensors are before the first step: equal but for rounding."""
    responses: tuple[float, ...]
    """The losses of the first steps and the norms of the gradients: equal but for rounding."""
    tensors: tuple[str, ...]
    """The names of the tensors that the stage changes, in an order that is the same in both."""

    @property
    def header(self) -> dict[str, Any]:
        """What the file of a finished stage says of it."""
        return {"shared": {name: getattr(self, name) for name in ("key", "values", "responses", "tensors")}}

    def is_that_of(self, header: Mapping[str, Any]) -> bool:
        """Whether the file with this header is of the same stage."""
        other = header.get("shared", {})
        return (
            other.get("key") == self.key
            and _close(self.values, other.get("values", ()), _SAME_VALUES)
            and _close(self.responses, other.get("responses", ()), _SAME_RESPONSES)
        )


def identify(
    recipe: Recipe, stage: Stage, objective: Objective, batches: Batches, data_fingerprint: str
) -> Identity | None:
    """The identity of a stage before its first step; None if a loss is not finite, which the training will then say."""
    trial = copy.deepcopy(objective).train()
    before = {name: value.clone() for name, value in trial.state_dict().items()}
    try:
        losses = [_loss(recipe, stage, trial, batches, step) for step in range(min(2, batches.steps))]
    except NotFinite:
        return None
    if not all(map(math.isfinite, losses)):
        return None
    gradients = {name: value.grad for name, value in trial.named_parameters() if value.grad is not None}
    norms = {name: float(gradient.norm()) for name, gradient in gradients.items()}
    largest = max(norms.values(), default=1.0) or 1.0
    after = trial.state_dict()
    changed = [name for name in before if name in gradients or not torch.equal(before[name], after[name])]
    content = {
        "data": data_fingerprint,
        "stage": stage.name,
        "objective": type(objective).__qualname__,
        "settings": _settings(recipe, stage),
        "preprocessing": dataclasses.asdict(objective.method.embedding.preprocessing),
        "tensors": [[list(before[name].shape), name in gradients] for name in changed],
        "processes": batches.process.count,
    }
    text = json.dumps(content, sort_keys=True, default=str)
    return Identity(
        key=hashlib.blake2b(text.encode(), digest_size=16).hexdigest(),
        values=tuple(number for name in changed for number in _describe(before[name])),
        # Norms as a part of the largest one: some are 0 but for rounding, like that of a bias before batch norm.
        responses=(*losses, largest, *(norms[name] / largest for name in changed if name in norms)),
        tensors=tuple(changed),
    )


def _loss(recipe: Recipe, stage: Stage, trial: Objective, batches: Batches, step: int) -> float:
    """The loss of the first part of a step; its gradients are added to those that are there."""
    part = next(batches.epoch(0, step, workers=0))[0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(recipe.seed, stage.name, "model", 0, step, 0))
        value: Tensor = trial(*part).value
        value.backward()
    return float(value.detach())


def _settings(recipe: Recipe, stage: Stage) -> dict[str, Any]:
    """The values of a recipe that decide how a stage is trained; of the stage, those that are not the default.

    So a setting that a later version adds, with a default that changes nothing, leaves the key as it is.
    """
    usual = {field.name: _default(field) for field in dataclasses.fields(stage.settings)}
    settings = {name: value for name, value in dataclasses.asdict(stage.settings).items() if value != usual[name]}
    common = ("seed", "dropout", "augmentation", "channels_last", "sync_batchnorm")
    chosen = {name: getattr(recipe, name) for name in common}
    if stage.settings.select == "best":  # then the classifier of the method decides which epoch is kept
        chosen |= {"method": recipe.method, "options": recipe.options, "validation": recipe.validation}
    else:
        settings = {name: value for name, value in settings.items() if name not in _OF_VALIDATION}
    return {**chosen, "stage": settings}


def _default(field: "dataclasses.Field[Any]") -> Any:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def _describe(value: Tensor) -> tuple[float, float]:
    """Two numbers that tell a tensor from others of the same shape."""
    flat = value.detach().cpu().double().flatten()
    return float(flat.norm()), float(flat @ torch.arange(len(flat), dtype=torch.float64).cos())


def _close(mine: Sequence[float], theirs: Sequence[float], tolerance: float) -> bool:
    """Whether two rows of numbers are equal but for rounding."""
    return len(mine) == len(theirs) and all(
        math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance) for one, other in zip(mine, theirs, strict=True)
    )


def find(folders: Iterable[Path], stage: Stage, wanted: Identity) -> Path | None:
    """The file of the same stage, finished in another run in one of ``folders`` (or in any folder within them)."""
    for path in (
        path for folder in folders for path in sorted(folder.glob(f"**/checkpoints/{stage.name}.safetensors"))
    ):
        try:
            header = weight_files.load_header(path)
        except (OSError, UserError):
            continue  # another run's damaged file is no reason to stop this one
        if wanted.is_that_of(header):
            return path
    return None


def take_over(objective: Objective, own: Identity, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Copy what the same stage of another run has trained, from the content of its file."""
    state = objective.state_dict()
    with torch.no_grad():
        for mine, theirs in zip(own.tensors, header["shared"]["tensors"], strict=True):
            state[mine].copy_(tensors[theirs])
