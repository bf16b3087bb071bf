"""ADM+DN4 and Meta DeepBDC+DN4."""

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import deepbdc
from deepbdc.backbones import create_backbone
from deepbdc.stages import TrainingEpisode

NAMES = ("adm+dn4", "meta_deepbdc+dn4")


def create(name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    return deepbdc.create_method(name, create_backbone("conv4", width=0.125, removed_downsamplings=2), **options).eval()


def episode(shot: int = 2) -> TrainingEpisode:
    images = torch.rand(3 * shot + 6, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    support_labels = torch.arange(3).repeat_interleave(shot)
    return TrainingEpisode(images, support_labels, torch.arange(3).repeat(2), torch.tensor([5, 1, 7]))


@pytest.mark.parametrize("name", NAMES)
def test_both_readings_of_the_loss(name: str) -> None:
    task = episode()
    method = create(name, reduce_to=5)
    support, query = task.split(method.embed(task.images))
    branches = [
        branch(pool(support), task.support_labels, pool(query))
        for branch, pool in zip(method.classifier_for(2).branches, method.classifier.pools, strict=True)
    ]
    right = torch.stack([scores.softmax(dim=1).gather(1, task.query_labels[:, None]) for scores in branches])
    fused = -right.mean(dim=0).log().mean()
    torch.testing.assert_close(method.episode_loss(task).value, fused)
    both = create(name, reduce_to=5, loss="branches")
    summed = torch.stack([cross_entropy(scores, task.query_labels) for scores in branches]).sum()
    torch.testing.assert_close(both.episode_loss(task).value, summed)
    torch.testing.assert_close(
        both.classify(support, task.support_labels, query), method.classify(support, task.support_labels, query)
    )
    assert both.episode_loss(task).numbers == method.episode_loss(task).numbers
    with pytest.raises(ValueError, match="loss must be one of fused, branches, got 'both'"):
        create(name, loss="both")


@pytest.mark.parametrize("name", NAMES)
def test_ordinary_training_reaches_the_pool_of_the_first_branch(name: str) -> None:
    method = create(name, reduce_to=5).train()
    images, labels = torch.rand(6, 3, 16, 16), torch.arange(6) % 3
    method.batch_loss(method.head(3), images, labels).value.backward()
    first = method.classifier.pools[0]
    assert all(value.grad is not None for value in first.parameters())
    groups = method.parameter_groups()
    assert len(groups["scale"]) == 2
    assert all(value.grad is None for value in groups["scale"])


def test_the_similarity_of_bdc_matrices_depends_on_the_shots_and_the_scale_is_shared() -> None:
    method = create("meta_deepbdc+dn4", shot=1, scale=0.5)
    one, five = method.classifier_for(1), method.classifier_for(5)
    assert one is method.classifier
    assert [part.branches[0].similarity for part in (one, five)] == ["inner_product", "euclidean"]
    assert one.branches[0].scale is five.branches[0].scale
    always = create("meta_deepbdc+dn4", similarity="cosine")
    assert {always.classifier_for(shot).branches[0].similarity for shot in (1, 5)} == {"cosine"}
    task = episode(shot=2)
    support, query = task.split(method.embed(task.images))
    made_for_more = create("meta_deepbdc+dn4", shot=5, scale=0.5)
    torch.testing.assert_close(
        method.classify(support, task.support_labels, query),
        made_for_more.classify(support, task.support_labels, query),
    )
