"""FEAT: the contrastive term of its loss, and the rate of its attention."""

from typing import Any

import torch
from torch.nn.functional import cross_entropy

import deepbdc
from deepbdc.backbones import create_backbone
from deepbdc.methods.feat import FEAT
from deepbdc.preprocessing import Preprocessing
from deepbdc.stages import TrainingEpisode


def create(**options: Any) -> FEAT:
    torch.manual_seed(0)
    backbone = create_backbone("conv4", width=0.125, removed_downsamplings=2)
    method = deepbdc.create_method("feat", backbone, preprocessing=Preprocessing(16, 16), **options)
    assert isinstance(method, FEAT)
    return method.eval()


def test_the_loss_of_an_episode_has_the_contrastive_term(generator: torch.Generator) -> None:
    images = torch.rand(8, 3, 16, 16, generator=generator)
    support_labels, query_labels = torch.tensor([1, 0, 0]), torch.tensor([0, 1, 1, 1, 1])  # 3 and 5 images
    episode = TrainingEpisode(images, support_labels, query_labels, torch.tensor([3, 4]))
    method = create(balance=0.5, contrastive_temperature=2.0)
    rows = method.embed(images)
    labels = torch.cat([support_labels, query_labels])
    attention = method.classifier.attention
    centres = torch.stack([attention(rows[labels == label]).mean(0) for label in range(2)])
    logits = -(rows[:, None] - centres).square().sum(-1) / 2
    torch.testing.assert_close(method.centre_scores(rows, labels), logits, rtol=1e-4, atol=1e-5)
    loss = method.episode_loss(episode)
    main = cross_entropy(method.classify(rows[:3], support_labels, rows[3:]), query_labels)
    torch.testing.assert_close(loss.value, main + 0.5 * cross_entropy(logits, labels))
    torch.testing.assert_close(loss.numbers["contrastive"], cross_entropy(logits, labels))


def test_the_attention_is_a_group_of_its_own() -> None:
    groups = create().parameter_groups()
    assert set(groups) == {"network", "attention"}
    assert len(groups["attention"]) == 3 + 2 + 2
