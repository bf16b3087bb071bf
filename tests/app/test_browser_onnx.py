"""The ONNX model that the page saves gives the answers of the page."""

import io
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.app.actions import BROWSER, Open, ask, expect, file, learn, save
from tests.app.drawing import picture

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
pytestmark = BROWSER

ASKED = (("disc", 7), ("stripes", 8), ("cross", 1))


def prepared(content: bytes, facts: dict[str, str]) -> Any:
    """A square picture as the model needs it."""
    side = int(facts["resize"])
    image = Image.open(io.BytesIO(content)).convert("RGB")
    image = image.resize((side, side), Image.Resampling[facts["interpolation"].upper()])
    edge = (side - int(facts["size"])) // 2
    image = image.crop((edge, edge, side - edge, side - edge))
    return np.asarray(image, dtype=np.float32).transpose(2, 0, 1) / 255


def test_the_saved_model_gives_the_answers_of_the_page(open_page: Open) -> None:
    page = open_page()
    learn(page)
    ask(page, *(file(kind, seed) for kind, seed in ASKED))
    expect(page.locator(".question")).to_have_count(len(ASKED))
    model = save(page, "For other programs (ONNX)").path().read_bytes()

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    facts = session.get_modelmeta().custom_metadata_map
    images = np.stack([prepared(picture(kind, seed), facts) for kind, seed in ASKED])
    probabilities, rejected = session.run(None, {"images": images})

    state = page.evaluate("() => fetch('/api/state').then((answer) => answer.json())")
    names = {entry["id"]: entry["name"] for entry in state["classes"]}
    results = {entry["name"]: entry["result"] for entry in state["to_classify"]}
    answers = [results[f"{kind} {seed}.png"] for kind, seed in ASKED]
    by_name = [{names[one["class"]]: one["probability"] for one in answer["probabilities"]} for answer in answers]
    shown = [[row[name] for name in json.loads(facts["classes"])] for row in by_name]
    assert np.allclose(probabilities, shown, atol=1e-4)
    assert rejected.tolist() == [answer["rejected"] for answer in answers] == [False, False, True]
