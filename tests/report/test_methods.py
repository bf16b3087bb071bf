"""The table of methods, its page, and the published numbers in it."""

import importlib.util
import sys
from pathlib import Path

import pytest

from deepbdc.cli import main
from deepbdc.methods.base import methods
from deepbdc.report.methods import description, method_rows
from deepbdc.report.published import on_miniimagenet, published

DOCS = Path(__file__).parents[2] / "docs"
spec = importlib.util.spec_from_file_location("docs_methods", DOCS / "methods.py")
sys.path.insert(0, str(DOCS))  # for what the script imports
assert spec is not None
assert spec.loader is not None
page = importlib.util.module_from_spec(spec)
sys.modules["docs_methods"] = page
spec.loader.exec_module(page)


def test_the_page_is_up_to_date() -> None:
    text = page.PAGE.page.read_text(encoding="utf-8")
    assert page.PAGE.placed(page.page_table()) == text, "run python docs/methods.py --write"


@pytest.mark.parametrize("row", method_rows(), ids=lambda row: row.name)
def test_every_method_is_described(row) -> None:  # type: ignore[no-untyped-def]
    assert row.title
    assert 10 < len(row.idea) < 100
    assert any(year in row.paper for year in map(str, range(2015, 2025))), row.paper
    assert {"glyphs", "cifar_fs"} <= set(row.data_sets)
    prose = description(row.name).partition("Options (")[0]
    assert ("transductive" if row.transductive else "inductive") in prose.lower()


def test_kept_results_are_shown_with_their_interval() -> None:
    assert page.kept("stl_deepbdc", "cifar_fs") == "63.68 ± 0.50 / 79.96 ± 0.37"
    assert page.kept("stl_deepbdc", "nowhere") == "–"


def test_published_rows() -> None:
    tables = published()
    assert {name: len(rows) for name, rows in tables.items() if name != "miniimagenet_elsewhere"} == {
        "4a_miniimagenet": 19,
        "4a_tieredimagenet": 15,
        "4b_cub": 19,
        "5a_cub": 11,
        "5b_aircraft": 8,
        "5c_cars": 8,
    }
    row = next(row for row in tables["4b_cub"] if row.method == "mvt")
    assert row.accuracies == {5: (85.35, 0.55)}
    assert row.as_text() == "– / 85.35"
    found = on_miniimagenet("dn4")
    assert found is not None
    assert found.rerun
    assert found.as_text() == "64.73 / 79.85"
    assert all(20 < mean < 100 for rows in tables.values() for row in rows for mean, _ in row.accuracies.values())


def test_the_command_lists_and_explains(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    main(["methods"])
    out = capsys.readouterr().out
    for name in methods.names():
        assert f"{name} " in out
    assert "maml †" in out
    main(["methods", "dn4"])
    out = capsys.readouterr().out
    assert "neighbours: k." in out
    assert "64.73 / 79.85 with 1 / 5 shots (ResNet-12, DeepBDC paper, its own rerun)" in out
    assert "glyphs/dn4" in out
    with pytest.raises(SystemExit, match="did you mean 'dn4'"):
        main(["methods", "dn5"])
