"""The numbers of the paper as data."""

import copy
from typing import Any, get_args

import pytest

from deepbdc.classifiers import list_classifiers
from deepbdc.classifiers.prototype import PrototypeForm, Similarity
from deepbdc.errors import UserError
from deepbdc.methods.base import methods
from deepbdc.pooling.bdc import Observations
from deepbdc.recipes import list_recipes
from deepbdc.report.published import COLUMNS, IDENTITIES, on_miniimagenet, published, read_tables

# For each table: the rows that the paper has, and the numbers in each of them.
ROWS = {
    "1_measures": 5,
    "2a_dimension": 6,
    "2a_similarity": 3,
    "2b_dimension": 6,
    "2b_classifier": 3,
    "sec4.2_reduction": 2,
    "sec4.2_observations": 4,
    "3_counterparts": 6,
    "4a_miniimagenet": 19,
    "4a_tieredimagenet": 15,
    "4b_cub": 19,
    "sec4.3_fusion": 2,
    "sec4.3_resnet34": 4,
    "5a_cub": 11,
    "5b_aircraft": 8,
    "5c_cars": 8,
    "s1_hyper_parameters": 8,
    "s3-1_prototype": 3,
    "s3-2_miniimagenet": 8,
    "s3-2_cub": 8,
    "s3-3_features": 12,
    "s3-4_latency": 6,
    "s3-5_dimension": 13,
}
# Tables that print a dash in some row, with the number of cells that they have.
GAPS = {"2a_dimension": 23, "2b_dimension": 23, "4b_cub": 37, "s1_hyper_parameters": 70, "s3-4_latency": 23}


def test_every_table_is_there() -> None:
    tables = published()
    assert {name: len(table.rows) for name, table in tables.items() if not name.endswith("elsewhere")} == ROWS
    for name, table in tables.items():
        cells = sum(len(row.accuracies) + len(row.values) for row in table.rows)
        assert cells == GAPS.get(name, len(table.rows) * len(table.columns)), name


@pytest.mark.parametrize("name", published())
def test_rows_are_sound(name: str) -> None:
    table = published()[name]
    assert {row.method for row in table.rows} <= set(methods.names())
    identities = [(row.method, row.backbone, str(row.identity)) for row in table.rows]
    assert len(set(identities)) == len(identities)
    for row in table.rows:
        assert all(20 < mean < 100 for mean, _ in row.accuracies.values())
        assert all(0 < half < 2 for _, half in row.accuracies.values() if half is not None)
    assert table.data is None or any(recipe.startswith(f"{table.data}/") for recipe in list_recipes())


def test_options_have_our_values() -> None:
    allowed = {
        "similarity": set(get_args(Similarity)),
        "classifier": set(list_classifiers()),
        "observations": set(get_args(Observations)),
        "prototype": set(get_args(PrototypeForm)),
        "benchmarks": {recipe.partition("/")[0] for recipe in list_recipes()},
    }
    used = set()
    for table in published().values():
        for row in table.rows:
            for key in allowed.keys() & row.identity.keys():
                value = row.identity[key]
                used.add(key)
                assert set(value if isinstance(value, list) else [value]) <= allowed[key], row
    assert used == set(allowed)
    assert {key for table in published().values() for key in table.identified_by} == set(IDENTITIES)
    named = {column for table in published().values() for column in table.columns if isinstance(column, str)}
    assert named == set(COLUMNS)


def test_spot_values() -> None:
    tables = published()
    row = tables["2a_dimension"].row("meta_deepbdc", d=960)
    assert (row.accuracies, row.values) == (
        {1: (66.81, 0.44), 5: (83.68, 0.28)},
        {"parameters": 13.04, "latency": {1: 280, 5: 351}},
    )
    assert tables["2b_classifier"].row("stl_deepbdc", classifier="softmax").values["latency"] == {1: 1250, 5: 4374}
    assert tables["sec4.2_observations"].row("stl_deepbdc", observations="positions").as_text() == "63.95 / 79.45"
    assert tables["sec4.2_reduction"].row("meta_deepbdc", reduction=False).as_text() == "67.10 / 84.50"
    assert tables["3_counterparts"].row("deepemd").values["latency"] == {1: 457, 5: 12617}
    assert tables["4b_cub"].row("protonet", backbone="Conv4").as_text() == "64.42 / 81.82"
    assert tables["4b_cub"].row("mvt").accuracies == {5: (85.35, 0.55)}
    assert tables["4b_cub"].row("mvt").as_text() == "– / 85.35"
    assert tables["sec4.3_resnet34"].row("protonet").accuracies == {1: (80.58, None), 5: (90.11, 0.26)}
    assert tables["s3-1_prototype"].row("meta_deepbdc", prototype="mean_features").accuracies == {5: (82.36, None)}
    assert tables["s3-3_features"].row("good_embed", features=441).as_text() == "64.68 / 81.85"
    slow = tables["s3-4_latency"].row("deepemd")
    assert slow.values["training_latency"] == {1: 80000, 5: 1000000}
    assert slow.lower_bounds == ("training_latency",)


def test_the_paper_agrees_with_itself() -> None:
    """Numbers that the paper repeats: a slip of the pen in one of them would show."""
    tables = published()
    for method, table in (("meta_deepbdc", "2a_dimension"), ("stl_deepbdc", "2b_dimension")):
        points = [row for row in tables["s3-5_dimension"].rows if row.method == method]
        assert len(points) == 5
        for row in points:
            assert row.accuracies[5] == tables[table].row(method, d=row.identity["d"]).accuracies[5]
    for row in tables["s3-4_latency"].rows:
        twin = tables["3_counterparts"].row(row.method)
        assert row.values["latency"] == twin.values["latency"]
        assert row.as_text() == twin.as_text()
    for row in tables["3_counterparts"].rows:
        assert row.as_text() == tables["4a_miniimagenet"].row(row.method).as_text()
        assert row.rerun == tables["4a_miniimagenet"].row(row.method).rerun
    for row in tables["sec4.3_resnet34"].rows:
        assert row.as_text() == tables["s3-2_cub"].row(row.method, backbone="ResNet-34").as_text()
    for row in tables["s3-3_features"].rows:
        if row.identity["features"] == 100:
            assert row.as_text() == tables["s3-2_miniimagenet"].row(row.method, backbone="ResNet-12").as_text()


def test_a_row_that_is_not_unique_is_refused() -> None:
    with pytest.raises(UserError, match="Table 4b has 2 rows of 'protonet' with any values, not one"):
        published()["4b_cub"].row("protonet")
    with pytest.raises(UserError, match="has 0 rows"):
        published()["2a_dimension"].row("meta_deepbdc", d=100)


def test_the_row_on_miniimagenet() -> None:
    found = on_miniimagenet("dn4")
    assert found is not None
    assert found.rerun
    assert found.as_text() == "64.73 / 79.85"
    fused, elsewhere = on_miniimagenet("adm+dn4"), on_miniimagenet("r2d2")
    assert fused is not None
    assert fused.source == "DeepBDC paper Sec. 4.3"
    assert elsewhere is not None
    assert elsewhere.backbone == "Conv4"
    assert on_miniimagenet("ctx") is None


SMALL: dict[str, Any] = {
    "place": "Table 9",
    "title": "An example",
    "data": "miniimagenet",
    "backbone": "ResNet-12",
    "identified_by": ["d"],
    "columns": [1, "latency"],
    "rows": [{"method": "protonet", "name": "ProtoNet", "d": 64, 1: [60.0, 0.4], "latency": {1: 100}}],
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"colums": []}, "has 'colums', which is not known: did you mean 'columns'"),
        ({"columns": [1, "latenci"]}, "did you mean 'latency'"),
        ({"identified_by": ["width"]}, "identified_by has 'width'"),
        ({"rows": [{"method": "protonet", "name": "x", "d": 1, "5": [60.0]}]}, "row 1 has '5', which is not known"),
        ({"rows": [{"method": "protonet", "name": "x", 1: [60.0]}]}, "row 1 lacks d"),
        ({"rows": [{"method": "protonet", "name": "x", "d": 1}]}, "has no value in any of the columns 1, latency"),
        ({"rows": [{"method": "protonet", "name": "x", "d": 1, 1: 60.0}]}, r"must be \[mean\] or \[mean, half-width\]"),
        ({"rows": [{"method": "protonet", "name": "x", "d": 1, 1: [60.0, -0.1]}]}, "must be percent"),
        ({"rows": [{"method": "protonet", "name": "x", "d": 1, "latency": 5}]}, "by shots"),
        ({"rows": SMALL["rows"] * 2}, "row 2 repeats row 1"),
        ({"rows": [SMALL["rows"][0] | {"lower_bounds": ["speed"]}]}, "lower_bounds has 'speed'"),
    ],
)
def test_mistakes_in_the_file_are_errors(change: dict[str, Any], words: str) -> None:
    assert read_tables({"9": copy.deepcopy(SMALL)})["9"].row("protonet", d=64).values == {"latency": {1: 100}}
    with pytest.raises(UserError, match=words):
        read_tables({"9": SMALL | change})
