"""The web service of `deepbdc serve`."""

import base64
import io
from typing import Any

import pytest

pytest.importorskip("fastapi")
from starlette.testclient import TestClient

from deepbdc import FewShotClassifier
from deepbdc.cli import main
from deepbdc.serving import ServiceLimits, create_service
from deepbdc.web.protection import Door
from tests.drawings import CLASSES, draw

TOKEN = "a-secret-of-18-chars"
LOCAL = "http://127.0.0.1:8000"


def content(kind: str, seed: int) -> bytes:
    stream = io.BytesIO()
    draw(kind, seed).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture(scope="module")
def fitted() -> FewShotClassifier:
    return FewShotClassifier().fit([draw(kind, seed) for kind in CLASSES for seed in range(3)], sorted(CLASSES * 3))


@pytest.fixture
def client(fitted: FewShotClassifier) -> TestClient:
    limits = ServiceLimits(pictures=3, request_bytes=100_000, file_bytes=60_000)
    return TestClient(create_service(fitted, Door("127.0.0.1", 8000), limits), base_url=LOCAL)


def post(client: TestClient, body: bytes, **headers: str) -> Any:
    return client.post("/predict", content=body, headers={"content-type": "image/png", **headers})


def test_one_picture(client: TestClient, fitted: FewShotClassifier) -> None:
    answer = post(client, content("circle", 10))
    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["answers"]
    expected = fitted.predict_proba([draw("circle", 10)])[0]
    assert found["label"] == "circle"
    assert found["probabilities"] == pytest.approx(dict(zip(CLASSES, expected, strict=True)), abs=1e-6)
    assert found["probability"] == max(found["probabilities"].values())
    assert found["none_of_these"] is False


def test_several_pictures_and_one_that_cannot_be_read(client: TestClient) -> None:
    texts = [base64.b64encode(part).decode() for part in (content("stripes", 10), b"no picture", content("noise", 0))]
    answers = client.post("/predict", json={"pictures": texts}).json()["answers"]
    assert answers[0]["label"] == "stripes"
    assert "picture 1: not a readable image" in answers[1]["problem"]
    assert answers[2]["none_of_these"] is True
    assert 0 <= answers[2]["familiarity"] < 0.05 <= answers[0]["familiarity"] <= 1


def test_limits_and_mistakes(client: TestClient) -> None:
    one = base64.b64encode(content("circle", 1)).decode()
    assert client.post("/predict", json={"pictures": [one] * 4}).status_code == 413
    assert post(client, bytes(100_001)).status_code == 413
    assert post(client, bytes(60_001)).status_code == 422
    assert post(client, b"").status_code == 422
    for wrong in ({"pictures": []}, {"pictures": ["%%%"]}, {"images": [one]}):
        answer = client.post("/predict", json=wrong)
        assert answer.status_code == 400
        assert "Send JSON like" in answer.json()["error"]
    assert client.get("/predict").status_code == 405


def test_other_sites_and_host_names_are_refused(client: TestClient) -> None:
    assert post(client, content("circle", 1), origin="http://evil.example").status_code == 403
    assert post(client, content("circle", 1), host="evil.example").status_code == 421


def test_the_token_is_needed(fitted: FewShotClassifier) -> None:
    client = TestClient(create_service(fitted, Door("127.0.0.1", 8000, TOKEN)), base_url=LOCAL)
    picture = content("circle", 1)
    for headers in ({}, {"authorization": "Bearer wrong-token-123"}, {"authorization": TOKEN}):
        answer = post(client, picture, **headers)
        assert answer.status_code == 401
        assert "Authorization: Bearer" in answer.json()["error"]
        assert client.get("/openapi.json", headers=headers).status_code == 401
    assert post(client, picture, authorization=f"Bearer {TOKEN}").status_code == 200


def test_openapi_describes_it(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    predict = described["paths"]["/predict"]["post"]
    assert set(predict["requestBody"]["content"]) == {"image/*", "application/json"}
    assert {"200", "401", "413", "422"} <= set(predict["responses"])
    assert client.get("/").json()["classes"] == list(CLASSES)


def test_other_computers_need_a_token() -> None:
    with pytest.raises(SystemExit, match="also give --token auto"):
        main(["serve", "birds.safetensors", "--host", "0.0.0.0"])
