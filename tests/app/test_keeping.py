"""Work is kept on disk, comes back after a restart of the server, can be undone, and is deleted when asked."""

import time
from pathlib import Path
from typing import Any

import pytest

from deepbdc import FewShotClassifier
from deepbdc.app.history import History, Step
from deepbdc.app.limits import AppLimits
from deepbdc.app.pictures import NewPicture
from deepbdc.app.storage import Shelf, Storage, data_folder
from deepbdc.app.visitor import Visitor
from deepbdc.web.refusals import Refused
from tests.app.conftest import Visit, Visiting
from tests.app.drawing import picture

MUCH = 2**30


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "work", MUCH)


def shown(visit: Visit) -> dict[str, Any]:
    """The state without what is different after a restart of the server."""
    state = visit.state()
    return {name: state[name] for name in ("classes", "to_classify", "learnt", "has_results", "limits", "kept")}


def again(visiting: Visiting, visit: Visit, storage: Storage) -> Visit:
    """The same browser at a new server."""
    return visiting(storage=storage, cookies=dict(visit.client.cookies))


def test_everything_comes_back_after_a_restart(visiting: Visiting, storage: Storage) -> None:
    visit = visiting(storage=storage)
    assert not storage.root.exists(), "nothing is kept of a visitor who did nothing"
    disc, _ = visit.learn()
    ids = [visit.upload(picture("disc", seed), f"{seed}.png", folder="a/b").json()["added"] for seed in (5, 6, 7)]
    visit.client.patch(f"/api/pictures/{ids[0]}", json={"class_id": disc})
    visit.client.post("/api/verdicts", json={"pictures": ids[1:2], "verdict": "none"})
    before = shown(visit)
    assert [entry["name"] for entry in before["to_classify"]] == ["a/b/6.png", "a/b/7.png"]
    later = again(visiting, visit, storage)
    assert shown(later) == before
    assert later.client.get(f"/api/pictures/{ids[2]}/thumbnail").status_code == 200
    later.upload(picture("stripes", 9), "another.png")
    assert len(shown(again(visiting, visit, storage))["to_classify"]) == 3


def test_what_is_kept_of_one_visitor_is_never_shown_to_another(visiting: Visiting, storage: Storage) -> None:
    one = visiting(storage=storage)
    one.learn()
    (folder,) = storage.root.iterdir()
    assert (folder.stat().st_mode & 0o077) == 0, "other users of this computer cannot read it"
    name = next(iter(dict(one.client.cookies)))
    for made_up in ("", folder.name, f"../{folder.name}", "x" * 5000, str(folder)):
        other = visiting(storage=storage, cookies={name: made_up})
        assert other.state()["classes"] == []
    assert folder.name not in str(dict(one.client.cookies)), "the name of the folder does not tell the id"


def test_pictures_of_another_network_are_embedded_again(visiting: Visiting, storage: Storage) -> None:
    visit = visiting(storage=storage)
    visit.learn()
    added = visit.upload(picture("disc", 5), "asked.png").json()["added"]
    before = shown(visit)["to_classify"][0]["result"]
    (folder,) = storage.root.iterdir()
    shelf = Shelf(folder)
    kept = shelf.image(added)
    (other,) = FewShotClassifier(size=96).embed([picture("stripes", 5)])
    assert kept is not None
    assert kept.network != other.network
    shelf.keep_picture(added, other, shelf.original(added))
    later = again(visiting, visit, storage)
    assert shown(later)["to_classify"][0]["result"] == before


def test_damaged_files_cost_only_their_picture(visiting: Visiting, storage: Storage) -> None:
    visit = visiting(storage=storage)
    visit.learn()
    good, bad, gone = (visit.upload(picture("disc", seed), f"{seed}.png").json()["added"] for seed in (5, 6, 7))
    (folder,) = storage.root.iterdir()
    (folder / f"{bad}.safetensors").write_bytes(b"damaged")
    (folder / f"{gone}.safetensors").unlink()
    later = again(visiting, visit, storage)
    assert [entry["id"] for entry in later.state()["to_classify"]] == [good]
    (folder / "work.json").write_bytes(b"{")
    assert again(visiting, visit, storage).state()["classes"] == []


def test_everything_is_deleted_for_good_when_asked(visiting: Visiting, storage: Storage) -> None:
    visit = visiting(storage=storage)
    visit.learn()
    visit.client.delete("/api/state")
    assert visit.state()["undo"] == "starting over"
    assert list(storage.root.glob("*/*.safetensors")), "starting over can be undone"
    state = visit.client.delete("/api/work").json()
    assert (state["classes"], state["undo"]) == ([], None)
    assert not list(storage.root.iterdir())
    assert visit.client.post("/api/undo").status_code == 409
    visit.learn()
    assert len(shown(again(visiting, visit, storage))["classes"]) == 2, "one can go on"


def test_the_files_of_removed_pictures_are_deleted_after_a_restart(visiting: Visiting, storage: Storage) -> None:
    visit = visiting(storage=storage)
    visit.learn()
    first = visit.state()["classes"][0]["pictures"][0]["id"]
    visit.client.delete(f"/api/pictures/{first}")
    assert len(list(storage.root.glob("*/*.safetensors"))) == 4
    again(visiting, visit, storage)
    assert len(list(storage.root.glob("*/*.safetensors"))) == 3


def test_work_that_cannot_be_saved_is_refused_and_changes_nothing(
    visiting: Visiting, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit = visiting(storage=storage)
    visit.learn()
    before = shown(visit)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Shelf, "write", full)
    answer = visit.client.post("/api/classes", json={"name": "another"})
    assert answer.status_code == 507
    assert "No space left on device" in answer.json()["error"]
    assert visit.upload(picture("disc", 9)).status_code == 507
    assert shown(visit) == before


def test_the_files_of_all_visitors_are_limited(visiting: Visiting, tmp_path: Path) -> None:
    visit = visiting(storage=Storage(tmp_path, 200_000))
    disc = visit.add_class("disc")
    statuses = [visit.upload(picture("disc", seed), class_id=disc).status_code for seed in range(4)]
    assert statuses == [200, 200, 507, 507]
    assert visit.client.post("/api/example").status_code == 507


def test_old_work_is_deleted(storage: Storage) -> None:
    import os

    for name, days in {"old": 400, "new": 1}.items():
        shelf = storage.shelf(name)
        shelf.folder.mkdir(parents=True)
        shelf.write({})
        for path in (shelf.folder / "work.json", shelf.folder):
            os.utime(path, (time.time() - days * 86400,) * 2)
    storage.forget_old(365)
    assert [path.name for path in storage.root.iterdir()] == [storage.shelf("new").folder.name]


def test_work_that_does_not_last_is_deleted_with_its_visitor(visiting: Visiting, tmp_path: Path) -> None:
    storage = Storage(tmp_path, MUCH, lasting=False)
    visit = visiting(limits=AppLimits(visitors=1), storage=storage)
    visit.learn()
    assert visit.state()["kept"] == {"days": 0, "folder": None}
    assert list(tmp_path.iterdir())
    visiting(visit)
    assert not list(tmp_path.iterdir())
    cookie = visiting(storage=storage).another_client().get("/api/state").headers["set-cookie"]
    assert "Max-Age" not in cookie, "the browser forgets the id when it is closed"


def test_the_cookie_lasts_as_long_as_the_work(visiting: Visiting, storage: Storage) -> None:
    visit = visiting(storage=storage)
    answer = visit.another_client().get("/api/state")
    assert f"Max-Age={365 * 86400}" in answer.headers["set-cookie"]
    assert answer.json()["kept"]["days"] == 365
    assert answer.json()["kept"]["folder"].startswith(str(storage.root))


def test_examples_of_the_server_are_renewed_when_work_comes_back(template: FewShotClassifier, storage: Storage) -> None:
    images = template.embed([picture("disc", 1), picture("stripes", 1), picture("cross", 1)])
    pairs = list(zip(images, ["disc", "stripes", "cross"], strict=True))
    visitor = Visitor(template, AppLimits(), pairs[:2], storage.shelf("someone"))
    visitor.add_picture(NewPicture(images[2]), next(iter(visitor.classes)))
    later = Visitor(template, AppLimits(), pairs[1:], storage.shelf("someone"))
    assert later.restore(lambda image, _: image)
    names = [later.classes[str(entry.class_id)] for entry in later.pictures.values()]
    assert names == ["stripes", "disc", "cross"], "the first one is gone, the last one is new, and the own one is there"


def test_the_same_upload_twice_gives_one_picture(visit: Visit) -> None:
    for _ in range(2):
        answer = visit.upload(picture("disc", 1), picture_id="0123456789abcdef")
        assert answer.json() == {"added": "0123456789abcdef"}
    assert len(visit.state()["to_classify"]) == 1
    assert visit.upload(picture("disc", 1), picture_id="../../etc/passwd").status_code == 422


# Undo


def test_every_action_can_be_undone(visit: Visit) -> None:
    disc, stripes = visit.learn()
    asked = visit.upload(picture("disc", 5), "asked.png").json()["added"]
    client = visit.client
    for action, text in (
        (lambda: client.patch(f"/api/pictures/{asked}", json={"class_id": disc}), "moving asked.png to disc"),
        (lambda: client.delete(f"/api/pictures/{asked}"), "removing asked.png"),
        (lambda: client.delete(f"/api/classes/{disc}"), "removing disc"),
        (lambda: client.patch(f"/api/classes/{stripes}", json={"name": "lines"}), "renaming stripes"),
        (lambda: client.post("/api/classes", json={"name": "new"}), "adding new"),
        (lambda: client.post("/api/verdicts", json={"pictures": [asked], "verdict": "none"}), "checking asked.png"),
        (lambda: client.post("/api/example"), "replacing everything"),
        (lambda: client.delete("/api/state"), "starting over"),
    ):
        before = shown(visit)
        assert action().status_code == 200
        assert visit.state()["undo"] == text
        assert shown(visit) != before
        assert client.post("/api/undo").status_code == 200
        assert shown(visit) == before


def test_pictures_that_were_added_together_are_removed_together(visit: Visit) -> None:
    visit.add_class("disc")
    for seed in range(3):
        visit.upload(picture("disc", seed), batch="one")
    visit.upload(picture("disc", 4), batch="two")
    counts = [len(visit.client.post("/api/undo").json()["to_classify"]) for _ in range(2)]
    assert counts == [3, 0]


def test_the_history_is_bounded() -> None:
    history: History[int] = History(most_steps=3, most_pictures=2)
    for number in range(5):
        history.add(Step(str(number), {}, {"kept": 0}), {"kept": 0})
    assert [history.pop().text for _ in range(3)] == ["4", "3", "2"]
    assert history.last is None
    history.add(Step("few", {}, {"a": 1, "b": 2}), {})
    assert history.last == "few"
    history.add(Step("many", {}, {"c": 1, "d": 2, "e": 3}), {})
    assert history.last is None, "three removed pictures are more than two"


# Verdicts


def test_verdicts_are_answers_and_nothing_is_learnt_of_them(visit: Visit) -> None:
    disc, stripes = visit.learn()
    ids = [visit.upload(picture(kind, 5), f"{kind}.png").json()["added"] for kind in ("disc", "stripes", "cross")]
    lesson = visit.state()["lesson"]
    visit.client.post("/api/verdicts", json={"pictures": ids[:2], "verdict": "confirm"})
    state = visit.client.post("/api/verdicts", json={"pictures": ids[2:], "verdict": "none"}).json()
    assert [entry["verdict"] for entry in state["to_classify"]] == [disc, stripes, "none"]
    assert state["lesson"] == lesson
    moved = visit.client.patch(f"/api/pictures/{ids[0]}", json={"class_id": disc}).json()
    assert len(moved["classes"][0]["pictures"]) == 3
    state = visit.client.post("/api/verdicts", json={"pictures": ids[:1], "verdict": None}).json()
    assert len(state["classes"][0]["pictures"]) == 2, "an example is taken out of its class"
    assert [entry["verdict"] for entry in state["to_classify"]] == [stripes, "none", None]
    state = visit.client.delete(f"/api/classes/{stripes}").json()
    assert [entry["verdict"] for entry in state["to_classify"]] == [None, "none", None]
    for body in ({"pictures": ids, "verdict": "no such class"}, {"pictures": ["no such"], "verdict": "none"}):
        assert visit.client.post("/api/verdicts", json=body).status_code == 404


def test_where_programs_keep_their_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", "somewhere")
    assert data_folder() == Path("somewhere/deepbdc/page")
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "local")
    assert data_folder() == Path("local/deepbdc/page")


def test_a_full_disk_is_told(template: FewShotClassifier, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    visitor = Visitor(template, AppLimits(), shelf=Shelf(tmp_path / "file" / "below"))
    with pytest.raises(Refused, match="could not be saved"):
        visitor.add_class("disc")
    assert visitor.classes == {}
