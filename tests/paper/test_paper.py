"""The whole way of a small table: trained, written, continued after a crash, and verified."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from deepbdc.data.benchmarks import MARKER
from deepbdc.paper import tables
from deepbdc.paper.cells import Bench, Cell, FilledRow
from deepbdc.paper.cost import fitting, images_of
from deepbdc.paper.experiments import Experiment, Row, find
from deepbdc.paper.settings import Setting
from deepbdc.paper.verification import verify
from deepbdc.paper.writing import index, write
from deepbdc.report import grid
from deepbdc.training.loop import Trainer
from deepbdc.training.run import train

VALUES = (
    "size=16",
    "backbone.width=0.125",
    "validation.episodes=5",
    "validation.way=3",
    "validation.query=3",
    "evaluation.episodes=12",
    "evaluation.way=3",
    "evaluation.query=4",
    "meta.episodes=2",
    "meta.way=3",
    "meta.shot=2",
    "meta.query=3",
)


@pytest.fixture
def setting(tiny_data: Path, tmp_path: Path) -> Setting:
    return Setting(str(tiny_data), tmp_path / "runs", tmp_path / "out", values=VALUES, shortened=10)


def small(*names: str, table: str = "table3") -> Experiment:
    """Some rows of a table."""
    experiment = find(table)
    return dataclasses.replace(experiment, rows=tuple(row for row in experiment.rows if row.name in names))


def bench(setting: Setting, seconds: float | None = None, train: bool = True) -> Bench:
    return Bench(setting, Console(quiet=True), seconds, quiet=True, train=train)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stage of each training step."""
    taken: list[str] = []
    real = Trainer.step

    def step(self: Trainer, *given: object, **options: object) -> object:
        taken.append(self.stage.name)
        return real(self, *given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Trainer, "step", step)
    return taken


def test_a_table_is_trained_once_and_shares_stages(setting: Setting, steps: list[str], tmp_path: Path) -> None:
    experiment = small("ProtoNet", "ADM", "STL DeepBDC")
    files = write(experiment, bench(setting))
    assert [path.name for path in files] == ["table3.md", "table3.tex", "table3.json"]
    assert steps.count("pretrain") == 2  # of one step each: ProtoNet and ADM share theirs, STL DeepBDC has its own
    steps.clear()
    again = write(experiment, bench(setting))
    assert steps == []
    assert [path.read_text() for path in again] == [path.read_text() for path in files]

    text = files[0].read_text()
    assert "| ADM | *65.87 ± 0.43* |" in text
    stored = json.loads(files[2].read_text())["rows"]
    ours = stored[0]["ours"]["5"]
    assert f"{ours['mean']:.2f}" in text
    assert ours["run"] in text
    assert (Path(ours["run"]) / "model.safetensors").is_file()
    assert (ours["training_seed"], ours["episodes_seed"], ours["looks"]) == (1, 0, 1)
    assert ours["data_fingerprint"] == bench(setting).splits["test"].fingerprint
    assert stored[1]["latency_ms"]["1"]["test"] > 0
    latex = files[1].read_text()
    assert r"\textit{65.87 $\pm$ 0.43}" in latex
    assert latex.count("{") == latex.count("}")
    assert "[Table 3: " in index(setting.output, {})

    # The same runs stand behind other tables, and `deepbdc paper verify` finds the same results.
    checked = list(verify(bench(setting), [experiment, small("ProtoNet", table="table1")]))
    assert len(checked) == 6
    assert all(line.same for line in checked)
    result = Path(ours["run"]) / "result.json"
    content = json.loads(result.read_text())
    content["results"][0]["accuracies"][3] += 25 if content["results"][0]["accuracies"][3] < 50 else -25
    result.write_text(json.dumps(content))
    wrong = [line for line in verify(bench(setting), [experiment]) if not line.same]
    assert [str(line.run) for line in wrong] == [ours["run"]]


def test_a_run_that_was_trained_otherwise_is_taken_over(setting: Setting, steps: list[str], tmp_path: Path) -> None:
    row = small("ProtoNet").rows[0]
    recipe = dataclasses.replace(setting.recipe(row, 1), workers=0)
    elsewhere = setting.runs / "mine" / "first"
    train(recipe, elsewhere, data=setting.data, quiet=True)
    steps.clear()
    filled = bench(setting).fill(small("ProtoNet"))
    assert steps == []
    assert filled[0].cells[1].run == elsewhere

    other = dataclasses.replace(setting, values=(*VALUES, "seed=7"))
    assert bench(other).fill(small("ProtoNet"))[0].cells[1].run != elsewhere
    assert steps


def test_a_run_of_another_precision_is_taken_over(setting: Setting, steps: list[str]) -> None:
    elsewhere = setting.runs / "mine" / "exact"
    recipe = dataclasses.replace(setting.recipe(small("ProtoNet").rows[0], 1), precision="32-true")
    train(recipe, elsewhere, data=setting.data, quiet=True)
    steps.clear()
    other = dataclasses.replace(setting, values=(*VALUES, "precision=bf16-mixed"))
    assert bench(other).fill(small("ProtoNet"))[0].cells[1].run == elsewhere
    assert steps == []


@pytest.mark.parametrize(("select", "taken"), [("last", True), ("best", False)])
def test_how_often_a_run_was_validated_counts_if_it_chose_the_network(
    setting: Setting, select: str, taken: bool
) -> None:
    chosen = (*VALUES, f"pretrain.select={select}", f"meta.select={select}")
    elsewhere = setting.runs / "mine" / "often"
    often = dataclasses.replace(setting, values=(*chosen, "pretrain.validate_every=1"))
    train(often.recipe(small("ProtoNet").rows[0], 1), elsewhere, data=setting.data, quiet=True)
    rare = dataclasses.replace(setting, values=(*chosen, "pretrain.validate_every=2"))
    found = bench(rare, train=False).fill(small("ProtoNet"))[0].cells[1]
    assert (found.run == elsewhere) is taken
    assert (found.reason == "not trained yet") is not taken


def test_networks_and_stages_of_another_folder_are_used(setting: Setting, steps: list[str], tmp_path: Path) -> None:
    zoo = tmp_path / "zoo"
    row = small("ProtoNet").rows[0]
    train(setting.recipe(row, 1), zoo / "data" / "conv4" / "protonet", data=setting.data, quiet=True)
    steps.clear()
    filled = bench(dataclasses.replace(setting, reuse=(zoo,))).fill(small("ProtoNet", "ADM"))
    assert "pretrain" not in steps  # ADM begins with that of ProtoNet
    assert "meta" in steps
    assert filled[0].cells[1].run == zoo / "data" / "conv4" / "protonet"
    assert str(filled[1].cells[1].run).startswith(str(setting.runs))


def test_a_crash_loses_nothing(
    setting: Setting, power_cut: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    experiment = small("ProtoNet", "STL DeepBDC")
    whole = dataclasses.replace(setting, runs=tmp_path / "whole")
    expected = [row.cells[5].result for row in bench(whole).fill(experiment)]
    with monkeypatch.context() as patch:
        power_cut(3)
        with pytest.raises(RuntimeError, match="power cut"):
            bench(setting).fill(experiment)
        patch.undo()
    found = [row.cells[5].result for row in bench(setting).fill(experiment)]
    for one, other in zip(found, expected, strict=True):
        assert one is not None
        assert other is not None
        assert np.array_equal(one.accuracies, other.accuracies)
        assert one.weights_fingerprint == other.weights_fingerprint


def test_another_classifier_needs_no_training(setting: Setting, steps: list[str]) -> None:
    experiment = small("Logistic regression", "SVM", table="table2b")
    rows = bench(setting).fill(experiment)
    assert {row.cells[5].run for row in rows} == {rows[0].cells[5].run}
    own, svm = (row.cells[5].result for row in rows)
    assert own is not None
    assert svm is not None
    assert svm.classifier != own.classifier
    checked = list(verify(bench(setting), [experiment]))
    assert [(line.classifier, line.same) for line in checked] == [
        (None, True),
        (None, True),
        ("svm", True),
        ("svm", True),
    ]
    steps.clear()
    kept = sorted((setting.output / "evaluations").glob("*.json"))
    before = [path.stat().st_mtime_ns for path in kept]
    bench(setting).fill(experiment)
    assert steps == []
    assert [path.stat().st_mtime_ns for path in kept] == before


def test_several_seeds_show_their_spread(setting: Setting) -> None:
    experiment = small("ProtoNet")
    rows = bench(dataclasses.replace(setting, seeds=2)).fill(experiment)
    cell = rows[0].cells[5]
    assert cell.result is not None
    (other,) = cell.other_seeds
    assert other.weights_fingerprint != cell.result.weights_fingerprint
    mean = (cell.result.mean + other.mean) / 2
    spread = abs(cell.result.mean - other.mean) / 2**0.5
    assert f"2 seeds: {mean:.2f}, σ {spread:.2f}" in grid.markdown("", tables.grid(experiment, rows, {}, "glyphs"))
    alone = bench(setting).fill(experiment)[0].cells[5]
    assert alone.other_seeds == ()
    assert alone.run == cell.run


def test_cells_that_cannot_be_say_why(setting: Setting) -> None:
    across = dataclasses.replace(find("table5a"), rows=find("table5a").rows[:2])
    rows = bench(setting).fill(across)
    text = grid.markdown("", tables.grid(across, rows, {}, "glyphs"))
    assert "– [1]" in text
    assert "[1] ours needs test images of another domain than the training images: give them with --target, " in text
    late = bench(setting, seconds=-60.0).fill(small("ProtoNet"))
    assert "budget" in late[0].cells[1].reason
    new = dataclasses.replace(setting, values=(*VALUES, "seed=7"))
    assert bench(new, train=False).fill(small("ProtoNet"))[0].cells[1].reason == "not trained yet"
    broken = dataclasses.replace(setting, values=(*VALUES, "options.nonsense=1"))
    assert "nonsense" in bench(broken).fill(small("ProtoNet"))[0].cells[1].reason


def test_across_domains_the_network_meets_other_classes(setting: Setting, tmp_path: Path) -> None:
    from tests.training import tiny

    target = dataclasses.replace(setting, target=str(tiny.write_data(tmp_path / "other.npz", seed=5)))
    across = dataclasses.replace(find("table5a"), rows=find("table5a").rows[:1], shots=(1,))
    here, there = bench(setting).fill(small("ProtoNet")), bench(target).fill(across)
    result = there[0].cells[1].result
    assert result is not None
    assert here[0].cells[1].result is not None
    assert result.data_fingerprint != here[0].cells[1].result.data_fingerprint


def test_a_target_is_found_by_its_name_in_the_folder_of_benchmarks(setting: Setting, tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        folder = tmp_path / "cars" / split / f"{split} model"
        folder.mkdir(parents=True)
        Image.new("RGB", (8, len(split))).save(folder / "1.png")
    (tmp_path / "cars" / MARKER).write_text("{}")
    for target in ("cars", str(tmp_path), str(tmp_path / "cars")):
        chosen = dataclasses.replace(setting, target=target, root=tmp_path)
        assert chosen.load_target("cars").name == "cars"


def test_shared_stages_cost_once_and_a_budget_shortens(setting: Setting) -> None:
    full = dataclasses.replace(setting, shortened=1)
    found = bench(full)
    both = found.trainings([small("ProtoNet", "ADM")])
    single = found.trainings([small("ProtoNet")])
    assert len(both) == 2
    assert images_of(both, found.splits) < 1.6 * images_of(single, found.splits)
    all_of_it = images_of(both, found.splits)
    assert fitting(both, found.splits, rate=1.0, seconds=all_of_it + 1) == 1
    assert fitting(both, found.splits, rate=1.0, seconds=all_of_it * 0.7) > 1


def test_the_figure_has_a_curve_for_each_method(setting: Setting) -> None:
    figure = find("channels")
    chosen = tuple(row for row in figure.rows if row.name in ("ProtoNet", "Meta DeepBDC, d = 256"))
    files = write(dataclasses.replace(figure, rows=chosen), bench(setting))
    pictures = [path for path in files if path.suffix in (".png", ".pdf")]
    assert [path.read_bytes()[:4] for path in pictures] == [b"\x89PNG", b"%PDF"]


def test_parameters_count_as_in_the_paper() -> None:
    # The paper's Table 2: ResNet-12 with d = 640 has 12.84 M, STL DeepBDC with d = 128 has 12.55 M.
    for table, name, expected in (("table2a", "d = 640", "12.84"), ("table2b", "d = 128", "12.55")):
        experiment = find(table)
        row = next(row for row in experiment.rows if row.name == name)
        recipe = Setting("miniimagenet", Path("runs"), Path("out")).recipe(row, 5)
        writer = tables._Writer(experiment, [], {}, "miniimagenet")
        assert writer._parameters(FilledRow(row, {}, {5: recipe})) == expected


def test_latency_is_measured_for_all_kinds_of_methods() -> None:
    from deepbdc.report.latency import Timed, measure

    setting = Setting("glyphs", Path("runs"), Path("out"), values=("backbone.width=0.125",))
    rows = {name: Timed(setting.recipe(Row(name, name), 1)) for name in ("protonet", "good_embed", "maml", "aa", "mvt")}
    rows["svm"] = Timed(rows["good_embed"].recipe, "svm")
    found = measure(rows, shot=1, rounds=1)
    assert list(found) == ["protonet", "good_embed", "maml", "mvt", "svm"]  # AA needs its training images
    assert found["maml"].test_own is None  # it adapts the network
    assert found["protonet"].test_own is not None
    assert found["protonet"].test > found["protonet"].test_own
    assert found["protonet"].training is not None
    assert found["good_embed"].training is None


def test_columns_of_another_data_set_say_how_they_are_filled() -> None:
    experiment = find("table4a")
    rows = [FilledRow(row, {shot: Cell(reason="none") for shot in (1, 5)}) for row in experiment.rows]
    for data, empty in (
        ("glyphs", "tieredimagenet"),
        ("tieredimagenet", "miniimagenet"),
    ):
        made = tables.grid(experiment, rows, {}, data)
        assert f"1-shot, ours ({data})" in made.header
        assert f"1-shot, ours ({empty})" in made.header
        stl = dict(zip(made.header, made.lines[-1], strict=True))
        assert stl["5-shot, paper (miniimagenet)"] == "*85.45 ± 0.29*"
        assert stl["5-shot, paper (tieredimagenet)"] == "*89.00 ± 0.30*"
        command = f"'deepbdc paper table4a --data {empty}' makes ours on {empty}."
        (number,) = (note.partition(" ")[0] for note in made.notes if note.endswith(command))
        assert stl[f"5-shot, ours ({empty})"] == f"– {number}"
        assert stl[f"5-shot, ours ({data})"] != f"– {number}"
        tadam = next(line for line in made.lines if line[0] == "TADAM")
        assert dict(zip(made.header, tadam, strict=True))["5-shot, paper (tieredimagenet)"] == "–"


def test_the_networks_of_both_data_sets_of_s3_2_stand_in_one_row() -> None:
    rows = {(row.method, row.larger): row for row in find("capacity").rows}
    small, large = rows["protonet", False], rows["protonet", True]
    assert small.beside["cub"].backbone == "ResNet-18"
    assert small.beside["cub"].accuracies[5] == (89.81, None)
    assert large.beside["cub"].backbone == "ResNet-34"
    assert large.beside["cub"].accuracies[5] == (90.11, None)
    filled = [FilledRow(row, {shot: Cell(reason="none") for shot in (1, 5)}) for row in (small, large)]
    made = tables.grid(find("capacity"), filled, {}, "glyphs")
    column = made.header.index("network in the paper")
    assert [line[column] for line in made.lines] == ["ResNet-12 (cub: ResNet-18)", "ResNet-34"]


def test_a_table_with_several_crops_does_not_take_the_results_without(setting: Setting, steps: list[str]) -> None:
    experiment = small("ProtoNet")
    plain = bench(setting).fill(experiment)[0].cells[1].result
    steps.clear()
    cropped = dataclasses.replace(setting, values=(*VALUES, "evaluation.crops=2"))
    found = bench(cropped).fill(experiment)[0].cells[1].result
    assert steps == [], "the network is the same"
    assert plain is not None
    assert found is not None
    assert (plain.crops, found.crops) == (1, 2)
    assert found.weights_fingerprint == plain.weights_fingerprint
