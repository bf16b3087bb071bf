"""docs/architecture.md shows the real imports between rooms, and none goes upward."""

import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
sys.path.insert(0, str(DOCS))

import rooms  # noqa: E402


def test_the_page_shows_the_real_imports() -> None:
    page = rooms.PAGE.page.read_text(encoding="utf-8")
    assert rooms.PAGE.placed(rooms.describe(rooms.graph())) == page, "run python docs/rooms.py --write"


def test_no_room_imports_one_above_it() -> None:
    found = rooms.graph()
    below: set[str] = set()
    for layer in rooms.layers(found):  # raises for a cycle
        for room in layer:
            assert found[room] <= below
        below |= set(layer)
    assert "training" not in found["own_images"] | found["estimator"] | found["methods"] | found["runs"]
    assert "backbones" not in found["data"] | found["weight_files"]
    assert "statistic" not in found["classifiers"]


def test_a_cycle_is_found() -> None:
    with pytest.raises(ValueError, match="in a circle: a, b"):
        rooms.layers({"a": {"b"}, "b": {"a"}, "c": set()})


def test_every_room_is_described() -> None:
    described = rooms.PAGE.page.read_text(encoding="utf-8").partition(rooms.PAGE.marks[0])[0]
    for room in set(rooms.graph()) - {"helpers"}:
        assert f"`{room}.py`" in described or f"`{room}/`" in described, room
