"""The table of methods, and its page."""

import importlib.util
import sys
from pathlib import Path

import pytest

from deepbdc.cli import main
from deepbdc.methods.base import methods
from deepbdc.report.methods import description, method_rows

DOCS = Path(__file__).parents[2] / "docs"
spec = importlib.util.spec_from_file_location("docs_methods", DOCS / "methods.py")
assert spec is not None
assert spec.loader is not None
page = importlib.util.module_from_spec(spec)
sys.modules["docs_methods"] = page
spec.loader.exec_module(page)


def test_the_page_is_up_to_date() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.with_table(text, page.page_table()) == text, "run python docs/methods.py --write"


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
