"""The server with the real classifier. The tests send the requests that the page sends."""

import csv
import io
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from PIL import Image

from deepbdc import FewShotClassifier, weight_files
from deepbdc.app.limits import AppLimits
from deepbdc.errors import UserError
from tests.app.conftest import Visit, Visiting
from tests.app.drawing import picture


def labels(state: dict) -> list[str]:
    names = {entry["id"]: entry["name"] for entry in state["classes"]}
    results = [entry["result"] for entry in state["to_classify"]]
    return ["none of these" if result["rejected"] else names[result["class"]] for result in results]


def test_learns_answers_and_is_corrected(visit: Visit) -> None:
    disc, stripes = visit.learn()
    for seed in (7, 8):
        assert visit.upload(picture("stripes", seed), f"s{seed}.png").status_code == 200
    assert visit.upload(picture("cross", 1), "cross.png").status_code == 200
    state = visit.state()
    assert [len(entry["pictures"]) for entry in state["classes"]] == [2, 2]
    assert labels(state)[:2] == ["stripes", "stripes"]
    first = state["to_classify"][0]["result"]
    assert [entry["class"] for entry in first["probabilities"]] == [stripes, disc]
    assert sum(entry["probability"] for entry in first["probabilities"]) == pytest.approx(1)
    assert first["probabilities"][0]["probability"] == first["probability"] > 0.5

    cross = visit.add_class("cross")
    moved = visit.client.patch(f"/api/pictures/{state['to_classify'][2]['id']}", json={"class_id": cross}).json()
    assert [len(entry["pictures"]) for entry in moved["classes"]] == [2, 2, 1]
    assert moved["lesson"] > state["lesson"]
    visit.upload(picture("cross", 2), "another.png")
    assert labels(visit.state()) == ["stripes", "stripes", "cross"]


def test_without_examples_there_is_no_answer_and_with_one_class_there_is(visit: Visit) -> None:
    visit.upload(picture("disc", 1))
    assert visit.state()["to_classify"][0]["result"] is None
    assert visit.client.get("/api/classifier").status_code == 409
    visit.add_class("disc", picture("disc", 2), picture("disc", 3))
    visit.upload(picture("stripes", 1))
    state = visit.state()
    assert [len(entry["result"]["probabilities"]) for entry in state["to_classify"]] == [1, 1]
    assert state["to_classify"][1]["result"]["rejected"]


def test_classes_are_renamed_and_removed(visit: Visit) -> None:
    disc, stripes = visit.learn()
    visit.upload(picture("disc", 5), "asked.png")
    (asked,) = visit.state()["to_classify"]
    visit.client.patch(f"/api/pictures/{asked['id']}", json={"class_id": disc})
    renamed = visit.client.patch(f"/api/classes/{stripes}", json={"name": "  blue \u202e lines\n"}).json()
    assert renamed["classes"][1]["name"] == "blue lines"
    for name, status in {"DISC": 409, "none of these": 400, " ": 400, "x" * 61: 400}.items():
        answer = visit.client.patch(f"/api/classes/{stripes}", json={"name": name})
        assert answer.status_code == status, answer.text
        assert visit.client.post("/api/classes", json={"name": name}).status_code == status
    state = visit.client.delete(f"/api/classes/{disc}").json()
    assert [entry["name"] for entry in state["classes"]] == ["blue lines"]
    assert [entry["id"] for entry in state["to_classify"]] == [asked["id"]], "it is to be classified again"
    assert visit.client.delete(f"/api/classes/{disc}").status_code == 404


def test_thumbnail_heat_map_and_nearest_examples(visit: Visit) -> None:
    visit.learn()
    added = visit.upload(picture("disc", 9, side=300)).json()["added"]
    thumbnail = visit.client.get(f"/api/pictures/{added}/thumbnail")
    assert Image.open(io.BytesIO(thumbnail.content)).format == "JPEG"
    heat = Image.open(io.BytesIO(visit.client.get(f"/api/pictures/{added}/heat").content))
    plain = Image.open(io.BytesIO(thumbnail.content))
    assert heat.size == plain.size
    assert np.abs(np.asarray(heat.convert("RGB"), float) - np.asarray(plain, float)).max() > 20
    nearest = visit.client.get(f"/api/pictures/{added}/nearest").json()
    similarities = [entry["similarity"] for entry in nearest]
    assert similarities == sorted(similarities, reverse=True)
    examples = {entry["id"] for entry in visit.state()["classes"][0]["pictures"]}
    assert {entry["id"] for entry in nearest[:2]} == examples
    assert nearest[0]["label"] == "disc"


def test_pictures_are_removed_one_by_one_and_all_at_once(visit: Visit) -> None:
    visit.learn()
    first = visit.state()["classes"][0]["pictures"][0]["id"]
    state = visit.client.delete(f"/api/pictures/{first}").json()
    assert len(state["classes"][0]["pictures"]) == 1
    assert visit.client.get(f"/api/pictures/{first}/thumbnail").status_code == 404
    empty = visit.client.delete("/api/state").json()
    assert (empty["classes"], empty["to_classify"], empty["learnt"]) == ([], [], False)


def test_the_example_is_recognised(visit: Visit) -> None:
    visit.add_class("mine")
    state = visit.client.post("/api/example").json()
    assert [entry["name"] for entry in state["classes"]] == ["apple", "banana", "grapes"]
    fruit = ["apple", "banana", "grapes"]
    assert labels(state) == [*fruit, "apple", "none of these", "banana", "grapes"]
    assert labels(visit.client.post("/api/example").json()) == labels(state)


# Files


def half_a_jpeg() -> bytes:
    content = picture("disc", 1, side=200, file_format="JPEG")
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"this is text",
        half_a_jpeg(),
        picture("disc", 1)[:60],
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
    ],
    ids=["empty", "text", "half a JPEG", "half a PNG", "EPS", "SVG"],
)
def test_an_unreadable_file_is_named_and_the_others_stay(visit: Visit, content: bytes) -> None:
    assert visit.upload(picture("disc", 1)).status_code == 200
    answer = visit.upload(content, "C:\\photos\\../../bröken.jpg")
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("bröken.jpg: not a readable image")
    assert "object at" not in answer.text
    assert len(visit.state()["to_classify"]) == 1


def test_limits(visiting: Visiting) -> None:
    visit = visiting(limits=AppLimits(pictures=2, classes=1, file_bytes=5000, pixels=96 * 96, message_bytes=300))
    class_id = visit.add_class("disc", picture("disc", 1))
    assert "1 classes already" in visit.client.post("/api/classes", json={"name": "b"}).json()["error"]
    many_pixels = visit.upload(picture("disc", 1, side=97), "wide.png")
    assert many_pixels.status_code == 422
    assert "97×97 pixels" in many_pixels.json()["error"]
    assert visit.upload(b"\0" * 5001).status_code == 413
    assert visit.client.post("/api/classes", json={"name": "x" * 400}).status_code == 413
    assert visit.upload(picture("disc", 2), class_id=class_id).status_code == 200
    full = visit.upload(picture("disc", 3))
    assert (full.status_code, full.json()["error"][:27]) == (409, "There are 2 pictures alread")
    assert visit.client.post("/api/example").status_code == 413
    assert len(visit.state()["classes"][0]["pictures"]) == 2, "the pictures from before are still there"


def test_the_limit_holds_for_a_body_without_content_length(visiting: Visiting) -> None:
    visit = visiting(limits=AppLimits(file_bytes=5000))
    answer = visit.upload(b"\0" * 1000 for _ in range(6))
    assert answer.status_code == 413
    assert "larger than 5 KB" in answer.json()["error"]


# Saved results and classifiers


def test_results_as_files_are_defused_for_spreadsheets(visit: Visit) -> None:
    formula = visit.add_class("=1+1", picture("disc", 1))
    visit.add_class("stripes", picture("stripes", 1))
    visit.upload(picture("stripes", 2), '@SUM(A1), "x".png')
    visit.upload(picture("disc", 2), "-cmd.png")
    state = visit.state()
    visit.client.patch(f"/api/pictures/{state['to_classify'][1]['id']}", json={"class_id": formula})
    answer = visit.client.get("/api/results.csv")
    assert "attachment" in answer.headers["content-disposition"]
    assert answer.content.startswith(b"\xef\xbb\xbf"), "Excel needs a byte order mark"
    first, second = csv.DictReader(io.StringIO(answer.content.decode("utf-8-sig")))
    assert (first["file"], first["label"], first["answered_by"]) == ('\'@SUM(A1), "x".png', "stripes", "classifier")
    assert float(first["probability"]) == float(first["probability of stripes"]) > 0.5
    assert (second["file"], second["label"], second["answered_by"]) == ("'-cmd.png", "'=1+1", "person")
    assert second["probability"] == second["probability of stripes"] == ""
    as_json = json.loads(visit.client.get("/api/results.json").text)
    assert as_json["classes"] == ["=1+1", "stripes"]
    assert [entry["label"] for entry in as_json["results"]] == ["stripes", "=1+1"]
    assert set(as_json["results"][0]["probabilities"]) == {"=1+1", "stripes"}


def test_the_classifier_as_onnx(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    visit.learn()
    monkeypatch.setattr(FewShotClassifier, "to_onnx", lambda self, path: Path(path).write_text(str(self.classes_)))
    answer = visit.client.get("/api/classifier.onnx")
    assert (answer.text, answer.headers["content-disposition"]) == (
        "['disc' 'stripes']",
        'attachment; filename="classifier.onnx"',
    )

    def missing(*_: object) -> None:
        raise UserError("onnx is not installed: pip install 'deepbdc[onnx]'")

    monkeypatch.setattr(FewShotClassifier, "to_onnx", missing)
    answer = visit.client.get("/api/classifier.onnx")
    assert (answer.status_code, answer.json()["error"][:21]) == (400, "onnx is not installed")


def test_results_as_a_zip_and_for_label_studio(visit: Visit) -> None:
    disc, _ = visit.learn()
    names = ["a.png", "A.PNG", "con.png", "unsure.png"]
    ids = [visit.upload(picture("disc", seed), name).json()["added"] for seed, name in enumerate(names, 5)]
    visit.client.patch(f"/api/pictures/{ids[1]}", json={"class_id": disc})
    visit.client.post("/api/verdicts", json={"pictures": ids[3:], "verdict": "none"})
    with ZipFile(io.BytesIO(visit.client.get("/api/results.zip").content)) as file:
        places = set(file.namelist()) - {"results.csv"}
        assert places == {"disc/a.png", "disc/A (2).PNG", "disc/con.png_", "none of these/unsure.png"}
        assert file.read("none of these/unsure.png") != b""
        rows = list(csv.DictReader(io.StringIO(file.read("results.csv").decode("utf-8-sig"))))
    assert {row["place"] for row in rows} == places
    assert {row["file"]: row["answered_by"] for row in rows} == {
        "a.png": "classifier",
        "A.PNG": "person",
        "con.png": "classifier",
        "unsure.png": "person",
    }
    tasks = {task["data"]["file"]: task for task in visit.client.get("/api/label-studio.json").json()}
    assert tasks["a.png"]["data"]["image"] == "/data/local-files/?d=disc/a.png"
    assert "annotations" not in tasks["a.png"]
    guess = tasks["a.png"]["predictions"][0]
    assert guess["result"][0]["value"] == {"choices": ["disc"]}
    assert 0.5 < guess["score"] <= 1
    assert tasks["unsure.png"]["annotations"][0]["result"][0]["value"] == {"choices": ["none of these"]}
    assert "predictions" not in tasks["A.PNG"]


def test_the_accuracy_to_expect_comes_from_held_out_examples(visit: Visit) -> None:
    empty = visit.client.get("/api/expected").json()
    assert (empty["tested"], empty["low"], empty["high"]) == (0, 0, 1)
    disc = visit.add_class("disc", *(picture("disc", seed) for seed in range(3)))
    visit.upload(picture("disc", 0), "copy.png", disc)
    stripes = visit.add_class("stripes", picture("stripes", 1), picture("stripes", 2), picture("disc", 9))
    visit.add_class("single", picture("cross", 1))
    found = visit.client.get("/api/expected").json()
    assert found["tested"] == 6, "neither the copy nor the only picture of a class is held out"
    assert found["classes"][disc] == {"tested": 3, "right": 3}
    assert found["classes"][stripes]["right"] < 3, "a disc among the stripes is not recognised as stripes"
    assert found["low"] < found["right"] / 6 < found["high"]


def test_the_classifier_is_saved_and_opened_again(visit: Visit, visiting: Visiting) -> None:
    visit.learn()
    content = visit.client.get("/api/classifier").content
    loaded = FewShotClassifier.load(content)
    assert loaded.predict([picture("stripes", 5), picture("disc", 5)]).tolist() == ["stripes", "disc"]
    other = visiting()
    opened = other.client.post("/api/classifier", content=content)
    assert opened.status_code == 200, opened.text
    assert [entry["name"] for entry in opened.json()["classes"]] == ["disc", "stripes"]
    assert [entry["pictures"][0]["name"] for entry in opened.json()["classes"]] == ["disc 0.png", "stripes 0.png"]
    other.upload(picture("disc", 6))
    assert labels(other.state()) == ["disc"]


def test_foreign_classifiers_are_refused_before_their_network_is_built(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit.learn()
    tensors, header = weight_files.from_bytes(visit.client.get("/api/classifier").content, Path("x"))
    tensors = {name: tensors[name] for name in ("features", "thumbnails")}
    huge = {**header, "embedding": {**header["embedding"], "name": "timm/vit_giant_patch14_224"}}
    large = {**tensors, "features": torch.zeros(4, 320, 50, 50)}
    many = {**header, "labels": [f"class {number}" for number in range(300)]}
    built: list[object] = []
    monkeypatch.setattr(FewShotClassifier, "load", built.append)
    for parts, text in (
        (weight_files.as_bytes(tensors, huge), "another network"),
        (weight_files.as_bytes(large, header), "another network"),
        (weight_files.as_bytes(tensors, many), "more than 200 pictures"),
        (b"PK\3\4 no such thing", "not a classifier that was saved here"),
    ):
        answer = visit.client.post("/api/classifier", content=parts)
        assert answer.status_code in (413, 422)
        assert text in answer.json()["error"]
    assert not built
    assert len(visit.state()["classes"]) == 2


# Several visitors


def test_visitors_do_not_see_each_other(visiting: Visiting) -> None:
    one = visiting()
    other = visiting(one)
    class_id = one.add_class("disc", picture("disc", 1))
    picture_id = one.state()["classes"][0]["pictures"][0]["id"]
    assert other.state()["classes"] == []
    for path in ("thumbnail", "heat", "nearest"):
        assert one.client.get(f"/api/pictures/{picture_id}/{path}").status_code == 200
        assert other.client.get(f"/api/pictures/{picture_id}/{path}").status_code == 404
    assert other.client.delete(f"/api/pictures/{picture_id}").status_code == 404
    assert other.client.delete(f"/api/classes/{class_id}").status_code == 404
    assert other.upload(picture("disc", 2), class_id=class_id).status_code == 404
    assert len(one.state()["classes"][0]["pictures"]) == 1


def test_twenty_visitors_at_once_keep_their_own_classes(visiting: Visiting) -> None:
    first = visiting()
    visits = [first, *(visiting(first) for _ in range(19))]

    def use(number: int) -> tuple[list[str], list[str]]:
        kinds = ("disc", "stripes") if number % 2 else ("stripes", "disc")
        visit = visits[number]
        for kind in kinds:
            visit.add_class(f"{kind} of {number}", picture(kind, 100 + number))
        for kind in kinds:
            visit.upload(picture(kind, 200 + number), f"{kind} asked by {number}.png")
        state = visit.state()
        return labels(state), [entry["name"] for entry in state["to_classify"]]

    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(use, range(20)))
    for number, (found, names) in enumerate(answers):
        kinds = ("disc", "stripes") if number % 2 else ("stripes", "disc")
        assert names == [f"{kind} asked by {number}.png" for kind in kinds]
        own = {f"{kind} of {number}" for kind in kinds}
        assert set(found) <= own | {"none of these"}
        probable = [
            entry["result"]["class"] == state_class["id"]
            for entry, state_class in zip(
                visits[number].state()["to_classify"], visits[number].state()["classes"], strict=True
            )
        ]
        assert probable == [True, True]
