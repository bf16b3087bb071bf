import copy
from collections.abc import Callable
from threading import Thread

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from deepbdc import create_backbone, list_backbones
from deepbdc.backbones import Backbone
from deepbdc.backbones.base import norms_of, transformed_outputs

PARAMETERS = {
    "conv4": 113_088,
    "resnet10": 4_905_792,
    "resnet12": 12_424_320,
    "resnet18": 11_176_512,
    "resnet34": 21_284_672,
    "resnet34s": 33_282_816,
}
MAPS = {  # channels, and the height at the native input size with 0, 1 and 2 removed down-samplings
    "conv4": (64, (5, 10, 21)),
    "resnet10": (512, (7, 14, 28)),
    "resnet12": (640, (5, 10, 21)),
    "resnet18": (512, (7, 14, 28)),
    "resnet34": (512, (7, 14, 28)),
    "resnet34s": (640, (5, 10, 21)),
}


def residual_stages(depths: tuple[int, ...]) -> int:
    """The number of parameters of the 84-pixel residual networks, counted from their description."""
    count, before = 0, 3
    for depth, after in zip(depths, (64, 160, 320, 640), strict=True):
        for _ in range(depth):
            count += 9 * before * after + 2 * 9 * after * after + 3 * 2 * after
            count += (before * after + 2 * after) if before != after else 0
            before = after
    return count


def test_the_registry_has_the_backbones_of_the_paper() -> None:
    lite = ["efficientnet_lite0", "efficientnet_lite0_fine", "efficientnet_lite1", "efficientnet_lite2"]
    assert list_backbones() == sorted([*PARAMETERS, *lite])


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts(name: str) -> None:
    assert sum(p.numel() for p in create_backbone(name).parameters()) == PARAMETERS[name]


def test_parameter_counts_agree_with_the_description() -> None:
    assert residual_stages((1, 1, 1, 1)) == PARAMETERS["resnet12"]
    assert residual_stages((2, 3, 4, 2)) == PARAMETERS["resnet34s"]


@pytest.mark.parametrize("name", ["resnet18", "resnet34"])
def test_imagenet_resnets_are_torchvision_networks_without_the_head(name: str) -> None:
    """The weights have the same names and shapes. If no down-sampling is removed, the features are the same."""
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
    assert backbone.training, "map_size must not change the mode"


@pytest.mark.parametrize("name", MAPS)
def test_backbones_have_their_preprocessing(name: str) -> None:
    preprocessing = create_backbone(name, width=0.1).preprocessing
    small = name in ("conv4", "resnet12", "resnet34s")
    assert (preprocessing.input_size, preprocessing.resize) == ((84, 92) if small else (224, 256))
    assert preprocessing.mean == (0.472, 0.453, 0.410)
    assert preprocessing.std == (0.277, 0.268, 0.285)


def thin(name: str) -> Backbone:
    torch.manual_seed(0)
    return create_backbone(name, width=0.125)


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_backbone_trains_and_evaluates(name: str) -> None:
    """Finite gradients in training; in evaluation, an unchanged state, a batch of one, and a state-dict round trip."""
    backbone = thin(name)
    side = backbone.preprocessing.input_size // 2
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


BLOCKS = {"conv4": 4, "resnet10": 5, "resnet12": 4, "resnet18": 9, "resnet34": 17, "resnet34s": 11}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_blocks_are_the_network(name: str) -> None:
    """They have all its weights, each once, and their composition is `forward`."""
    backbone = thin(name).eval()
    blocks = backbone.blocks_in_order()
    assert len(blocks) == BLOCKS[name]
    weights = [id(value) for block in blocks for value in block.parameters()]
    assert sorted(weights) == sorted(id(value) for value in backbone.parameters())
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(nn.Sequential(*blocks)(images), backbone(images))


def test_asking_for_blocks_does_not_change_the_names_in_files() -> None:
    for name in BLOCKS:
        backbone = thin(name)
        before = list(backbone.state_dict())
        backbone.blocks_in_order()
        backbone(torch.randn(2, 3, 64, 64))
        assert list(backbone.state_dict()) == before
    assert next(iter(create_backbone("conv4").state_dict())) == "blocks.0.0.weight"


def test_a_network_without_known_blocks_says_so() -> None:
    with pytest.raises(ValueError, match="cannot be taken apart into blocks"):
        create_backbone("timm/resnet18").blocks_in_order()


def test_batch_norms_of_blocks() -> None:
    """Main path and shortcut, for each block."""
    counts = {
        name: [tuple(map(len, norms_of(block))) for block in thin(name).blocks_in_order()]
        for name in ("conv4", "resnet10", "resnet12")
    }
    assert counts["conv4"] == [(1, 0)] * 4
    assert counts["resnet10"] == [(1, 0), (2, 0), (2, 1), (2, 1), (2, 1)]
    assert counts["resnet12"] == [(3, 1)] * 4


def test_transformed_outputs_act_inside_the_context_only() -> None:
    backbone = thin("resnet12").eval()
    norms = norms_of(backbone.blocks_in_order()[0]).main
    images = torch.randn(2, 3, 32, 32)
    plain = backbone(images)
    with transformed_outputs(norms, [lambda x: 2 * x, lambda x: x, lambda x: x + 1]):
        inside = backbone(images)
        elsewhere: list[Tensor] = []
        other = Thread(target=lambda: elsewhere.append(backbone(images)))
        other.start()
        other.join()
    with torch.no_grad():
        norms[0].weight *= 2
        norms[0].bias *= 2
        norms[2].bias += 1
    torch.testing.assert_close(inside, backbone(images))
    assert not torch.allclose(inside, plain)
    assert torch.equal(elsewhere[0], plain), "another thread uses the network as it is"
    assert not any(module._forward_hooks for module in backbone.modules())


def test_convolutions_start_with_variance_two_over_fan_out() -> None:
    weight = create_backbone("resnet12").state_dict()["layer3.0.conv2.weight"]
    assert weight.std().item() == pytest.approx((2 / (9 * 320)) ** 0.5, rel=0.02)


def naive_block(block: nn.Module, x: Tensor) -> Tensor:
    """The residual block as S1-2 of the paper describes it, written with functional calls."""
    weights = block.state_dict()

    def layer(x: Tensor, number: int) -> Tensor:
        return normalised(functional.conv2d(x, weights[f"conv{number}.weight"], padding=1), f"bn{number}")

    def normalised(x: Tensor, name: str) -> Tensor:
        mean, var = x.mean(dim=(0, 2, 3), keepdim=True), x.var(dim=(0, 2, 3), keepdim=True, correction=0)
        gain, bias = (weights[f"{name}.{part}"][:, None, None] for part in ("weight", "bias"))
        return (x - mean) / (var + 1e-5).sqrt() * gain + bias

    def leaky(x: Tensor) -> Tensor:
        return torch.where(x > 0, x, 0.1 * x)

    shortcut = normalised(functional.conv2d(x, weights["downsample.0.weight"]), "downsample.1")
    return leaky(layer(leaky(layer(leaky(layer(x, 1)), 2)), 3) + shortcut)


def test_residual_block_agrees_with_its_description() -> None:
    backbone = thin("resnet12").train()
    x = torch.randn(4, 3, 12, 12)
    for index, stage in enumerate(backbone.children()):
        expected = naive_block(stage[0], x)
        if index < 3:
            expected = functional.max_pool2d(expected, 2)
        found = stage(x)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        x = found.detach()


def test_only_the_first_block_of_a_stage_pools() -> None:
    backbone = create_backbone("resnet34s", width=0.05)
    pools = [[isinstance(block.pool, nn.MaxPool2d) for block in stage] for stage in backbone.children()]
    assert pools == [[True, False], [True, False, False], [True, False, False, False], [False, False]]


def test_map_size_keeps_the_mode_of_every_module() -> None:
    backbone = thin("resnet12").train()
    backbone.layer2.eval()  # frozen batch norm
    backbone.map_size()
    assert [stage.training for stage in backbone.children()] == [True, False, True, True]


def test_a_batch_of_one_trains() -> None:
    for name in PARAMETERS:
        assert torch.isfinite(thin(name).train()(torch.randn(1, 3, 84, 84))).all()


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
        (lambda: create_backbone("resnet12", removed_downsamplings=1.5), ValueError, "between 0 and 4, got 1.5"),
        (lambda: create_backbone("timm/resnet18", -1), ValueError, "between 0 and 4, got -1"),
        (lambda: create_backbone("timm/resnet18", model="resnet34"), TypeError, "no option 'model'"),
        (lambda: create_backbone("timm/swin_tiny_patch4_window7_224", 1), ValueError, "does not support removed"),
        (lambda: create_backbone("conv4", width=0), ValueError, "without channels"),
        (lambda: create_backbone("timm/efficientnet_lite00"), ValueError, "did you mean"),
        (lambda: create_backbone("timm/resnet18", width=2), TypeError, "no option 'width'"),
        (
            lambda: create_backbone("timm/vit_tiny_patch16_224", removed_downsamplings=1),
            ValueError,
            "leave out removed_downsamplings",
        ),
    ],
)
def test_wrong_arguments_raise_clear_errors(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_conv4_computes_the_same_as_in_the_usual_order() -> None:
    """Papers have the ReLU before the pooling. Ours comes after it, which is cheaper and changes neither the features
    nor the gradients.
    """
    backbone, images = create_backbone("conv4", removed_downsamplings=2), torch.randn(4, 3, 32, 32)
    features = images
    for convolution, norm, pool, _ in backbone.blocks:
        features = pool(torch.relu(norm(convolution(features))))
    found = backbone(images)
    assert torch.equal(found, features)
    gradients = [
        torch.autograd.grad(output.square().sum(), list(backbone.parameters()), retain_graph=True)
        for output in (found, features)
    ]
    assert all(torch.equal(own, expected) for own, expected in zip(*gradients, strict=True))
