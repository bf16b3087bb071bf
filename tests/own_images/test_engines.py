import copy
import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from deepbdc import FewShotClassifier, create_backbone
from deepbdc.backbones.base import Backbone
from deepbdc.backbones.folding import computed_by
from deepbdc.own_images import engines
from deepbdc.own_images.engines import chosen_engine, engine_for
from tests.drawings import draw

NAMES = ("efficientnet_lite0", "efficientnet_lite0_fine", "efficientnet_lite1", "efficientnet_lite2")
FAST = ("torch", "onnxruntime")


def with_statistics(name: str) -> Backbone:
    """A network with random weights, and batch norms that have gains, biases and statistics of their own."""
    generator = torch.Generator().manual_seed(0)
    backbone = create_backbone(name, pretrained=False).eval()
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            for value in (module.weight.data, module.running_var):
                value.copy_(0.5 + torch.rand(value.shape, generator=generator))
            for value in (module.bias.data, module.running_mean):
                value.copy_(torch.randn(value.shape, generator=generator))
    return backbone


def images(count: int, height: int, width: int) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def through_engine(backbone: Backbone, given: Tensor) -> Tensor:
    engine = engine_for(backbone, "")
    assert engine is not None
    with computed_by(backbone, engine):
        maps: Tensor = backbone(given)
    assert torch.equal(maps, engine(given))
    return maps


@torch.no_grad()
def expected(backbone: Backbone, given: Tensor) -> Tensor:
    maps: Tensor = backbone(given)
    return maps


@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize("name", NAMES)
def test_all_engines_give_the_same_maps(name: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(engines.VARIABLE, engine)
    # Random weights amplify rounding errors, and their maps have larger values.
    for backbone, tolerance in ((create_backbone(name).eval(), 1e-4), (with_statistics(name), 1e-2)):
        for given in (images(2, 128, 128), images(1, 75, 101)):  # odd sides need other padding
            maps = expected(backbone, given)
            found = through_engine(backbone, given)
            assert found.shape == maps.shape
            torch.testing.assert_close(found, maps, atol=tolerance, rtol=0)


@pytest.mark.parametrize("engine", FAST)
def test_a_map_does_not_depend_on_the_pictures_beside_it(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(engines.VARIABLE, engine)
    backbone, given = create_backbone("efficientnet_lite0"), images(5, 64, 64)
    found = [through_engine(backbone, given[:1])]
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(through_engine(backbone, given)[:1])
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_the_mode_of_the_network_does_not_matter_and_stays() -> None:
    backbone = create_backbone("efficientnet_lite0").train()
    maps = through_engine(backbone, images(2, 64, 64))
    torch.testing.assert_close(maps, expected(copy.deepcopy(backbone).eval(), images(2, 64, 64)), atol=1e-4, rtol=1e-4)
    assert backbone.training


def test_an_engine_is_kept_until_the_weights_change() -> None:
    backbone = create_backbone("efficientnet_lite0")
    first = engine_for(backbone, "one")
    assert engine_for(backbone, "one") is first
    assert engine_for(backbone, "two") is not first


def test_other_networks_and_the_plain_engine_call_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_for(create_backbone("conv4"), "") is None
    assert engine_for(create_backbone("efficientnet_lite0").double(), "") is None
    monkeypatch.setenv(engines.VARIABLE, "plain")
    assert engine_for(create_backbone("efficientnet_lite0"), "") is None


def test_an_engine_answers_only_for_its_network_and_inside_the_context() -> None:
    one, other, given = with_statistics("efficientnet_lite0"), with_statistics("efficientnet_lite0"), images(1, 64, 64)
    with torch.no_grad(), computed_by(one, lambda images: images):
        assert torch.equal(one(given), given)
        assert other(given).shape == (1, 320, 2, 2)
        with computed_by(one, None):
            assert one(given).shape == (1, 320, 2, 2)
        assert torch.equal(one(given), given)
    assert expected(one, given).shape == (1, 320, 2, 2)


def test_the_answers_are_the_same_whatever_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ("circle", "square", "triangle")
    examples = [draw(kind, seed) for kind in kinds for seed in range(3)]
    new = [draw(kind, 10 + seed) for kind in kinds for seed in range(2)]
    labels = [kind for kind in kinds for _ in range(3)]
    answers = {}
    for engine in engines.ENGINES:
        monkeypatch.setenv(engines.VARIABLE, engine)
        answers[engine] = FewShotClassifier().fit(examples, labels).predict_proba(new)
    for found in answers.values():
        np.testing.assert_allclose(found, answers["plain"], atol=1e-3)
        assert np.array_equal(found.argmax(axis=1), answers["plain"].argmax(axis=1))


def test_the_engine_is_onnxruntime_if_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(engines.VARIABLE, raising=False)
    assert chosen_engine() == "onnxruntime"
    monkeypatch.setattr(engines, "find_spec", lambda name: None if name == "onnxruntime" else object())
    assert chosen_engine() == "torch"
    monkeypatch.setenv(engines.VARIABLE, "tensorrt")
    with pytest.raises(ValueError, match=r"DEEPBDC_ENGINE must be one of auto, onnxruntime.*'tensorrt'"):
        chosen_engine()


def test_an_engine_that_is_asked_for_and_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(engines.VARIABLE, "onnxruntime")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'deepbdc\[onnx\]'"):
        engine_for(create_backbone("efficientnet_lite0"), "")
