"""The latency of all methods on one 5-way task, as in the paper's tables 3 and S-latency.

    python benchmarks/methods.py [--methods NAME ...] [--rounds COUNT] [--output FILE]

Every method has a ResNet-12 at 84 pixels and the options of its miniImageNet recipe; `deepbdc.report.latency` says what
is timed, and how. AA, which needs training images, is left out. Ratios to ProtoNet carry over to other machines,
milliseconds do not.
"""

import argparse
import sys
from pathlib import Path

import torch

from deepbdc.backbones import create_backbone
from deepbdc.methods import create_method
from deepbdc.methods.base import methods
from deepbdc.recipes import Recipe, list_recipes, load_recipe, read_recipe
from deepbdc.report.evaluation import ASSUMES_BALANCE, TRANSDUCTIVE, mark
from deepbdc.report.latency import QUERY, WAY, Latency, Timed, measure
from deepbdc.report.published import published
from measure import verdict

SIZE = 84
NETWORK = "{name: resnet12, removed_downsamplings: 1}"  # the same for all, as in the paper
TEST, TRAINING = "test task", "training step"
COLUMNS = {TEST: "latency", TRAINING: "training_latency"}
AIMS = {  # the largest ratio with 1 and 5 shots that we want to see
    ("covnet", TEST): (1.1, 1.1),
    ("meta_deepbdc", TEST): (1.15, 1.15),
    ("meta_deepbdc", TRAINING): (1.3, 1.3),
    ("stl_deepbdc", TEST): (1.15, 1.15),
    ("adm", TEST): (1.5, 1.5),
    ("frn", TEST): (1.3, 1.3),
    ("deepemd", TEST): (2.0, 10.0),
}


def recipe_of(name: str, shot: int) -> Recipe:
    """The miniImageNet recipe of a method, with a ResNet-12 and the task that is timed."""
    known = set(list_recipes())
    names = (f"miniimagenet/{name}_{shot}shot", f"miniimagenet/{name}", f"miniimagenet/{name}_5shot")
    found = next((entry for entry in names if entry in known), f"miniimagenet/protonet_{shot}shot")
    overrides = [f"method={name}", f"backbone={NETWORK}", f"size={SIZE}", "precision=32-true"]
    if read_recipe(found).get("meta"):
        task = {"way": WAY, "shot": shot, "query": QUERY, "episodes_per_step": 1, "accumulate": 1}
        overrides += [f"meta.{key}={value}" for key, value in task.items()]
    return load_recipe(found, overrides)


def lines(title: str, times: dict[int, dict[str, Latency]]) -> list[str]:
    """The table of one title: milliseconds with and without the network, ratios to ProtoNet, and our aims."""
    columns = "".join(f"{f'{shot}-shot':>10}{'own part':>10}{'ratio':>8}{'paper':>8}{'aim':>14}" for shot in times)
    table = ["", f"{title}, milliseconds", f"{'method':<18}{columns}"]
    for name in times[1]:
        cells = [_cell(name, title, shot, place, times[shot]) for place, shot in enumerate(times)]
        if all(cells):
            table.append(f"{_marked(name):<18}{''.join(cells)}".rstrip())
    return table


def _cell(name: str, title: str, shot: int, place: int, times: dict[str, Latency]) -> str:
    """The part of a line for one number of shots; empty if there is nothing to time."""
    whole, own = _values(times[name], title)
    base, _ = _values(times["protonet"], title)
    if whole is None or base is None:
        return ""
    aim = AIMS.get((name, title))
    wanted = "" if aim is None else f"{aim[place]:.2f} {verdict(whole / base <= aim[place])}"
    part = "-" if own is None else f"{own:.1f}"
    return f"{whole:>10.0f}{part:>10}{whole / base:>8.2f}{_published(name, title, shot):>8}{wanted:>14}"


def _marked(name: str) -> str:
    """The name, with a mark if the method is transductive."""
    method = create_method(name, create_backbone("conv4", width=0.125))
    return name + mark(method.transductive, method.assumes_balanced_queries)


def _values(latency: Latency, title: str) -> tuple[float | None, float | None]:
    return (latency.test, latency.test_own) if title == TEST else (latency.training, latency.training_own)


def _published(name: str, title: str, shot: int) -> str:
    """The paper's ratio to ProtoNet, on a GPU."""
    rows = {row.method: row.values.get(COLUMNS[title], {}) for row in published()["s3-4_latency"].rows}
    value = rows.get(name, {}).get(shot)
    return "" if value is None else f"{value / rows['protonet'][shot]:.2f}"


def _show(text: str) -> None:
    """One line in a terminal that each call replaces."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=methods.names(), help="which methods (default: all)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-training", action="store_true", help="leave out the training step")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "methods.txt")
    given = parser.parse_args()
    names = ["protonet", *(name for name in given.methods if name != "protonet")]
    machine = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    text = [f"{machine}, ResNet-12, {SIZE} px, {WAY}-way, {QUERY} queries per class, medians of {given.rounds} rounds"]
    times = {}
    for shot in (1, 5):
        rows = {name: Timed(recipe_of(name, shot)) for name in names}
        times[shot] = measure(rows, shot, given.rounds, training=not given.no_training, progress=_show)
    for title in (TEST, TRAINING) if not given.no_training else (TEST,):
        text += lines(title, times)
    text += ["", TRANSDUCTIVE, ASSUMES_BALANCE]
    print("\n".join(text))
    given.output.write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
