"""Time and memory per image, in milliseconds and bytes. Both sides of a comparison are timed in turns."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deepbdc._files import write_text
from deepbdc.recipes import Recipe, build_method
from deepbdc.stages import Classification, Inputs
from measure import medians
from study import frozen
from study.scratch import PAIRS, Setting
from study.settings import SETTINGS

BATCH = 64
REPEATS = 40


def measure(results: Path) -> None:
    """Measure everything, and write it to cost.json."""
    content = {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "scratch": scratch_costs(),
        "frozen": frozen_costs(),
    }
    write_text(results / "cost.json", json.dumps(content, indent=1) + "\n")


def signature(setting: Setting) -> str:
    """The properties of the two networks of a setting that determine its cost."""
    recipes = [run.recipe() for run in setting.runs()]
    backbone = ", ".join(f"{key}={value}" for key, value in sorted(recipes[0].backbone.items()))
    return f"{backbone}, d={recipes[1].options.get('reduce_to', 'channels')}"


def scratch_costs() -> dict[str, Any]:
    """For each pair of networks: bytes per representation, and milliseconds per image for embedding and training."""
    found: dict[str, Any] = {}
    for setting in SETTINGS:
        key = signature(setting)
        if setting.pair != "transfer" or key in found:
            continue
        objectives = [_objective(run.recipe()) for run in setting.runs()]
        embed = medians(
            {name: _embedding(objective) for name, objective in zip(PAIRS["transfer"], objectives, strict=True)},
            REPEATS,
        )
        step = medians(
            {name: _step(objective) for name, objective in zip(PAIRS["transfer"], objectives, strict=True)}, REPEATS
        )
        found[key] = {
            "bytes": [4 * objective.method.embedding.out_features for objective in objectives],
            "embed_ms": [round(value / BATCH, 4) for value in embed.values()],
            "train_ms": [round(value / BATCH, 4) for value in step.values()],
        }
        print(key, found[key], flush=True)
    return found


def _objective(recipe: Recipe) -> Classification:
    settings = recipe.stages["pretrain"]
    objective = Classification(Inputs(build_method(recipe), settings, 64, recipe.dropout))
    objective.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return objective


def _embedding(objective: Classification) -> Callable[[], object]:
    images = torch.rand(BATCH, 3, 32, 32).to(memory_format=torch.channels_last)

    def run() -> object:
        objective.eval()
        with torch.inference_mode():
            return objective.method.embed(images)

    return run


def _step(objective: Classification) -> Callable[[], object]:
    images = torch.rand(BATCH, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.arange(BATCH) % 64

    def run() -> object:
        objective.train()
        objective.zero_grad()
        objective(images, labels)[0].backward()
        return None

    return run


def frozen_costs() -> dict[str, Any]:
    """For each input size: milliseconds of the network and of each pooling of each map, and bytes."""
    found: dict[str, Any] = {}
    for size in frozen.SIZES:
        backbone = frozen.LastMaps(size).eval()
        images = torch.rand(8, 3, size, size)
        with torch.inference_mode():
            rows = backbone(images).flatten(1)
            sides: dict[str, Callable[[], object]] = {"network": _forward(backbone, images)}
            for stage in frozen.STAGES:
                for name in frozen.POOLS:
                    sides[f"{stage}, {name}"] = _pooling(name, backbone.maps(rows, stage))
            times = medians(sides, REPEATS)
        found[str(size)] = {
            "ms": {name: round(value / len(images), 4) for name, value in times.items()},
            "bytes": {
                f"{stage}, {name}": 4 * frozen.POOLS[name](backbone.maps(rows, stage)).shape[1]
                for stage in frozen.STAGES
                for name in frozen.POOLS
            },
        }
        print(size, found[str(size)], flush=True)
    return found


def _forward(network: nn.Module, images: torch.Tensor) -> Callable[[], object]:
    return lambda: network(images)


def _pooling(name: str, maps: torch.Tensor) -> Callable[[], object]:
    return lambda: frozen.POOLS[name](maps)
