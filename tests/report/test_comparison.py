import contextlib
import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

import deepbdc.report.comparison_output as output_module
from deepbdc.backbones import create_backbone
from deepbdc.data.dataset import ArrayDataset
from deepbdc.embedding import pixel_embedding
from deepbdc.evaluation import Comparison, evaluate
from deepbdc.gallery import KeptResult
from deepbdc.methods import create_method
from deepbdc.methods.base import Method
from deepbdc.preprocessing import Preprocessing
from deepbdc.recipes import Recipe
from deepbdc.report.comparison import (
    ComparisonTable,
    Row,
    common_data,
    compare_runs,
    excludes_zero,
    excludes_zero_for_classes,
)
from deepbdc.report.comparison_output import difference_in_words, draw, save, table
from deepbdc.report.evaluation import ASSUMES_BALANCE, TRANSDUCTIVE, class_interval_in_words, results_table
from deepbdc.runs import Run

SETTINGS: dict[str, Any] = {"shots": (1, 5), "episodes": 60, "query": 4}


@pytest.fixture(autouse=True, scope="module")
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs are in a folder of their own, because a comparison writes to their ledgers."""
    with contextlib.chdir(tmp_path_factory.mktemp("comparison")):
        yield


def colours(split: str = "test", seed: int = 0) -> ArrayDataset:
    """Eight noisy classes, which an untrained network recognises better than by chance, but not perfectly."""
    generator = np.random.default_rng(seed)
    means = generator.uniform(0, 255, (8, 1, 8, 8, 3))
    images = np.clip(means + generator.normal(0, 150, (8, 12, 8, 8, 3)), 0, 255).astype(np.uint8)
    labels = np.repeat(np.arange(8), 12)
    return ArrayDataset(images.reshape(-1, 8, 8, 3), labels, list("abcdefgh"), "colours", split)


def run(name: str, method: str = "protonet", folder: str = "") -> Any:
    """A run with an untrained network, with everything that a comparison needs."""
    torch.manual_seed(0)
    backbone = create_backbone("conv4", width=0.2, removed_downsamplings=2)
    network = create_method(method, backbone, preprocessing=Preprocessing(input_size=8, resize=8))
    recipe = Recipe(method=method, data="colours", workers=0)
    Path(folder or name).mkdir(parents=True, exist_ok=True)
    return Run(Path(folder or name), name, recipe, network.eval(), class_names=(), data=None)


def pixels(name: str) -> Any:
    from deepbdc.classifiers import create_classifier

    found = run(name)
    found = replace(found, method=Method(pixel_embedding(8), create_classifier("prototype")))
    return found


@pytest.fixture(scope="module")
def found() -> ComparisonTable:
    runs = [run("x/protonet"), run("x/stl_deepbdc", "stl_deepbdc"), pixels("x/pixels")]
    return compare_runs(runs, data=colours(), **SETTINGS)


def test_results_equal_those_of_single_evaluations(found: ComparisonTable) -> None:
    stl = run("again", "stl_deepbdc")
    for shot, result in zip((1, 5), found.rows[1].results, strict=True):
        expected = evaluate(stl.method, colours(), shot=shot, query=4, episodes=60)
        assert np.array_equal(result.accuracies, expected.accuracies)
        assert result.shot == shot


def test_differences_are_paired(found: ComparisonTable) -> None:
    for row in found.rows:
        for difference, result, base in zip(found.differences(row), row.results, found.baseline.results, strict=True):
            apart = result.accuracies - base.accuracies
            assert difference.difference == pytest.approx(apart.mean())
            assert difference.ci95 == pytest.approx(1.96 * apart.std() / np.sqrt(60))


@pytest.mark.parametrize(
    ("difference", "interval", "words"),
    [(1.2, 0.5, "+1.20 ± 0.50 *"), (-1.2, 0.5, "−1.20 ± 0.50 *"), (0.4, 0.5, "+0.40 ± 0.50"), (0, 0, "+0.00 ± 0.00")],
)
def test_a_star_marks_intervals_that_exclude_zero(difference: float, interval: float, words: str) -> None:
    compared = Comparison(difference, interval, 0.5)
    assert difference_in_words(compared).rstrip() == words
    assert excludes_zero(compared) == words.endswith("*")


@pytest.mark.parametrize(
    ("over_classes", "words"), [(0.8, "+1.20 ± 0.50 * (± 0.80) *"), (1.31, "+1.20 ± 0.50 * (± 1.3)")]
)
def test_a_second_star_is_for_the_interval_over_classes(over_classes: float, words: str) -> None:
    compared = Comparison(1.2, 0.5, 0.5, over_classes)
    assert difference_in_words(compared) == words
    assert excludes_zero_for_classes(compared) == words.endswith("*")


def printed(comparison: ComparisonTable) -> str:
    console = Console(width=80, record=True)
    console.print(table(comparison))
    return console.export_text()


def test_table_fits_80_columns(found: ComparisonTable) -> None:
    text = printed(found)
    for row in found.rows:
        lines = text.splitlines()
        (place,) = (n for n, line in enumerate(lines) if line.startswith(row.name.removeprefix("x/") + " "))
        for result, difference in zip(row.results, found.differences(row), strict=True):
            assert str(result) in lines[place]
            assert class_interval_in_words(result.ci95_classes) in lines[place + 1]
            usual, _, over_classes = difference_in_words(difference).partition(" (")
            assert (usual in lines[place]) == (row is not found.baseline)
            assert (over_classes in lines[place + 1]) == (row is not found.baseline)
    assert "colours test: 60 episodes, 5-way, 4 queries per class" in text
    assert "paired, to x/protonet" in text
    assert "interval over episodes of these 8 classes (seed 0) " in text
    assert "(± 95 % interval over classes: these 8 as a sample of all such classes)" in text


def test_results_without_classes_have_the_usual_interval_only(found: ComparisonTable) -> None:
    rows = tuple(replace(row, results=tuple(replace(one, classes=None) for one in row.results)) for row in found.rows)
    text = printed(replace(found, rows=rows))
    assert "(±" not in text
    assert "over classes" not in text


def seeded(name: str, seed: int, **changes: Any) -> Any:
    found = run(name)
    return replace(found, recipe=replace(found.recipe, seed=seed, **changes))


def test_runs_that_differ_only_in_their_seed_have_a_row_of_their_own(tmp_path: Path) -> None:
    runs = [seeded("a", 1), seeded("b", 2, workers=3), pixels("c"), seeded("d", 5, dropout=0.5), seeded("e", 1)]
    runs[1] = replace(runs[1], method=pixels("x").method)  # so that the seeds differ
    compared = compare_runs(runs, data=colours(), **SETTINGS)
    (group,) = compared.seeds
    assert (group.name, [row.name for row in group.rows]) == ("protonet (2 seeds)", ["a", "b"])
    for position in range(2):
        means = [compared.rows[row].results[position].mean for row in (0, 1)]
        assert group.means[position] == pytest.approx(sum(means) / 2)
        assert group.deviations[position] == pytest.approx(abs(means[0] - means[1]) / 2**0.5)
    text = printed(compared)
    assert f" {group.means[0]:.2f} σ {group.deviations[0]:.2f} " in text
    assert "σ = standard deviation over trainings with different seeds" in text
    (saved,) = compared.as_json()["seeds"]
    assert (saved["rows"], saved["means"], saved["deviations"]) == (["a", "b"], [*group.means], [*group.deviations])
    assert [row["training_seed"] for row in compared.as_json()["rows"]] == [1, 2, 1, 5, 1]
    assert compare_runs([seeded("a", 1), seeded("b", 1)], data=colours(), **SETTINGS).seeds == ()


def test_the_row_of_several_seeds_has_its_difference_to_the_baseline() -> None:
    other = pixels("x").method
    runs = [pixels("base"), seeded("a", 1), replace(seeded("b", 2), method=other), seeded("c", 4, dropout=0.5)]
    runs[0] = replace(runs[0], recipe=replace(runs[0].recipe, size=8))  # a recipe of its own
    compared = compare_runs(runs, data=colours(), **SETTINGS)
    (group,) = compared.seeds
    found = compared.seed_differences(group)
    assert found is not None
    for position, apart in enumerate(found):
        means = [row.results[position].mean for row in compared.rows]
        differences = [means[1] - means[0], means[2] - means[0]]
        assert apart.mean == pytest.approx(sum(differences) / 2)
        assert apart.deviation == pytest.approx(abs(differences[0] - differences[1]) / 2**0.5)
        assert not apart.by_seed
        assert f"{apart.mean:+.2f} σ {apart.deviation:.2f}".replace("-", "−") in printed(compared)
    assert "difference of seeds: each to base" in printed(compared)
    assert compared.as_json()["seeds"][0]["differences"][1]["mean"] == found[1].mean


def test_seeds_are_paired_with_the_same_seeds_of_the_baseline() -> None:
    other = pixels("x").method
    runs = [seeded("a", 1), replace(seeded("b", 2), method=other)]
    runs += [replace(seeded("c", 1, dropout=0.5), method=other), seeded("d", 2, dropout=0.5)]
    compared = compare_runs(runs, data=colours(), **SETTINGS)
    own, group = compared.seeds
    assert compared.seed_differences(own) is None
    (apart, _) = compared.seed_differences(group) or ()
    (a, b, c, d) = (row.results[0].mean for row in compared.rows)
    assert apart.by_seed
    assert apart.deviation == pytest.approx(abs((c - a) - (d - b)) / 2**0.5)
    assert "each to the baseline's training of the same seed" in printed(compared)


def test_a_comparison_is_a_look_at_the_test_classes(tmp_path: Path) -> None:
    one = run("one", folder=str(tmp_path / "one"))
    settings: dict[str, Any] = {"shots": (1,), "episodes": 3, "query": 2, "data": colours()}
    assert [compare_runs([one], seed=seed, **settings).rows[0].looks for seed in (0, 0, 1)] == [1, 1, 2]
    assert len((tmp_path / "one" / "looks.jsonl").read_text().splitlines()) == 3


def test_two_recipes_of_one_method_with_several_seeds_are_told_apart() -> None:
    runs = [seeded("a", 1), seeded("b", 2), seeded("c", 1, dropout=0.5), seeded("d", 2, dropout=0.5)]
    compared = compare_runs(runs, data=colours(), shots=(1,), episodes=3, query=2)
    assert [group.name for group in compared.seeds] == ["a (2 seeds)", "c (2 seeds)"]


def kept(found: ComparisonTable, path: Path, **changes: Any) -> KeptResult:
    """The baseline's results as if they had been kept."""
    results = tuple(replace(result, **changes) for result in found.baseline.results)
    return KeptResult(path.stem, path, results, "protonet", training_seed=4, looks=2)


def test_kept_results_are_paired_with_runs_on_the_same_episodes(found: ComparisonTable) -> None:
    old = kept(found, Path("gallery/a.json"))
    compared = compare_runs([old, pixels("x/pixels")], data=colours(), **SETTINGS)
    assert [row.name for row in compared.rows] == ["a", "x/pixels"]
    assert (compared.rows[0].training_seed, compared.rows[0].looks) == (4, 2)
    assert compared.differences(compared.rows[1]) == found.differences(found.rows[2])
    assert compare_runs([old, pixels("p")], data=colours(), **SETTINGS, baseline="gallery/a.json").baseline.name == "a"


def test_kept_results_alone_need_no_data(found: ComparisonTable) -> None:
    both = [kept(found, Path("gallery/a.json")), kept(found, Path("gallery/b.json"))]
    compared = compare_runs(both, **SETTINGS)
    assert [difference.difference for difference in compared.differences(compared.rows[1])] == [0, 0]


@pytest.mark.parametrize(
    ("changes", "settings", "words"),
    [
        ({}, {"shots": (1, 2)}, "has results with 1 and 5 shots, but none with 2: give --shot"),
        ({}, {"seed": 1}, "is of episodes with seed=0, not 1"),
        ({}, {"episodes": 30}, "is of episodes with episodes=60, not 30"),
        ({}, {"way": 3, "query": 5}, "is of episodes with way=5, not 3; query=4, not 5"),
        ({"split": "val"}, {}, "is of episodes with split=val, not test"),
        ({"data_fingerprint": "other"}, {}, "is of other images .colours test with the fingerprint other; the data"),
        ({"episodes_fingerprint": "other"}, {}, "is of other 1-shot episodes than those drawn here"),
    ],
)
def test_kept_results_of_other_episodes_are_refused(
    found: ComparisonTable, changes: dict[str, Any], settings: dict[str, Any], words: str
) -> None:
    old = kept(found, Path("gallery/a.json"), **changes)
    with pytest.raises(ValueError, match=rf"gallery/a\.json {words}"):
        compare_runs([old, pixels("p")], data=colours(), **{**SETTINGS, **settings})


def test_transductive_methods_are_marked_and_explained(found: ComparisonTable) -> None:
    transductive = tuple(replace(result, transductive=True) for result in found.rows[2].results)
    mixed = ComparisonTable((*found.rows[:2], replace(found.rows[2], results=transductive)), found.shots)
    for comparison, marks in ((found, 0), (mixed, 2)):  # at the name, and in the caption
        console = Console(width=80, record=True)
        console.print(table(comparison))
        text = console.export_text()
        assert text.count("†") == marks
        assert ("pixels †" in text) == bool(marks)
        assert comparison.as_json()["rows"][2]["results"][0]["transductive"] == bool(marks)
    console = Console(width=120, record=True)
    console.print(results_table("maml", transductive))
    assert "depends on the other queries" in " ".join(console.export_text().split())


def test_known_results_are_used_if_they_belong_to_the_episodes(found: ComparisonTable) -> None:
    invented = tuple(replace(result, accuracies=result.accuracies * 0 + 50) for result in found.baseline.results)
    one = run("one")
    for settings, used in ((SETTINGS, True), ({**SETTINGS, "seed": 1}, False)):
        table = compare_runs([one], **settings, data=colours(), known={one.folder: invented})
        assert ([result.mean for result in table.rows[0].results] == [50, 50]) == used


def test_a_transductive_method_is_told_apart_in_the_table_the_picture_and_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    monkeypatch.setattr(output_module, "temporary", lambda path: nullcontext(path))
    runs = [run("x/protonet"), run("x/tim", "tim"), run("x/ici", "ici")]
    compared = compare_runs(runs, data=colours(), shots=(1,), episodes=4, query=4)
    draw(compared, tmp_path / "x.png")
    labels = [label.get_text() for label in drawn[0].axes[0].get_yticklabels()]
    assert labels == ["x/protonet", "x/tim †‡", "x/ici †"]
    below = drawn[0].get_supxlabel()
    console = Console(width=120, record=True)
    console.print(table(compared))
    for text in (below, " ".join(console.export_text().split())):
        assert TRANSDUCTIVE in text
        assert ASSUMES_BALANCE in text
        assert "which is not so" not in text
    assert [row["transductive"] for row in compared.as_json()["rows"]] == [False, True, True]


def test_unbalanced_queries_are_named_and_a_method_that_assumes_balance_is_warned_about() -> None:
    runs, options = [run("x/protonet"), run("x/tim", "tim")], {"unbalanced": True, "dirichlet": 2.0}
    with pytest.warns(UserWarning, match="TIM assumes that all classes of a task have equally many queries, but"):
        compared = compare_runs(runs, data=colours(), shots=(1,), episodes=4, query=4, **options)
    console = Console(width=120, record=True)
    console.print(table(compared))
    text = " ".join(console.export_text().split())
    assert "4 queries per class on average, unbalanced (Dirichlet 2)" in text
    assert "equally many queries, which is not so in these" in text
    saved = compared.as_json()["rows"]
    assert [row["results"][0]["assumes_balanced_queries"] for row in saved] == [False, True]
    assert all(row["results"][0]["dirichlet"] == 2 and row["results"][0]["unbalanced"] for row in saved)


def test_baseline_is_the_first_row(found: ComparisonTable) -> None:
    runs = [run("one"), pixels("two")]
    by_name = compare_runs(runs, data=colours(), baseline="two", **SETTINGS)
    assert [row.name for row in by_name.rows] == ["two", "one"]
    with pytest.raises(ValueError, match=r"'three' is not one of the compared runs: one, two"):
        compare_runs(runs, data=colours(), baseline="three", **SETTINGS)
    with pytest.raises(ValueError, match="nothing to compare"):
        compare_runs([])


def test_runs_of_the_same_name_are_shown_by_their_folders() -> None:
    runs = [run("same", folder="runs/a"), run("same", folder="runs/b"), run("other", folder="runs/c")]
    rows = compare_runs(runs, data=colours(), shots=(1,), episodes=3, query=2).rows
    assert [row.name for row in rows] == ["runs/a", "runs/b", "other"]


def test_saved_file_has_every_episode(found: ComparisonTable, tmp_path: Path) -> None:
    save(found, tmp_path / "new" / "comparison.json")
    content = json.loads((tmp_path / "new" / "comparison.json").read_text())
    assert content["baseline"] == "x/protonet"
    assert content["shots"] == [1, 5]
    for row, saved in zip(found.rows, content["rows"], strict=True):
        assert saved["name"] == row.name
        for result, kept in zip(row.results, saved["results"], strict=True):
            assert kept["accuracies"] == result.accuracies.tolist()
            assert kept["mean"] == result.mean
        for difference, kept in zip(found.differences(row), saved["differences"], strict=True):
            assert kept["difference"] == difference.difference
            assert kept["excludes_zero"] == excludes_zero(difference)


@pytest.mark.parametrize("name", ["new/a.png", "a.pdf", "a.svg"])
def test_picture(found: ComparisonTable, tmp_path: Path, name: str) -> None:
    draw(found, tmp_path / name)
    assert (tmp_path / name).stat().st_size > 5_000
    if name.endswith("png"):
        with Image.open(tmp_path / name) as image:
            assert image.width > 800


def test_picture_of_one_run_and_one_shot(found: ComparisonTable, tmp_path: Path) -> None:
    row = found.rows[0]
    only = ComparisonTable((Row(row.name, row.method, row.folder, row.results[:1]),), (1,))
    draw(only, tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 5_000


def arrays(path: Path, seed: int) -> Path:
    data = colours(seed=seed)
    split = np.array(["test"] * 8)
    np.savez(path, images=data.images, labels=data.labels, class_names=np.array(data.class_names), class_split=split)
    return path


def test_all_runs_must_use_the_same_images(tmp_path: Path) -> None:
    one, copy, other = (arrays(tmp_path / f"{name}.npz", seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert len(common_data({"x": ("glyphs", one), "y": ("glyphs", one)})) == 96
    assert common_data({"x": ("glyphs", one), "y": ("glyphs", copy)}).class_names == tuple("abcdefgh")
    with pytest.raises(ValueError, match=r"same images for all runs, but x uses .*a\.npz, y uses .*c\.npz: choose one"):
        common_data({"x": ("glyphs", one), "y": ("glyphs", other)})
