"""Copy finished runs into the gallery, so that other methods can be compared with them without their networks.

    python benchmarks/keep.py RUN ... [--gallery FOLDER] [--data FOLDER]

For each run this writes gallery/DATA/BACKBONE/RUN.json, with the accuracy and the classes of every episode, and beside
it the recipe (RUN.yaml) and the curve (RUN.png). Accuracies are rounded to four decimals, which is enough to know how
many queries were right. A run of an earlier version does not say the classes of its episodes: with --data, the folder
that contains the prepared benchmark, its episodes are drawn again.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from deepbdc._files import write_json
from deepbdc.data.loading import find_data, load_dataset
from deepbdc.episodes import sample_episodes
from deepbdc.errors import UserError
from deepbdc.evaluation import EvaluationResult, classes_of, episodes_fingerprint
from deepbdc.runs import CURVE, RECIPE, RESULT

GALLERY = Path(__file__).parent.parent / "gallery"


def keep(run: Path, gallery: Path = GALLERY, data: Path | None = None) -> Path:
    """Copy a finished run into the gallery; return the file of its results."""
    if not (run / RESULT).is_file() or not (run / RECIPE).is_file():
        raise UserError(f"{run} holds no finished run: {RESULT} or {RECIPE} is missing")
    recipe = yaml.safe_load((run / RECIPE).read_text(encoding="utf-8"))
    content = json.loads((run / RESULT).read_text(encoding="utf-8"))
    results = [EvaluationResult.from_json(one) for one in content.pop("results")]
    content |= {"training_seed": recipe.get("seed", content.get("training_seed"))}
    target: Path = gallery / recipe["data"] / recipe["backbone"]["name"] / f"{run.name}.json"
    write_json(target, {**content, "results": [_small(_with_classes(one, recipe, run, data)) for one in results]})
    shutil.copyfile(run / RECIPE, target.with_name(f"{run.name}.yaml"))
    if (run / CURVE).is_file():
        shutil.copyfile(run / CURVE, target.with_name(f"{run.name}.png"))
    return target


def _with_classes(result: EvaluationResult, recipe: dict[str, Any], run: Path, data: Path | None) -> dict[str, Any]:
    """A result in plain values, with the classes of its episodes."""
    if result.classes is not None:
        return result.as_json()
    if data is None:
        raise UserError(f"the result of {run} does not say the classes of its episodes: give --data to draw them again")
    name, root = find_data(recipe["data"], data)
    drawn = sample_episodes(
        load_dataset(name, result.split, root=root),
        result.way,
        result.shot,
        result.query,
        len(result.accuracies),
        result.seed,
        unbalanced=result.unbalanced,
        dirichlet=result.dirichlet,
        distinct_content=result.distinct_content,
    )
    if episodes_fingerprint(drawn) != result.episodes_fingerprint:
        raise UserError(f"the data in {data} gives other episodes than those of {run}: give the data it was tested on")
    classes = classes_of(drawn)
    content = result.as_json() | {"classes": None if classes is None else classes.tolist()}
    return EvaluationResult.from_json(content).as_json()


def _small(result: dict[str, Any]) -> dict[str, Any]:
    return result | {"accuracies": [round(value, 4) for value in result["accuracies"]]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--gallery", type=Path, default=GALLERY)
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    for run in given.runs:
        print(keep(run, given.gallery, given.data))


if __name__ == "__main__":
    main()
