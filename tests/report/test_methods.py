"""The table of methods, and its page."""

from collections.abc import Iterator
from importlib.resources import files

import pytest
import yaml

from deepbdc.cli import main
from deepbdc.methods.base import methods
from deepbdc.report.evaluation import ASSUMES_BALANCE, TRANSDUCTIVE
from deepbdc.report.methods import description, method_rows
from deepbdc.report.published import published
from tests.scripts import script

page = script("methods", "docs")


def test_the_page_is_up_to_date() -> None:
    text = page.PAGE.page.read_text(encoding="utf-8")
    assert page.PAGE.placed(page.page_table()) == text, "run python docs/methods.py --write"


META, STL = {"Meta DeepBDC": "meta_deepbdc"}, {"STL DeepBDC": "stl_deepbdc"}
PAPER = {  # the systems in the tables of the paper, as it writes them, and what they are called here
    "1": {
        "ProtoNet": "protonet",
        "CovNet": "covnet",
        "ADM": "adm",
        "DeepEMD": "deepemd",
        "DeepBDC": "meta_deepbdc",  # by its accuracies
    },
    "2a": {"ProtoNet": "protonet", **META},
    "2b": {"Good-Embed": "good_embed", **STL},
    "3": {"ProtoNet": "protonet", "ADM": "adm", "CovNet": "covnet", "DeepEMD": "deepemd", **META, **STL},
    "4a": {
        "CTM": "ctm",
        "S2M2": "s2m2",
        "TADAM": "tadam",
        "MetaOptNet": "metaoptnet",
        "DN4": "dn4",
        "Baseline++": "baseline++",
        "Good-Embed": "good_embed",
        "FEAT": "feat",
        "Meta-Baseline": "meta_baseline",
        "MELR": "melr",
        "FRN": "frn",
        "IEPT": "iept",
        "BML": "bml",
        "ProtoNet": "protonet",
        "ADM": "adm",
        "CovNet": "covnet",
        "DeepEMD": "deepemd",
        **META,
        **STL,
    },
    "4b": {
        "ProtoNet": "protonet",
        "FEAT": "feat",
        "MELR": "melr",
        "MVT": "mvt",
        "MatchNet": "matchingnet",
        "Wang et al. LR": "ici",
        "MAML": "maml",
        "Δ-encoder": "delta_encoder",
        "Baseline++": "baseline++",
        "AA": "aa",
        "Neg-Cosine": "neg_cosine",
        "LaplacianShot": "laplacianshot",
        "FRN": "frn",
        "Good-Embed": "good_embed",
        "ADM": "adm",
        "CovNet": "covnet",
        **META,
        **STL,
    },
    "5a": {
        "Baseline": "baseline",
        "Baseline++": "baseline++",
        "GNN+FT": "gnn_ft",
        "BML": "bml",
        "FRN": "frn",
        "ProtoNet": "protonet",
        "Good-Embed": "good_embed",
        "ADM": "adm",
        "CovNet": "covnet",
        **META,
        **STL,
    },
    "5b": (
        others := {
            "ProtoNet": "protonet",
            "ADM": "adm",
            "CovNet": "covnet",
            "Baseline": "baseline",
            "Baseline++": "baseline++",
            "Good-Embed": "good_embed",
            **META,
            **STL,
        }
    ),
    "5c": others,
}


def on_the_page() -> dict[str, list[str]]:
    """The rows of the table in docs/methods.md: the name of a method to its cells."""
    start, end = page.PAGE.marks
    inside = page.PAGE.page.read_text(encoding="utf-8").partition(start)[2].partition(end)[0]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in inside.strip().splitlines()[2:]]
    return {row[0].strip("`"): row for row in rows}


def named_methods(content: object) -> Iterator[str]:
    """Every value of a key ``method``, at any depth."""
    if isinstance(content, dict):
        if "method" in content:
            yield content["method"]
        content = list(content.values())
    if isinstance(content, list):
        for part in content:
            yield from named_methods(part)


@pytest.mark.parametrize("table", PAPER)
def test_the_systems_of_the_papers_tables_are_methods(table: str) -> None:
    rows, known = on_the_page(), methods.names()
    for system, method in PAPER[table].items():
        assert method in known, system
        assert method in rows, system


def test_the_published_tables_name_methods() -> None:
    content = yaml.safe_load(files("deepbdc.report").joinpath("published.yaml").read_text(encoding="utf-8"))
    assert set(named_methods(content)) <= set(methods.names()) & on_the_page().keys()


@pytest.mark.parametrize("table", ["4a_miniimagenet", "4b_cub", "5a_cub", "5b_aircraft", "5c_cars"])
def test_the_published_rows_have_the_names_of_the_paper(table: str) -> None:
    assert {row.name: row.method for row in published()[table].rows} == PAPER[table.partition("_")[0]]


def test_the_page_says_which_methods_are_transductive_and_assume_balance() -> None:
    column = page.HEADER.index("transductive")
    found = {name: row[column] for name, row in on_the_page().items() if row[column] != "no"}
    balance = "**yes**, assumes balanced queries"
    assert found == {"ici": "**yes**", "maml": "**yes**", "laplacianshot": balance, "pt_map": balance, "tim": balance}


@pytest.mark.parametrize("row", method_rows(), ids=lambda row: row.name)
def test_every_method_is_described(row) -> None:  # type: ignore[no-untyped-def]
    assert row.title
    assert 10 < len(row.idea) < 100
    assert any(year in row.paper for year in map(str, range(2015, 2025))), row.paper
    assert {"glyphs", "cifar_fs"} <= set(row.data_sets)
    prose = description(row.name).partition("Options (")[0]
    assert ("transductive" if row.transductive else "inductive") in prose.lower()


def test_kept_results_are_shown_with_their_interval() -> None:
    assert page.kept("stl_deepbdc", "cifar_fs") == "64.32 ± 0.50 / 80.60 ± 0.36"
    assert page.kept("stl_deepbdc", "nowhere") == "–"


def test_the_command_lists_and_explains(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    main(["methods"])
    out = capsys.readouterr().out
    for name in methods.names():
        assert f"{name} " in out
    assert "maml † §" in out
    assert "tim †‡ " in out
    assert TRANSDUCTIVE in out
    assert ASSUMES_BALANCE in out
    main(["methods", "dn4"])
    out = capsys.readouterr().out
    assert "neighbours: k." in out
    assert "64.73 / 79.85 with 1 / 5 shots (ResNet-12, DeepBDC paper, its own rerun)" in out
    assert "glyphs/dn4" in out
    assert "Transductive: no" in out
    main(["methods", "ici"])
    assert "Transductive: yes\n" in capsys.readouterr().out
    main(["methods", "pt_map"])
    assert "Transductive: yes, and it assumes that all classes have equally many queries" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="did you mean 'dn4'"):
        main(["methods", "dn5"])
