"""FRN: its dummy maps, and the auxiliary term of its loss."""

from typing import Any

import pytest
import torch
from torch import Tensor

import deepbdc
from deepbdc.backbones import create_backbone
from deepbdc.classifiers.reconstruction import ReconstructionClassifier
from deepbdc.methods.frn import FRN, DummyMaps, class_overlap
from deepbdc.preprocessing import Preprocessing
from deepbdc.stages import TrainingEpisode


def create(**options: Any) -> FRN:
    torch.manual_seed(0)
    backbone = create_backbone("conv4", width=0.125, removed_downsamplings=2)
    method = deepbdc.create_method("frn", backbone, preprocessing=Preprocessing(16, 16), **options)
    assert isinstance(method, FRN)
    return method.eval()


def test_dummy_maps_are_classes_with_one_support_map(generator: torch.Generator) -> None:
    method = create(scale=3.0)
    head = method.head(6)
    assert isinstance(head, DummyMaps)
    assert head.maps.shape == (6, 16, 8)
    images, labels = torch.rand(4, 3, 16, 16, generator=generator), torch.tensor([0, 5, 2, 1])
    fixed = ReconstructionClassifier(3.0)
    torch.nn.init.constant_(method.classifier.alpha, 0.5)  # must not count here
    as_support = head.maps.transpose(1, 2).unflatten(2, (4, 4)) * 8**0.5  # the maps are not divided by √d, features are
    scores = fixed(as_support, torch.arange(6), method.embed(images))
    expected = torch.nn.functional.cross_entropy(scores, labels)
    loss = method.batch_loss(head, images, labels)
    torch.testing.assert_close(loss.value, expected, rtol=1e-4, atol=1e-5)
    loss.value.backward()
    assert method.classifier.alpha.grad is None
    assert method.classifier.scale.scale is not None
    assert method.classifier.scale.scale.grad is not None
    assert head.maps.grad is not None


def naive_overlap(rows: Tensor, labels: Tensor, norm: str) -> Tensor:
    rows = rows / (rows.norm() if norm == "global" else rows.norm(dim=-1, keepdim=True))
    classes = [rows[labels == label].flatten(0, 1) for label in range(int(labels.max()) + 1)]
    pairs = [(a, b) for i, a in enumerate(classes) for b in classes[i + 1 :]]
    return torch.stack([((a @ b.T) ** 2).sum() for a, b in pairs]).sum()


@pytest.mark.parametrize("norm", ["global", "rows"])
def test_the_auxiliary_term_equals_loops(norm: str, generator: torch.Generator) -> None:
    rows = torch.randn(6, 4, 3, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 2, 1, 1, 0, 1])
    torch.testing.assert_close(class_overlap(rows, labels, norm), naive_overlap(rows, labels, norm))  # type: ignore[arg-type]


def test_the_auxiliary_term_is_bounded() -> None:
    """With the norm of the whole support it is at most 1/2 · (1 - 1/way), for classes along one direction."""
    rows = torch.ones(4, 2, 3, dtype=torch.float64)
    assert float(class_overlap(rows, torch.arange(4), "global")) == pytest.approx(0.5 * (1 - 1 / 4))
    apart = torch.eye(4, dtype=torch.float64).unsqueeze(1)
    assert float(class_overlap(apart, torch.arange(4), "rows")) == 0


def test_the_loss_of_an_episode_has_the_auxiliary_term(generator: torch.Generator) -> None:
    images = torch.rand(8, 3, 16, 16, generator=generator)
    episode = TrainingEpisode(images, torch.tensor([0, 1]), torch.tensor([0, 1, 0, 1, 0, 1]), torch.tensor([3, 4]))
    plain, weighted = (create(auxiliary_weight=weight).episode_loss(episode) for weight in (0.0, 0.5))
    torch.testing.assert_close(weighted.value, plain.value + 0.5 * weighted.numbers["auxiliary"])
    assert weighted.numbers["auxiliary"] > 0
    assert create(dummy_scale=0.1).head(6).maps.std() < 0.15
    with pytest.raises(ValueError, match="auxiliary_norm must be"):
        create(auxiliary_norm="columns")
