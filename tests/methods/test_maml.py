"""MAML against a twin that copies the network, and its two orders of gradient."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import deepbdc
from deepbdc.backbones import create_backbone
from deepbdc.methods.maml import MAML
from deepbdc.stages import TrainingEpisode


def create(**options: object) -> MAML:
    torch.manual_seed(0)
    backbone = create_backbone("conv4", width=0.0625, removed_downsamplings=2)
    given = {"steps": 2, "test_steps": 3, "rate": 0.1, **options}
    method = deepbdc.create_method("maml", backbone, **given)
    assert isinstance(method, MAML)
    return method


def naive(method: MAML, support: Tensor, labels: Tensor, query: Tensor, steps: int) -> Tensor:
    """Plain SGD on a copy of the network and a new linear layer."""
    network = copy.deepcopy(method.embedding)
    head = nn.Linear(network.out_features, int(labels.max()) + 1).to(support.dtype)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimiser = torch.optim.SGD([*network.parameters(), *head.parameters()], lr=method.classifier.rate)
    for _ in range(steps):
        optimiser.zero_grad()
        cross_entropy(head(network(support)), labels).backward()
        optimiser.step()
    with torch.no_grad():
        scores: Tensor = head(network(query))
    return scores


@pytest.mark.parametrize("batch_norm", ["batch", "running"])
def test_scores_are_those_of_a_network_trained_on_the_support(batch_norm: str, generator: torch.Generator) -> None:
    method = create(batch_norm=batch_norm).double().eval()
    images = torch.rand(2, 10, 3, 12, 12, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    with torch.no_grad():
        scores = method.classify(images[:, :6], labels.expand(2, -1), images[:, 6:])
    for one, found in zip(images, scores, strict=True):
        torch.testing.assert_close(found, naive(method, one[:6], labels, one[6:], steps=3))
    assert method.transductive == (batch_norm == "batch")


def test_the_second_order_is_the_true_gradient(generator: torch.Generator) -> None:
    """By finite differences of the loss of the queries; the first order is another direction."""
    images = torch.rand(8, 3, 12, 12, generator=generator, dtype=torch.float64)
    episode = TrainingEpisode(images, torch.tensor([0, 1, 0, 1]), torch.tensor([0, 1, 1, 0]), torch.tensor([3, 5]))
    gradients = {}
    for first_order in (False, True):
        method = create(first_order=first_order, rate=0.5).double().train()
        method.episode_loss(episode).value.backward()
        gradients[first_order] = torch.cat([value.grad.flatten() for value in method.parameters()])  # type: ignore[union-attr]
    method = create(rate=0.5).double().train()
    direction = torch.randn(gradients[False].shape, generator=generator, dtype=torch.float64)
    start, losses = nn.utils.parameters_to_vector(method.parameters()).detach(), []
    for sign in (1, -1):
        nn.utils.vector_to_parameters(start + sign * 1e-6 * direction, method.parameters())
        losses.append(method.episode_loss(episode).value.item())
    slope = (losses[0] - losses[1]) / 2e-6
    assert float(gradients[False] @ direction) == pytest.approx(slope, rel=1e-4)
    assert not torch.allclose(gradients[False], gradients[True], rtol=1e-2)


def test_evaluation_leaves_the_weights_alone(generator: torch.Generator) -> None:
    method = create().eval()
    before = {name: value.clone() for name, value in method.state_dict().items()}
    images = torch.rand(6, 3, 12, 12, generator=generator)
    with torch.no_grad():
        method.classify(images[:2], torch.tensor([0, 1]), images[2:])
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())
    assert all(value.grad is None for value in method.parameters())


def test_learnt_start_weights_belong_to_slots(generator: torch.Generator) -> None:
    method = create(slots=2).train()
    assert [value.shape[0] for value in method.parameter_groups()["start"]] == [2, 2]
    images = torch.rand(6, 3, 12, 12, generator=generator)
    episode = TrainingEpisode(images, torch.tensor([0, 1]), torch.tensor([0, 1, 1, 0]), torch.tensor([3, 5]))
    method.episode_loss(episode).value.backward()
    assert all(value.grad is not None and value.grad.any() for value in method.parameter_groups()["start"])


def test_a_rate_that_is_too_large_is_named(generator: torch.Generator) -> None:
    method = create(rate=1e30).eval()
    images = torch.rand(6, 3, 12, 12, generator=generator)
    with pytest.raises(ValueError, match="try a smaller rate"), torch.no_grad():
        method.classify(images[:2], torch.tensor([0, 1]), images[2:])


def test_which_weights_are_adapted_does_not_depend_on_what_is_trained(generator: torch.Generator) -> None:
    method = create().eval()
    images = torch.rand(6, 3, 12, 12, generator=generator)
    with torch.no_grad():
        scores = method.classify(images[:2], torch.tensor([0, 1]), images[2:])
        method.embedding.requires_grad_(False)
        assert torch.equal(method.classify(images[:2], torch.tensor([0, 1]), images[2:]), scores)


def test_its_network_is_no_fixed_embedding() -> None:
    """Without running statistics, the representation of an image depends on those beside it."""
    from deepbdc.feature_bank import build_bank
    from tests.test_evaluation import DATA

    with pytest.raises(ValueError, match="depend on the images beside it"):
        build_bank(create().embedding, DATA)
    build_bank(create(batch_norm="running").embedding, DATA)


def test_own_pictures_are_refused_in_words() -> None:
    from PIL import Image

    picture = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    with pytest.raises(ValueError, match=r"adapts its whole network.*classifier=\"logistic\""):
        deepbdc.FewShotClassifier(backbone=create(batch_norm="running").eval()).fit(picture, ["red", "blue"])
    with pytest.raises(ValueError, match="only its own method"):
        deepbdc.FewShotClassifier(backbone=create().eval()).fit(picture, ["red", "blue"])
