"""A training so small that a test can run it as a process of its own: python -m tests.training.tiny."""

import argparse
import os
from pathlib import Path

import numpy as np

from deepbdc.recipes import Recipe, load_recipe, recipe_from_dict
from deepbdc.recipes.recipe import objectives_of
from deepbdc.training.devices import DeviceOptions
from deepbdc.training.run import train

SIZE, PER_CLASS = 16, 12
CLASSES = {"train": 6, "val": 4, "test": 4}


def write_data(path: Path, seed: int = 0) -> Path:
    """Pictures in which a class is a coarse pattern of colours, seen through noise."""
    random = np.random.default_rng(seed)
    count = sum(CLASSES.values())
    patterns = random.integers(0, 256, (count, 4, 4, 3)).repeat(SIZE // 4, axis=1).repeat(SIZE // 4, axis=2)
    labels = np.arange(count).repeat(PER_CLASS)
    images = patterns[labels] + random.normal(0, 60, (len(labels), SIZE, SIZE, 3))
    np.savez(
        path,
        images=images.clip(0, 255).astype(np.uint8),
        labels=labels,
        class_names=np.array([f"class {label:02d}" for label in range(count)]),
        class_split=np.array([split for split, number in CLASSES.items() for _ in range(number)]),
    )
    return path


def recipe(method: str = "stl_deepbdc", **changes: object) -> Recipe:
    """A recipe for these pictures."""
    classical = {"epochs": 3, "batch_size": 12, "lr": 0.02, "milestones": [2]}
    content: dict[str, object] = {
        "method": method,
        "data": "glyphs",  # replaced by the file
        "backbone": {"name": "conv4", "width": 0.125, "removed_downsamplings": 2},
        "size": SIZE,
        "dropout": 0.5,
        "validation": {"episodes": 10, "query": 5, "way": 3},
        "evaluation": {"episodes": 20, "query": 5, "way": 3},
    }
    sections = {
        "pretrain": classical,
        "distill": {**classical, "generations": 2, "select": "best"},
        "meta": {"epochs": 3, "episodes": 4, "way": 3, "query": 4, "lr": 0.01, "schedule": "cosine"},
    }
    content |= {stage: sections.get(stage, classical) for stage in objectives_of(method, "tiny")}
    return recipe_from_dict({**content, **changes})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("recipe", type=Path, help="a resolved recipe, as YAML")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--uneven-clocks", action="store_true", help="only the first process wants checkpoints")
    given = parser.parse_args()
    options = DeviceOptions(accelerator="cpu", devices=given.devices)
    arguments = {"data": given.data, "resume": given.resume, "devices": options}
    later = given.uneven_clocks and os.environ.get("LOCAL_RANK", "0") != "0"
    train(load_recipe(given.recipe), given.folder, **arguments, checkpoint_every=1e9 if later else 0.0)


if __name__ == "__main__":
    main()
