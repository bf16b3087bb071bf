"""Matching networks with full context embeddings, which the contract does not cover."""

import torch
from torch.nn.functional import cross_entropy

import deepbdc
from deepbdc.backbones import create_backbone
from deepbdc.preprocessing import Preprocessing
from deepbdc.stages import TrainingEpisode


def test_full_context_is_trained_with_the_network(generator: torch.Generator) -> None:
    torch.manual_seed(0)
    backbone = create_backbone("conv4", width=0.125, removed_downsamplings=2)
    method = deepbdc.create_method("matchingnet", backbone, preprocessing=Preprocessing(16, 16), full_context=True)
    assert set(method.parameter_groups()) == {"network", "scale", "context"}
    images = torch.rand(9, 3, 16, 16, generator=generator)
    labels = torch.arange(3)
    episode = TrainingEpisode(images, labels, labels.repeat(2), labels)
    method.train().episode_loss(episode).value.backward()
    assert all(value.grad is not None and value.grad.isfinite().all() for value in method.parameters())


def test_the_loss_is_that_of_the_probabilities(generator: torch.Generator) -> None:
    method = deepbdc.create_method("matchingnet", backbone="conv4", scale=3.0)
    support, query = torch.rand(4, 64, generator=generator), torch.rand(3, 64, generator=generator)
    scores = method.classify(support, torch.tensor([0, 0, 1, 1]), query)
    expected = -scores[torch.arange(3), torch.tensor([0, 1, 1])].mean()
    torch.testing.assert_close(cross_entropy(scores, torch.tensor([0, 1, 1])), expected)
