"""Where does BDC help, with which settings, and where does it not help?

    python benchmarks/bdc_study.py scratch --data FOLDER        train networks from scratch on CIFAR-FS, and compare
    python benchmarks/bdc_study.py frozen --data FOLDER         compare on a frozen backbone: CIFAR-FS and Omniglot
    python benchmarks/bdc_study.py test --data FOLDER           score on the test classes: once, at the end
    python benchmarks/bdc_study.py cost                         measure milliseconds and bytes per image
    python benchmarks/bdc_study.py report                       update tables, figure and page from the stored results

FOLDER is the root folder of `deepbdc data prepare cifar_fs --source ARCHIVE --root FOLDER`; the frozen part needs
omniglot there as well. Every run stores its results in benchmarks/results/bdc_study and is not repeated later; an
interrupted run continues where it stopped. Several processes may work at the same time: each takes runs that no other
one has taken (two processes with --threads 1 are faster than one with two threads). The most informative runs come
first. Names after scratch, frozen or test select some of the runs; --again repeats the selected runs in a separate
folder, as the commands in the tables do, and prints their rows.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import torch

import deepbdc  # noqa: F401  (must come before any import of torchvision)
from study import cost, frozen, report
from study.scratch import Setting, finished, save_scores, train_and_score, trained
from study.settings import SETTINGS
from study.sharing import is_taken

Chosen = TypeVar("Chosen")

RESULTS = Path(__file__).parent / "results" / "bdc_study"
PAGE = Path(__file__).parent.parent / "docs" / "bdc-study.md"
FIGURE = PAGE.parent / "images" / "when_bdc_helps.png"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("scratch", "frozen", "test", "cost", "report"))
    parser.add_argument("names", nargs="*", help="settings; for frozen, units like cifar_fs,test,160,last")
    parser.add_argument("--data", type=Path, help="the folder of the prepared data sets")
    parser.add_argument("--work", type=Path, default=Path("runs/bdc_study"), help="the folder for trained networks")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for results")
    parser.add_argument("--again", action="store_true", help="repeat the runs, in runs/bdc_study_again")
    parser.add_argument("--one", action="store_true", help="stop after one run")
    parser.add_argument("--threads", type=int, help="the number of CPU threads of this process")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    if given.again:
        given.work = Path("runs/bdc_study_again")
        given.results = given.work / "results"
    if given.part in ("scratch", "frozen", "test") and given.data is None:
        parser.error(f"{given.part} needs --data FOLDER")
    if given.part == "scratch":
        run_scratch(chosen(given.names, {setting.name: setting for setting in SETTINGS}), given)
    elif given.part == "frozen":
        run_frozen(chosen(given.names, {unit.name: unit for unit in frozen.units()}), given)
    elif given.part == "test":
        look_at_test(given)
    elif given.part == "cost":
        cost.measure(given.results)
    else:
        write_report(given.results)


def chosen(names: Sequence[str], there: dict[str, Chosen]) -> list[Chosen]:
    """The values with these names; all of them, if no name is given."""
    for name in names:
        if name not in there:
            raise SystemExit(f"{name!r} is not one of: {', '.join(there)}")
    return [there[name] for name in names] or list(there.values())


def run_scratch(settings: Sequence[Setting], given: argparse.Namespace) -> None:
    results = given.results / "runs"
    for setting in settings:
        for run in setting.runs():
            if not finished(run, results) and not is_taken(run.name, given.work):
                train_and_score(run, given.work, results, given.data)
                if given.one:
                    return
        if given.names and all(finished(run, results) for run in setting.runs()):
            print(report.scratch_table([report.scratch_row(setting, given.results, "val")]))
    if given.one:
        raise SystemExit(3)  # there was no run left


def run_frozen(units: Sequence[frozen.Unit], given: argparse.Namespace) -> None:
    for unit in units:
        if not given.names and is_taken(unit.name, given.work):
            continue
        frozen.run_unit(unit, given.work, given.results / "frozen", given.data)
        measured = report.Frozen(given.results)
        if given.names and unit in measured.counts:
            for lines in (measured.tasks_table, measured.representations_table, measured.maps_table):
                print(lines([unit]), end="\n\n")


def look_at_test(given: argparse.Namespace) -> None:
    """Score the settings that were chosen on the validation classes on the test classes."""
    for setting in chosen(given.names, {setting.name: setting for setting in SETTINGS if setting.chosen}):
        for run in setting.runs():
            train_and_score(run, given.work, given.results / "runs", given.data)
            if not finished(run, given.results / "test"):
                print(f"scoring {run.name} on the test classes", flush=True)
                save_scores(run, trained(run, given.work, given.data), given.results / "test", given.data, "test")
        print(report.scratch_table([report.scratch_row(setting, given.results, "test")]))


def write_report(results: Path) -> None:
    rows, measured = list(report.scratch_rows(results)), report.Frozen(results)
    (results / "frozen.md").write_text(measured.all_cells() + "\n", encoding="utf-8")
    tests = list(report.scratch_rows(results, "test"))
    report.draw(rows, tests, measured, FIGURE)
    parts = {
        "scratch": report.scratch_table(rows),
        "test": report.scratch_table(tests),
        "tasks": measured.tasks_table(measured.units(frozen.SIZES[0], "last")),
        "representations": measured.representations_table(measured.units(frozen.SIZES[0])),
        "maps": measured.maps_table(measured.units()),
    }
    report.fill(PAGE, parts)
    print(f"all training together took {report.training_hours(results):.1f} hours on {report.CORES} cores")
    print(f"wrote {FIGURE.name}, frozen.md and the tables in {PAGE.name}")


if __name__ == "__main__":
    main()
