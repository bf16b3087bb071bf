"""Table S-1 from our recipes."""

import dataclasses

import pytest

from deepbdc.errors import UserError
from deepbdc.report import hyper_parameters as module
from deepbdc.report.hyper_parameters import DIFFERENCES, grid, hyper_parameters, paper_recipes


def test_the_recipes_have_the_values_of_the_paper_except_where_we_say_so() -> None:
    values = hyper_parameters()
    different = {(value.method, value.benchmark, value.name) for value in values if value.differs}
    assert different == set(DIFFERENCES)  # each difference has a reason, and each reason is still needed
    compared = [value for value in values if value.published is not None]
    assert {value.name for value in compared} == {
        "Initial LR",
        "LR decay",
        "Epochs",
        "Weight decay",
        "Momentum",
        "Batch size",
        "Queries",
        "Channels d",
        "DropBlock",
    }
    assert {value.name for value in values if value.published is None} == {"LR of t"}


def test_every_benchmark_and_stage_is_there() -> None:
    names = paper_recipes()
    assert names[:2] == ["miniimagenet/meta_deepbdc_1shot", "miniimagenet/meta_deepbdc_5shot"]
    assert len(names) == len(set(names)) == 18  # six benchmarks with three recipes each
    stages = {(value.recipe, value.stage) for value in hyper_parameters()}
    assert len(stages) == 6 * (2 + 2)  # one stage of two recipes of Meta DeepBDC, two stages of one of STL DeepBDC


def test_values() -> None:
    meta = {value.name: value for value in hyper_parameters(["cub/meta_deepbdc_5shot"])}
    assert (meta["LR decay"].ours, meta["LR decay"].published) == ("×0.1 after 40, 80", "×0.1 after 40, 80")
    assert (meta["LR of t"].ours, meta["LR of t"].published) == ("1e-3", None)  # that of the network
    assert (meta["Channels d"].ours, meta["Channels d"].published) == ("256", "640")
    assert meta["Channels d"].reason is not None
    assert "DropBlock" not in meta  # ResNet-18
    stl = hyper_parameters(["tieredimagenet/stl_deepbdc"])
    assert {(value.stage, value.ours) for value in stl if value.name == "Epochs"} == {
        ("pretrain", "100"),
        ("distill", "100"),
    }


def test_a_changed_recipe_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(name: str) -> object:
        recipe = original(name)
        meta = dataclasses.replace(recipe.stages["meta"], lr=1.2e-4)
        return dataclasses.replace(recipe, stages={**recipe.stages, "meta": meta})

    original = module.load_recipe
    monkeypatch.setattr(module, "load_recipe", changed)
    rate = next(value for value in hyper_parameters(["miniimagenet/meta_deepbdc_1shot"]) if value.name == "Initial LR")
    assert (rate.ours, rate.published, rate.differs, rate.reason) == ("1.2e-4", "1e-4", True, None)


def test_the_table_has_the_values_of_both() -> None:
    made = grid(hyper_parameters())
    lines = {tuple(line[:3]): line[3:] for line in made.lines}
    assert len(made.header) == 3 + 6
    assert lines["meta_deepbdc", "meta", "Initial LR"] == ["1e-4", "5e-5", "1e-3", "5e-5", "5e-5", "5e-5"]
    assert lines["stl_deepbdc", "pretrain", "Epochs"] == ["180", "100", "220", "180", "180", "180"]
    channels = lines["meta_deepbdc", "meta", "Channels d"]
    assert channels[:3] == ["640", "**256** (paper: *640*) [2]", "**256** (paper: *640*) [2]"]
    assert lines["meta_deepbdc", "meta", "DropBlock"][2] == "–"  # ResNet-18 has none
    assert made.notes[-2].startswith("[1] the released code never enables DropBlock")
    assert made.notes[-1].startswith("[2] the paper's best d is 640")


def test_recipes_that_the_paper_does_not_have_are_refused() -> None:
    with pytest.raises(UserError, match="the paper has no hyper-parameters for the recipe 'glyphs/stl_deepbdc'"):
        hyper_parameters(["glyphs/stl_deepbdc"])
