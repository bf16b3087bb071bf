import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deepbdc.commands.paper import paper
from deepbdc.errors import UserError
from deepbdc.paper.cells import Bench
from deepbdc.paper.experiments import find
from deepbdc.paper.plan import PLAN, kept_plan, make_plan
from deepbdc.paper.settings import Setting


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data": "glyfs"}, "did you mean 'glyphs'"),
        ({"target": "cubs"}, "--target cubs is neither a data set nor a path: did you mean 'cub'"),
        ({"recipes": "glyfs"}, r"no recipes glyfs/\*: did you mean 'glyphs'"),
        ({"backbone": "resnet13"}, "resnet12"),
        ({"set": ["metta.epochs=1"]}, "does not exist"),
        ({"set": ["options.nonsense=1"]}, "nonsense"),
    ],
)
def test_a_mistake_leaves_no_plan_behind(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises((UserError, OSError), match=words):
        paper("table3", output=tmp_path / "out", runs=tmp_path / "runs", **options)
    assert not (tmp_path / "out").exists()


def test_verifying_writes_no_plan(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to verify"):
        paper("verify", "prototypes", output=tmp_path / "out", runs=tmp_path / "runs")
    assert not (tmp_path / "out").exists()


def test_a_plan_is_kept_and_refuses_other_settings(tiny_data: Path, tmp_path: Path) -> None:
    setting = Setting(str(tiny_data), tmp_path / "runs", tmp_path / "out", values=("size=16", "backbone.width=0.125"))
    assert kept_plan(setting) is None
    made = make_plan(Bench(setting, Console(quiet=True)), [find("prototypes")], minutes=1e-6)
    assert made.shortened == 32  # nothing fits: the largest
    assert kept_plan(setting) == made
    assert json.loads((setting.output / PLAN).read_text())["budget"] == 1e-6
    with pytest.raises(UserError, match="made with other settings"):
        kept_plan(Setting(str(tiny_data), tmp_path / "runs", tmp_path / "out"))
