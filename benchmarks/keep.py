"""Copy finished runs into the gallery and their networks into the zoo.

    python benchmarks/keep.py RUN ... [--network] [--start] [--gallery FOLDER] [--zoo FOLDER] [--data FOLDER]
    python benchmarks/keep.py RUN/evaluation-cub-test.json ...

For each run this writes gallery/DATA/BACKBONE/RUN.json, with the accuracy and the classes of every episode, so that
other methods can be compared with it without its network, and beside it the recipe (RUN.yaml) and the curve (RUN.png).
Accuracies are rounded to four decimals, which is enough to know how many queries were right.

A file that `deepbdc evaluate RUN --data OTHER` wrote is an evaluation across domains: it goes to
gallery/DATA_to_OTHER/BACKBONE/RUN.json, and says how many classes the network was trained on.

With --network, the network is kept as well, as zoo/DATA/BACKBONE/RUN: its weights in full precision without the head of
its training, its recipe, its result, the epochs of its training log, and a note on the licence of its data.

With --start, the zoo also keeps what the first stage of the run has trained, with its head. Other recipes with the same
first stage then begin with it: deepbdc train RECIPE --reuse zoo.

A run of an earlier version does not say the classes of its episodes: with --data, the folder that contains the prepared
benchmark, its episodes are drawn again.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from deepbdc import weight_files
from deepbdc._files import write_bytes, write_json, write_text
from deepbdc._fingerprint import weights_fingerprint
from deepbdc.data import benchmarks
from deepbdc.data.loading import find_data, load_dataset
from deepbdc.errors import UserError
from deepbdc.evaluation import EvaluationResult, classes_of, episodes_fingerprint, episodes_of
from deepbdc.runs import CHECKPOINTS, CURVE, MODEL, RECIPE, RESULT, load_run
from deepbdc.training.log import FILE_NAME as LOG
from deepbdc.zoo import network_folder

GALLERY = Path(__file__).parent.parent / "gallery"
ZOO = Path(__file__).parent.parent / "zoo"
NOTE = "DATA-LICENCE.md"
MOST_BYTES = 25_000_000
"""What the files of the zoo may take together, because every clone has them."""


def keep(path: Path, gallery: Path = GALLERY, data: Path | None = None) -> Path:
    """Copy a finished run, or one of its evaluations, into the gallery; return the file of its results."""
    run, file = _run_and_results(path)
    recipe = yaml.safe_load((run / RECIPE).read_text(encoding="utf-8"))
    content = _content(run, file, recipe, data)
    where = _plain(recipe["data"]) if file.name == RESULT else _tested_on(recipe["data"], file, content)
    name = run.name if file.name == RESULT else run.name + _test_time(content)
    target: Path = gallery / where / recipe["backbone"]["name"] / f"{name}.json"
    write_json(target, content)
    shutil.copyfile(run / RECIPE, target.with_name(f"{name}.yaml"))
    if (run / CURVE).is_file():
        shutil.copyfile(run / CURVE, target.with_name(f"{name}.png"))
    return target


def keep_network(run: Path, zoo: Path = ZOO, data: Path | None = None) -> Path:
    """Copy the network of a finished run into the zoo; return its folder."""
    run, file = _run_and_results(run)
    if file.name != RESULT:
        raise UserError(f"{file} is an evaluation: give the folder of the run to keep its network")
    tensors, header = weight_files.load(run / MODEL)
    recipe = header["recipe"]
    content = _content(run, file, recipe, data)
    target: Path = zoo / _plain(recipe["data"]) / recipe["backbone"]["name"] / run.name
    method = {name: value for name, value in tensors.items() if name.startswith("method.")}
    weights = weight_files.as_bytes(method, header | {"data": None})  # where the images were is of no use to others
    _need_room(zoo, target / MODEL, len(weights))
    write_bytes(target / MODEL, weights)
    write_json(target / RESULT, content)
    write_text(target / LOG, _epochs(run / LOG))
    write_text(target / NOTE, licence_note(recipe["data"]))
    shutil.copyfile(run / RECIPE, target / RECIPE)
    found = weights_fingerprint(load_run(target).method)
    if any(result["weights_fingerprint"] != found for result in content["results"]):
        raise UserError(f"{run / RESULT} is of other weights than {run / MODEL}: evaluate the run again")
    return target


def keep_start(run: Path, zoo: Path = ZOO) -> Path:
    """Copy what the first stage of a finished run has trained, with its head, beside its network in the zoo."""
    recipe = load_run(run).recipe
    stage = recipe.trainings[0].name
    tensors, header = weight_files.load(run / CHECKPOINTS / f"{stage}.safetensors")
    folder: Path = zoo / _plain(recipe.data) / recipe.backbone["name"] / run.name
    target = folder / CHECKPOINTS / f"{stage}.safetensors"
    weights = weight_files.as_bytes(tensors, header | {"data": None})
    _need_room(zoo, target, len(weights))
    write_bytes(target, weights)
    return target


def _need_room(zoo: Path, target: Path, size: int) -> None:
    """Refuse a file of so many bytes if the zoo would become too large, all its files counted."""
    others = sum(file.stat().st_size for file in zoo.rglob("*") if file.is_file() and file != target)
    if others + size > MOST_BYTES:
        raise UserError(
            f"the networks of the zoo may take {MOST_BYTES / 1e6:g} MB together: {target} would have {size / 1e6:.1f}, "
            f"the others have {others / 1e6:.1f} MB"
        )


def _run_and_results(path: Path) -> tuple[Path, Path]:
    """The folder of a finished run, and the file of its results: ``path`` is the folder, or such a file."""
    run, file = (path, path / RESULT) if path.suffix != ".json" else (path.parent, path)
    if file.is_file() and path.suffix == ".json" and not (run / RECIPE).is_file():
        run = network_folder(json.loads(file.read_text(encoding="utf-8"))["request"]["model"])
    if not file.is_file() or not (run / RECIPE).is_file():
        raise UserError(f"{path} holds no finished run: {RESULT} or {RECIPE} is missing")
    return run, file


def _content(run: Path, file: Path, recipe: dict[str, Any], data: Path | None) -> dict[str, Any]:
    """What a file of results says, with rounded accuracies and without paths of this machine."""
    content = json.loads(file.read_text(encoding="utf-8"))
    results = [EvaluationResult.from_json(one) for one in content.pop("results")]
    content.pop("request", None)
    if "ensemble" in content:
        content["ensemble"] = [Path(name).name for name in content["ensemble"]]
    content |= {"training_seed": recipe.get("seed", content.get("training_seed"))}
    if "trained_on" not in content and (run / MODEL).is_file():
        classes = len(weight_files.load_header(run / MODEL)["class_names"])
        content["trained_on"] = {"data": recipe["data"], "classes": classes}
    return {**content, "results": [_small(_with_classes(one, recipe, run, data)) for one in results]}


def _tested_on(data: str, file: Path, content: dict[str, Any]) -> str:
    """The folder for an evaluation: the data of the run, or ``DATA_to_OTHER`` where it was of other data.

    Of a pair such as ``miniimagenet->cub``, the first is what the run was trained on, the second what it is tested on.
    """
    if any(result["split"] != "test" for result in content["results"]):
        raise UserError(f"{file} is not of test classes: the gallery has results of those only")
    name, tested = _parts(data)[0], _parts(content["results"][0]["dataset"])[-1]
    return name if tested == name else f"{name}_to_{tested}"


def _test_time(content: dict[str, Any]) -> str:
    """What tells the name of an evaluation with other networks, crops, a power, or centred, from the usual one."""
    first = EvaluationResult.from_json(content["results"][0])
    networks = 1 + len(content.get("ensemble", ()))
    parts = {
        f"_ensemble{networks}": networks > 1,
        f"_crops{first.crops}": first.crops > 1,
        f"_power{first.power:g}": first.power != 1,
        "_centred": first.centre,
    }
    return "".join(part for part, shown in parts.items() if shown)


def _plain(data: str) -> str:
    """The name of a data set as that of a folder, also where it is a path or a pair."""
    known = data in benchmarks.names()
    return data.replace("->", "_to_") if known else Path(data).name.removesuffix(".npz")


def _parts(data: str) -> list[str]:
    """The names of a data set's parts, as those of folders: two of a pair, else one."""
    return benchmarks.components(data) if data in benchmarks.names() else [_plain(data)]


def _epochs(log: Path) -> str:
    """The lines of a training log without those of single steps, which are most of it."""
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.is_file() else []
    return "".join(line for line in lines if json.loads(line)["kind"] != "step")


def licence_note(data: str) -> str:
    """What is known of the terms of the images that a network was trained on."""
    lines = ["# The images that this network was trained on", ""]
    for name in benchmarks.components(data) if data in benchmarks.names() else []:
        facts = benchmarks.get(name)
        lines += [f"- **{name}**: {facts.title}.", f"  - Licence: {facts.licence}.", f"  - From: {facts.home}."]
        lines += [f"  - Split: {facts.citation}."] if facts.citation else []
    if len(lines) == 2:
        lines.append(f"- **{_plain(data)}**: not a benchmark of `deepbdc data list`; nothing is known of its licence.")
    lines += [
        "",
        "The images are not part of this repository. The code that trained the network is under the Apache License "
        "2.0; whether terms of the images bind the use of the network is for you to judge.",
    ]
    return "\n".join(lines) + "\n"


def _with_classes(result: EvaluationResult, recipe: dict[str, Any], run: Path, data: Path | None) -> dict[str, Any]:
    """A result in plain values, with the classes of its episodes."""
    if result.classes is not None:
        return result.as_json()
    if data is None:
        raise UserError(f"the result of {run} does not say the classes of its episodes: give --data to draw them again")
    name, root = find_data(recipe["data"], data)
    drawn = episodes_of(result, load_dataset(name, result.split, root=root))
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
    parser.add_argument("--network", action="store_true", help="also copy the network into the zoo")
    parser.add_argument("--start", action="store_true", help="also copy what its first stage has trained")
    parser.add_argument("--gallery", type=Path, default=GALLERY)
    parser.add_argument("--zoo", type=Path, default=ZOO)
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    for run in given.runs:
        print(keep(run, given.gallery, given.data))
        if given.network:
            print(keep_network(run, given.zoo, given.data))
        if given.start:
            print(keep_start(run, given.zoo))


if __name__ == "__main__":
    main()
