"""The requests of "Label these next" and "Check my examples", and the familiarity of the answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from deepbdc.app.limits import AppLimits
from deepbdc.app.storage import Storage
from deepbdc.own_images.rejection import USUAL_RATE
from tests.app.conftest import Visit, Visiting
from tests.app.drawing import picture

KINDS = ("wrong_labels", "twins", "outliers", "alike", "few")


def ask(visit: Visit, kinds: Sequence[str], first: int = 20) -> list[str]:
    return [
        str(visit.upload(picture(kind, seed), f"{kind} {seed}.png").json()["added"])
        for seed, kind in enumerate(kinds, first)
    ]


def suggestions(visit: Visit, *beside: str) -> list[str]:
    answer = visit.client.get("/api/suggestions", params={"beside": list(beside)})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["lesson"] == visit.state()["lesson"]
    return [str(picture_id) for picture_id in found["pictures"]]


def test_the_pictures_to_label_next(visit: Visit) -> None:
    assert visit.client.get("/api/suggestions").status_code == 409, "there are no examples yet"
    disc, _ = visit.learn()
    asked = ask(visit, ["disc", "stripes"] * 4)
    cross = ask(visit, ["cross"], first=1)[0]
    first = suggestions(visit)
    assert len(first) == len(set(first)) == 6
    assert set(first) <= {*asked, cross}
    assert first[0] == cross, "no example is like it"

    # Pictures without a label stay in their places; labelled ones leave, whether they are examples or only checked.
    visit.client.patch(f"/api/pictures/{first[1]}", json={"class_id": disc})
    visit.client.post("/api/verdicts", json={"pictures": [first[3]], "verdict": "none"})
    after = suggestions(visit, *first)
    assert after[:4] == [first[0], first[2], first[4], first[5]]
    assert len(after) == 6
    assert not {first[1], first[3]} & set(after)
    assert suggestions(visit, "no such picture", after[0], after[0])[0] == after[0]
    assert visit.client.get("/api/suggestions", params={"beside": ["x"] * 7}).status_code == 422

    # When only a few are left, all of them are suggested, and then none.
    left = [entry["id"] for entry in visit.state()["to_classify"] if entry["verdict"] is None]
    visit.client.post("/api/verdicts", json={"pictures": left[2:], "verdict": "confirm"})
    assert set(suggestions(visit)) == set(left[:2])
    visit.client.post("/api/verdicts", json={"pictures": left[:2], "verdict": "confirm"})
    assert suggestions(visit) == []


def findings(visit: Visit) -> dict[str, Any]:
    answer = visit.client.get("/api/findings")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def teach(visit: Visit) -> tuple[str, str, str]:
    """Two classes of four pictures, and a disc that has the wrong label. Return the ids of all three."""
    disc = visit.add_class("disc", *(picture("disc", seed) for seed in range(4)))
    cross = visit.add_class("cross", *(picture("cross", seed) for seed in range(4)))
    wrong = visit.upload(picture("disc", 11), "wrong.png", cross).json()["added"]
    return disc, cross, str(wrong)


def test_a_wrong_label_is_found_and_moved_and_good_examples_are_praised(visit: Visit) -> None:
    assert visit.client.get("/api/findings").status_code == 409, "there are no examples yet"
    disc, cross, wrong = teach(visit)
    (found,) = findings(visit)["wrong_labels"]
    assert (found["pictures"], found["class"], found["suggestion"]) == ([wrong], cross, disc)
    assert 0.85 < found["sureness"] <= 1
    visit.client.patch(f"/api/pictures/{wrong}", json={"class_id": disc})
    for unusual in findings(visit)["outliers"]:
        visit.client.post("/api/kept", json={"pictures": unusual["pictures"], "finding": "outlier"})
    good = findings(visit)
    assert good["examples"] == 9
    assert {kind: good[kind] for kind in KINDS} == {kind: [] for kind in KINDS}
    while visit.state()["undo"].startswith("keeping"):
        _undone(visit)
    assert [one["id"] for one in _undone(visit)["wrong_labels"]] == [found["id"]]


def _undone(visit: Visit) -> dict[str, Any]:
    assert visit.client.post("/api/undo").status_code == 200
    return findings(visit)


def test_copies_and_small_classes(visit: Visit) -> None:
    disc, cross, _ = teach(visit)
    one = visit.add_class("stripes", picture("stripes", 1))
    first = visit.state()["classes"][0]["pictures"][0]["id"]
    copies = [visit.upload(picture("disc", 0), f"copy {number}.png", disc).json()["added"] for number in range(2)]
    found = findings(visit)
    assert [(entry["class"], entry["examples"]) for entry in found["few"]] == [(one, 1)]
    (twins,) = found["twins"]
    assert twins["pictures"] == [first, *copies]
    assert (twins["identical"], twins["same_label"]) == (True, True)

    # Removals with the same batch are undone together.
    for picture_id in copies:
        assert visit.client.delete(f"/api/pictures/{picture_id}", params={"batch": "both"}).status_code == 200
    assert findings(visit)["twins"] == []
    assert len(_undone(visit)["twins"][0]["pictures"]) == 3
    other = visit.upload(picture("disc", 1), "other.png", cross).json()["added"]
    contradiction, again = findings(visit)["twins"]
    assert (contradiction["pictures"][1], contradiction["same_label"]) == (other, False)
    assert again["id"] == twins["id"]


def test_what_is_kept_is_not_named_again(visiting: Visiting, tmp_path: Path) -> None:
    storage = Storage(tmp_path, AppLimits().stored_bytes)
    visit = visiting(storage=storage)
    disc, _, wrong = teach(visit)
    lesson = visit.state()["lesson"]
    kept = visit.client.post("/api/kept", json={"pictures": [wrong], "finding": "label"}).json()
    assert (kept["undo"], kept["lesson"]) == ("keeping wrong.png", lesson), "nothing is learnt again"
    assert findings(visit)["wrong_labels"] == []
    assert len(_undone(visit)["wrong_labels"]) == 1
    visit.client.post("/api/kept", json={"pictures": [wrong], "finding": "label"})

    # It is remembered after a restart, until the picture is moved to another class.
    later = visiting(storage=storage, cookies=visit.client.cookies)
    assert findings(later)["wrong_labels"] == []
    cross = later.state()["classes"][1]["id"]
    later.client.patch(f"/api/pictures/{wrong}", json={"class_id": disc})
    later.client.patch(f"/api/pictures/{wrong}", json={"class_id": cross})
    assert len(findings(later)["wrong_labels"]) == 1
    for body, status in (({"pictures": [wrong], "finding": "x"}, 422), ({"pictures": ["x"], "finding": "label"}, 404)):
        assert later.client.post("/api/kept", json=body).status_code == status


def test_familiarity_agrees_with_none_of_these(visit: Visit) -> None:
    visit.learn()
    ask(visit, ["disc", "stripes", "cross", "cross"])
    state = visit.state()
    assert state["unfamiliar"] == USUAL_RATE
    results = [entry["result"] for entry in state["to_classify"]]
    assert {result["rejected"] for result in results} == {True, False}
    for result in results:
        assert result["rejected"] == (result["familiarity"] < state["unfamiliar"])
    assert results[0]["familiarity"] == pytest.approx(float(_saved(visit)[0]["familiarity"]), abs=1e-6)


def _saved(visit: Visit) -> list[dict[str, Any]]:
    return list(visit.client.get("/api/results.json").json()["results"])
