import pytest
import timm
import torch

from deepbdc import BDCPool, Embedding, create_backbone
from deepbdc.errors import UserError


@pytest.mark.parametrize(
    ("name", "channels", "side"),
    [
        ("tf_efficientnet_lite0", 320, 7),
        ("mobilenetv3_small_050", 288, 7),
        ("swin_tiny_patch4_window7_224", 768, 7),  # timm returns its maps with channels last
        ("vit_tiny_patch16_224", 192, 14),
    ],
)
def test_maps_and_preprocessing(name: str, channels: int, side: int) -> None:
    backbone = create_backbone(f"timm/{name}")
    config = timm.data.resolve_model_data_config(timm.create_model(name))
    assert backbone.out_channels == channels
    assert backbone.map_size() == (side, side)
    assert backbone.preprocessing.mean == tuple(config["mean"])
    assert backbone.preprocessing.std == tuple(config["std"])
    assert backbone.preprocessing.input_size == config["input_size"][-1]
    assert backbone.preprocessing.resize == round(224 / config["crop_pct"])
    assert backbone.preprocessing.interpolation == config["interpolation"]


def test_features_are_the_last_map_of_the_model() -> None:
    torch.manual_seed(0)
    backbone = create_backbone("timm/tf_efficientnet_lite0").eval()
    whole = timm.create_model("tf_efficientnet_lite0").eval()
    missing, _ = whole.load_state_dict(backbone.network.state_dict(), strict=False)
    assert all(key.startswith(("conv_head", "bn2", "classifier")) for key in missing)
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected = whole.blocks(whole.bn1(whole.conv_stem(images)))
        torch.testing.assert_close(backbone(images), expected)


def test_removed_downsampling_enlarges_the_map() -> None:
    assert create_backbone("timm/resnet18", removed_downsamplings=1).map_size() == (14, 14)


def test_a_timm_backbone_works_in_an_embedding() -> None:
    embedding = Embedding(create_backbone("timm/mobilenetv3_small_050"), BDCPool(288, reduce_to=16)).eval()
    assert embedding(torch.rand(2, 3, 64, 64)).shape == (2, embedding.out_features) == (2, 136)
    assert embedding.preprocessing is embedding.backbone.preprocessing


@pytest.mark.parametrize(("name", "prefix"), [("vit_tiny_patch16_224", 1), ("vit_base_patch16_siglip_224", 0)])
def test_tokens_are_a_map_and_the_class_token_is_the_own_vector(name: str, prefix: int) -> None:
    torch.manual_seed(0)
    backbone = create_backbone(f"timm/{name}").eval()
    images = torch.rand(2, 3, 64, 48)
    with torch.no_grad():
        tokens = backbone.network.forward_features(images)
        features, own = backbone.two_views(backbone.kept_map(images))
        torch.testing.assert_close(features, backbone(images))
    assert tokens.shape[1] == prefix + 12
    torch.testing.assert_close(features[1, :, 2, 1], tokens[1, prefix + 2 * 3 + 1])  # 4 × 3 tokens, row by row
    torch.testing.assert_close(own, tokens[:, 0] if prefix else tokens.mean(dim=1))


def test_a_transformer_needs_a_multiple_of_its_patches() -> None:
    backbone = create_backbone("timm/vit_tiny_patch16_224")
    with pytest.raises(UserError, match="multiple of 16"):
        backbone(torch.rand(1, 3, 60, 60))
    with pytest.raises(UserError, match="without down-samplings"):
        create_backbone("timm/vit_tiny_patch16_224", removed_downsamplings=1)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "mobilenetv3_small_050"])
def test_weights_of_a_persons_own_file(name: str) -> None:
    whole = timm.create_model(name)
    backbone = create_backbone(f"timm/{name}", weights=whole.state_dict()).eval()
    loaded, expected = backbone.network.state_dict(), whole.state_dict()
    assert len(loaded) > 20
    for layer, value in loaded.items():
        torch.testing.assert_close(value, expected[layer])
    with pytest.raises(UserError, match="from your weights"):
        create_backbone(f"timm/{name}", weights={"unknown": torch.zeros(1)})
