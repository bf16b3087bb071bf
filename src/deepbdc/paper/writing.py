"""From an experiment to its files: Markdown, LaTeX and JSON of a table, PNG and PDF of a figure, and an index."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from deepbdc._files import make_folder, write_json, write_text
from deepbdc.paper import tables
from deepbdc.paper.cells import Bench, FilledRow
from deepbdc.paper.experiments import Drawing, Experiment, experiments
from deepbdc.paper.figures import draw_channels
from deepbdc.paper.numbers import as_json
from deepbdc.report import grid, hyper_parameters, instantiations, latency, relations
from deepbdc.report.grid import Grid
from deepbdc.report.latency import Latency, Timed

_ROUNDS = 11


def write(experiment: Experiment, bench: Bench) -> list[Path]:
    """Make a table or figure, with all trainings that it needs, and return the files."""
    folder = bench.setting.output
    make_folder(folder)
    if experiment.kind == "drawing":
        return _draw(experiment, bench, folder)
    if experiment.kind == "page":
        return _write_grid(experiment, hyper_parameters.grid(hyper_parameters.hyper_parameters()), folder)
    rows = bench.fill(experiment)
    timed = _latencies(experiment, rows, bench)
    made = tables.grid(experiment, rows, timed, bench.setting.data)
    if bench.setting.shortened > 1 and any(cell.result for row in rows for cell in row.cells.values()):
        made.notes.append(
            f"To fit the budget, all stages were trained for one of {bench.setting.shortened} epochs of their recipe."
        )
    numbers = folder / f"{experiment.name}.json"
    write_json(numbers, as_json(experiment, rows, timed, bench.setting.data))
    pictures = []
    if experiment.kind == "figure":
        pictures = [folder / f"{experiment.name}.{kind}" for kind in ("png", "pdf")]
        for path in pictures:
            draw_channels(experiment, rows, path)
    return [*_write_grid(experiment, made, folder), numbers, *pictures]


def _draw(experiment: Experiment, bench: Bench, folder: Path) -> list[Path]:
    assert experiment.drawing is not None
    paths = [folder / f"{experiment.name}.{kind}" for kind in ("png", "pdf")]
    draw = _DRAWINGS[experiment.drawing](bench)
    for path in paths:
        draw(path)
    return paths


def _relations(bench: Bench) -> Callable[[Path], None]:
    found = list(relations.relations())
    return lambda path: relations.draw(found, path)


def _instantiations(bench: Bench) -> Callable[[Path], None]:
    return lambda path: instantiations.draw(path, backbone=bench.setting.backbone or "conv4")


_DRAWINGS: Mapping[Drawing, Callable[[Bench], Callable[[Path], None]]] = {
    "relations": _relations,
    "instantiations": _instantiations,
}
"""What draws a drawing into a file, by its name in the files of the experiments."""


def _write_grid(experiment: Experiment, made: Grid, folder: Path) -> list[Path]:
    """The table as Markdown and LaTeX."""
    title = f"{experiment.place}: {experiment.title}"
    files = {
        folder / f"{experiment.name}.md": grid.markdown(title, made),
        folder / f"{experiment.name}.tex": grid.latex(title, made),
    }
    for path, text in files.items():
        write_text(path, text)
    return list(files)


def _latencies(experiment: Experiment, rows: Sequence[FilledRow], bench: Bench) -> dict[int, dict[str, Latency]]:
    """The latencies of all rows, measured in one run, or those that the same call has measured before."""
    if not {"latency", "training_latency"} & set(experiment.columns):
        return {}
    training = "training_latency" in experiment.columns
    return {shot: _measured(experiment, rows, bench, shot, training) for shot in experiment.shots}


def _measured(
    experiment: Experiment, rows: Sequence[FilledRow], bench: Bench, shot: int, training: bool
) -> dict[str, Latency]:
    wanted = {row.row.name: Timed(row.recipes[shot], row.row.classifier) for row in rows if shot in row.recipes}
    recipes = {name: [one.recipe.as_dict(), one.classifier] for name, one in wanted.items()}
    text = json.dumps([recipes, torch.__version__, torch.get_num_threads(), _ROUNDS, training], sort_keys=True)
    key = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    path = bench.setting.output / "latency" / f"{experiment.name}-{shot}shot.json"
    if path.is_file():
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["key"] == key:
            return {name: Latency(**values) for name, values in kept["milliseconds"].items()}
    bench.say(f"{experiment.place}: timing {len(wanted)} rows with {shot} shots")
    found = latency.measure(wanted, shot, _ROUNDS, training=training)
    content = {
        "key": key,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "rounds": _ROUNDS,
        "milliseconds": {name: asdict(value) for name, value in found.items()},
    }
    write_text(path, json.dumps(content, indent=1) + "\n")
    return found


def index(folder: Path, facts: Mapping[str, str]) -> str:
    """A page that shows or links all tables and figures that are in a folder."""
    lines = ["# The paper's tables and figures, made here", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    for experiment in experiments().values():
        table, picture = folder / f"{experiment.name}.md", folder / f"{experiment.name}.png"
        if table.is_file():
            lines += ["", f"- [{experiment.place}: {experiment.title}]({table.name})"]
        elif picture.is_file():
            lines += ["", f"- {experiment.place}: {experiment.title}"]
        if picture.is_file():
            lines += ["", f"  ![{experiment.title}]({picture.name})"]
    return "\n".join([*lines, ""])
