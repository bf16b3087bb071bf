import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from deepbdc import create_backbone, list_backbones
from deepbdc.backbones import Backbone

PARAMETERS = {
    "conv4": 113_088,
    "resnet10": 4_905_792,
    "resnet12": 12_424_320,
    "resnet18": 11_176_512,
    "resnet34": 21_284_672,
    "resnet34s": 33_282_816,
}
MAPS = {  # (channels, side) at the native input size with 0, 1, 2 removed down-samplings
    "conv4": (64, (5, 10, 21)),
    "resnet10": (512, (7, 14, 28)),
    "resnet12": (640, (5, 10, 21)),
    "resnet18": (512, (7, 14, 28)),
    "resnet34": (512, (7, 14, 28)),
    "resnet34s": (640, (5, 10, 21)),
}


def residual_stages(depths: tuple[int, ...]) -> int:
    """Parameters of the 84-pixel residual networks, counted from their description."""
    count, before = 0, 3
    for depth, after in zip(depths, (64, 160, 320, 640), strict=True):
        for _ in range(depth):
            count += 9 * before * after + 2 * 9 * after * after + 3 * 2 * after
            count += (before * after + 2 * after) if before != after else 0
            before = after
    return count


def test_the_registry_is_what_the_paper_needs() -> None:
    assert list_backbones() == sorted(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts(name: str) -> None:
    assert sum(p.numel() for p in create_backbone(name).parameters()) == PARAMETERS[name]


def test_parameter_counts_follow_the_description() -> None:
    assert residual_stages((1, 1, 1, 1)) == PARAMETERS["resnet12"]
    assert residual_stages((2, 3, 4, 2)) == PARAMETERS["resnet34s"]


@pytest.mark.parametrize("name", ["resnet18", "resnet34"])
def test_imagenet_resnets_are_torchvision_networks_without_the_head(name: str) -> None:
    """Same names, same shapes, and with no down-sampling removed the same function."""
    import torchvision

    theirs = getattr(torchvision.models, name)().eval()
    ours = create_backbone(name, removed_downsamplings=0).eval()
    weights = {key: value for key, value in theirs.state_dict().items() if not key.startswith("fc.")}
    ours.load_state_dict(weights)
    images = torch.randn(1, 3, 64, 64)
    expected = nn.Sequential(*list(theirs.children())[:-2])(images)
    torch.testing.assert_close(ours(images), expected)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("removed", [0, 1, 2])
def test_maps_at_the_native_size(name: str, removed: int) -> None:
    channels, sides = MAPS[name]
    backbone = create_backbone(name, removed_downsamplings=removed)
    assert backbone.out_channels == channels
    assert backbone.map_size() == (sides[removed], sides[removed])
    assert backbone.training, "map_size leaves the mode as it was"


@pytest.mark.parametrize("name", MAPS)
def test_preprocessing_is_carried(name: str) -> None:
    preprocessing = create_backbone(name, width=0.1).preprocessing
    small = name in ("conv4", "resnet12", "resnet34s")
    assert (preprocessing.input_size, preprocessing.resize) == ((84, 92) if small else (224, 256))
    assert preprocessing.mean == (0.472, 0.453, 0.410)
    assert preprocessing.std == (0.277, 0.268, 0.285)


def thin(name: str) -> Backbone:
    torch.manual_seed(0)
    return create_backbone(name, width=0.125)


@pytest.mark.parametrize("name", PARAMETERS)
def test_sweep(name: str) -> None:
    """Every registered backbone: train and eval, a batch of one, state-dict round trip, finite gradients."""
    backbone = thin(name)
    side = backbone.input_size // 2
    images = torch.randn(3, 3, side, side)

    backbone.train()
    backbone(images).square().mean().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in backbone.parameters())

    backbone.eval()
    with torch.no_grad():
        before = {key: value.clone() for key, value in backbone.state_dict().items()}
        together = backbone(images)
        assert all(torch.equal(before[key], value) for key, value in backbone.state_dict().items())
        torch.testing.assert_close(backbone(images[:1]), together[:1], atol=1e-4, rtol=1e-4)
        assert together.shape == (3, backbone.out_channels, *backbone.map_size(side))

        other = create_backbone(name, width=0.125).eval()
        other.load_state_dict(copy.deepcopy(backbone.state_dict()))
        assert torch.equal(other(images), together)


def test_convolutions_start_with_variance_two_over_fan_out() -> None:
    weight = create_backbone("resnet12").state_dict()["layer3.0.conv2.weight"]
    assert weight.std().item() == pytest.approx((2 / (9 * 320)) ** 0.5, rel=0.02)


def test_leaky_relu_lets_negative_values_through() -> None:
    with torch.no_grad():
        features = create_backbone("resnet12", width=0.1)(torch.randn(2, 3, 84, 84))
    assert features.min() < 0
    assert -features.min() < features.max()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: create_backbone("resnet21"), ValueError, "did you mean 'resnet"),
        (lambda: create_backbone("resnet12", widht=1), TypeError, "did you mean 'width'"),
        (lambda: create_backbone("resnet12", removed_downsamplings=5), ValueError, "between 0 and 4, got 5"),
        (
            lambda: create_backbone("resnet18", removed_downsamplings=-1),
            ValueError,
            "between 0 and 3, got -1",
        ),
        (lambda: create_backbone("conv4", width=0), ValueError, "without channels"),
        (lambda: create_backbone("timm/efficientnet_lite00"), ValueError, "did you mean"),
        (lambda: create_backbone("timm/resnet18", width=2), TypeError, "no option 'width'"),
        (
            lambda: create_backbone("timm/vit_tiny_patch16_224", removed_downsamplings=1),
            ValueError,
            "removed_downsamplings=1",
        ),
    ],
)
def test_mistakes_are_answered_in_words(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
