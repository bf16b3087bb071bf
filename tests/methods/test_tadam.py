"""TADAM against a twin that changes the weights of batch norms, image by image."""

import copy

import pytest
import torch
from torch import Tensor, nn

import deepbdc
from deepbdc.backbones import create_backbone
from deepbdc.methods.tadam import TADAM
from deepbdc.stages import TrainingEpisode


def create(backbone: str = "resnet12", seed: int = 0) -> TADAM:
    """Float64, in evaluation mode, with statistics and factors that are not those of the start."""
    torch.manual_seed(seed)
    method = deepbdc.create_method("tadam", create_backbone(backbone, width=0.05), scale=2.0).double()
    assert isinstance(method, TADAM)
    for module in method.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.2, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    nn.init.uniform_(method.conditioning.scale_factors, 0.5, 1.0)
    nn.init.uniform_(method.conditioning.shift_factors, 0.5, 1.0)
    return method.eval()


def residual(layers: nn.Module, code: Tensor) -> Tensor:
    weights = layers.state_dict()
    x = (weights["first.weight"] @ code + weights["first.bias"]).clamp(min=0)
    x = (x + weights["second.weight"] @ x + weights["second.bias"]).clamp(min=0)
    return x + weights["third.weight"] @ x + weights["third.bias"]


def conditioned_names(backbone: str) -> list[str]:
    """The batch norms with a scale and a shift of their own, in order."""
    if backbone == "conv4":
        return [f"blocks.{block}.1" for block in range(4)]
    if backbone == "resnet12":
        return [f"layer{stage}.0.bn{number}" for stage in range(1, 5) for number in (1, 2, 3)]
    return ["bn1", *(f"layer{stage}.0.bn{number}" for stage in range(1, 5) for number in (1, 2))]


@torch.no_grad()
def naive(method: TADAM, name: str, support: Tensor, labels: Tensor, query: Tensor) -> Tensor:
    """γ (w x + b) + β is another batch norm, with weight γ w and bias γ b + β."""
    rows = torch.cat([method.embedding(image[None]) for image in support])
    way = int(labels.max()) + 1
    code = torch.stack([rows[labels == label].mean(dim=0) for label in range(way)]).mean(dim=0)
    network, conditioning = copy.deepcopy(method.embedding), method.conditioning
    for place, norm_name in enumerate(conditioned_names(name)):
        norm = network.backbone.get_submodule(norm_name)
        scale = 1 + conditioning.scale_factors[place] * residual(conditioning.scales[place], code)
        shift = conditioning.shift_factors[place] * residual(conditioning.shifts[place], code)
        norm.weight.mul_(scale)  # type: ignore[operator,union-attr]
        norm.bias.mul_(scale).add_(shift)  # type: ignore[operator,union-attr]
    rows = torch.cat([network(image[None]) for image in support])
    means = torch.stack([rows[labels == label].mean(dim=0) for label in range(way)])
    return torch.stack([-2 * (network(image[None]) - means).norm(dim=1) for image in query])


@pytest.mark.parametrize("backbone", ["conv4", "resnet12", "resnet10"])
def test_scores_are_those_of_a_network_with_other_batch_norms(backbone: str, generator: torch.Generator) -> None:
    method = create(backbone)
    images = torch.rand(2, 9, 3, 32, 32, generator=generator, dtype=torch.float64)
    labels = torch.tensor([[0, 1, 0, 1, 1], [1, 1, 1, 0, 1]])  # unequal shots
    with torch.no_grad():
        found = method.classify(images[:, :5], labels, images[:, 5:])
    for place in range(2):
        expected = naive(method, backbone, images[place, :5], labels[place], images[place, 5:])
        torch.testing.assert_close(found[place], expected)
    assert not any(module._forward_hooks for module in method.modules())


def test_it_starts_as_a_network_without_conditioning(generator: torch.Generator) -> None:
    method = create()
    nn.init.zeros_(method.conditioning.scale_factors)
    nn.init.zeros_(method.conditioning.shift_factors)
    images = torch.rand(6, 3, 32, 32, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        rows = method.embedding(images)
        expected = -2 * torch.cdist(rows[2:], rows[:2])
        torch.testing.assert_close(method.classify(images[:2], torch.tensor([0, 1]), images[2:]), expected)


def test_a_new_method_has_factors_0_and_named_groups() -> None:
    torch.manual_seed(0)
    method = deepbdc.create_method("tadam", "conv4")
    groups = method.parameter_groups()
    assert set(groups) == {"network", "scale", "task_encoder", "task_scale"}
    assert all(not value.any() for value in groups["task_scale"])
    assert len(groups["task_scale"]) == 2
    assert len(groups["task_encoder"]) == 4 * 2 * 6


def test_its_network_starts_as_that_of_protonet() -> None:
    weights = []
    for name in ("protonet", "tadam"):
        torch.manual_seed(0)
        method = deepbdc.create_method(name, create_backbone("conv4", width=0.25))
        weights.append([*method.embedding.state_dict().values(), *method.head(5).state_dict().values()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_gradients_reach_the_task_encoder_through_the_factors(generator: torch.Generator) -> None:
    images = torch.rand(8, 3, 32, 32, generator=generator, dtype=torch.float64)
    episode = TrainingEpisode(images, torch.tensor([0, 1, 0, 1]), torch.tensor([0, 1, 1, 0]), torch.tensor([3, 5]))
    method = create().train()
    method.episode_loss(episode).value.backward()
    for group in ("task_scale", "task_encoder", "network", "scale"):
        assert any(value.grad is not None and value.grad.any() for value in method.parameter_groups()[group]), group


def test_the_gradient_of_the_loss_is_its_slope(generator: torch.Generator) -> None:
    """By finite differences along a random direction of all parameters."""
    images = torch.rand(6, 3, 16, 16, generator=generator, dtype=torch.float64)
    episode = TrainingEpisode(images, torch.tensor([0, 1]), torch.tensor([0, 1, 1, 0]), torch.tensor([3, 5]))
    method = create("conv4")
    method.episode_loss(episode).value.backward()
    start = nn.utils.parameters_to_vector(method.parameters()).detach()
    gradient = torch.cat([value.grad.flatten() for value in method.parameters()])  # type: ignore[union-attr]
    direction = torch.randn(start.shape, generator=generator, dtype=torch.float64)
    losses = []
    for sign in (1, -1):
        nn.utils.vector_to_parameters(start + sign * 1e-7 * direction, method.parameters())
        losses.append(method.episode_loss(episode).value.item())
    assert float(gradient @ direction) == pytest.approx((losses[0] - losses[1]) / 2e-7, rel=1e-4)


def test_backbones_without_known_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be taken apart into blocks"):
        deepbdc.create_method("tadam", "timm/resnet10t")


def test_own_pictures_are_refused_in_words() -> None:
    from PIL import Image

    pictures = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    method = deepbdc.create_method("tadam", create_backbone("conv4", width=0.1)).eval()
    with pytest.raises(ValueError, match="TADAM conditions its network on each task"):
        deepbdc.FewShotClassifier(backbone=method).fit(pictures, ["red", "blue"])
