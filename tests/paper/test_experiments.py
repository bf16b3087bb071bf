from pathlib import Path

import pytest

from deepbdc.errors import UserError
from deepbdc.methods.base import methods
from deepbdc.paper.experiments import FILES, ORDER, Row, experiments, find
from deepbdc.paper.settings import NotPossible, Setting, shortened
from deepbdc.recipes import build_method, load_recipe
from deepbdc.runs import same_training
from deepbdc.stages.settings import BatchSettings


def setting(data: str, **options: object) -> Setting:
    return Setting(data, Path("runs"), Path("paper"), **options)  # type: ignore[arg-type]


def test_every_file_is_an_experiment() -> None:
    assert sorted(ORDER) == sorted(path.stem for path in FILES.glob("*.yaml"))


@pytest.mark.parametrize("name", ORDER)
def test_rows_of_all_experiments_are_recipes_that_build(name: str) -> None:
    experiment = find(name)
    assert experiment.is_trained == bool(experiment.rows)
    labels = [(row.group, row.name, row.published.backbone if row.published else None) for row in experiment.rows]
    assert len(set(labels)) == len(labels)
    if experiment.baseline is not None:
        assert experiment.baseline in {row.method for row in experiment.rows}
    for row in experiment.rows:
        assert row.method in methods.names()
        for shot in experiment.shots:
            recipe = setting("glyphs").recipe(row, shot)
            assert recipe.method == row.method
            build_method(recipe)


def test_the_paper_varies_what_it_says() -> None:
    rows = {row.name: row for row in find("table2a").rows}
    small = setting("glyphs").recipe(rows["d = 256"], 5)  # 0.4 of the 32 channels of the small Conv4
    assert small.options["reduce_to"] == 13
    assert rows["d = 256"].published is not None
    assert rows["d = 256"].published.accuracies[5] == (84.15, 0.28)
    full = setting("miniimagenet").recipe(rows["d = 256"], 5)
    assert (full.options["reduce_to"], full.stages["meta"].shot) == (256, 5)  # type: ignore[attr-defined]
    assert setting("glyphs").recipe(rows["Cosine similarity"], 1).options["similarity"] == "cosine"
    classifiers = [row.classifier for row in find("table2b").rows]
    assert classifiers[-3:] == [None, "svm", "softmax"]
    assert [row.set["backbone.removed_downsamplings"] for row in find("features").rows[:3]] == [0, 1, 2]


def test_a_larger_network_is_that_of_the_paper_or_a_wider_one() -> None:
    row = next(row for row in find("capacity").rows if row.larger)
    assert setting("miniimagenet").recipe(row, 1).backbone["name"] == "resnet34s"
    assert setting("glyphs").recipe(row, 1).backbone == {"name": "conv4", "width": 1.0, "removed_downsamplings": 2}
    assert setting("glyphs", backbone="resnet12").recipe(row, 1).backbone == {"name": "resnet34s"}
    narrow = setting("glyphs", values=("backbone.width=0.125",)).recipe(row, 1).backbone
    assert narrow == {"name": "conv4", "width": 0.25, "removed_downsamplings": 2}
    other = setting("glyphs", backbone="resnet12", values=("backbone.drop_rate=0.1",)).recipe(row, 1).backbone
    assert other == {"name": "resnet34s", "drop_rate": 0.1}


def test_values_for_all_recipes_skip_stages_that_a_method_lacks() -> None:
    chosen = setting("glyphs", values=("meta.epochs=9", "evaluation.episodes=7"))
    rows = {row.method: row for row in find("table3").rows}
    assert chosen.recipe(rows["protonet"], 1).stages["meta"].epochs == 9
    transfer = chosen.recipe(rows["stl_deepbdc"], 1)
    assert "meta" not in transfer.stages
    assert transfer.evaluation_settings.episodes == 7
    with pytest.raises(UserError, match="does not exist"):
        setting("glyphs", values=("metta.epochs=9",)).recipe(rows["protonet"], 1)


def test_shortened_stages_keep_their_shape() -> None:
    stage = BatchSettings(epochs=100, milestones=(40, 80), warmup=4, validate_from=50)
    short = shortened(stage, 20)
    assert (short.epochs, short.milestones, short.warmup, short.validate_from) == (5, (2, 4), 0.2, 2)
    shortest = shortened(stage, 1000)
    assert (shortest.epochs, shortest.milestones) == (1, (1,))
    shortest.check("stage")
    assert shortened(stage, 1) is stage


def test_a_method_without_a_recipe_is_a_reason() -> None:
    row = next(row for row in find("table4b").rows if row.method == "mvt")
    with pytest.raises(NotPossible, match="no recipe tieredimagenet/mvt"):
        setting("tieredimagenet").recipe(row, 5)


def test_an_unknown_name_is_corrected() -> None:
    with pytest.raises(UserError, match="table3"):
        find("tabel3")
    assert list(experiments()) == list(ORDER)


def test_the_files_say_what_is_drawn_and_in_which_colours() -> None:
    for experiment in experiments().values():
        assert (experiment.kind == "drawing") == (experiment.drawing is not None)
        colours = {row.method: row.colour for row in experiment.rows}
        if experiment.kind == "figure":
            assert all(colours.values())
            assert len(set(colours.values())) == len(colours)


def test_a_published_row_of_an_option_of_a_method_is_trained_with_that_option() -> None:
    (row,) = (row for row in find("table4b").rows if row.name == "Wang et al. LR")
    recipe = setting("glyphs").recipe(row, 1)
    assert (recipe.method, recipe.options["inference"]) == ("ici", "inductive")
    assert not build_method(recipe).transductive  # the table must not mark it
    assert build_method(setting("glyphs").recipe(Row("ici", "ICI"), 1)).transductive
    assert same_training(setting("cub").recipe(row, 1), load_recipe("cub/ici_inductive"))
