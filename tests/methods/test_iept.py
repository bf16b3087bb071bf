"""The loss of IEPT against a naive twin, and the embedding of four turns."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from deepbdc.backbones import create_backbone
from deepbdc.errors import UserError
from deepbdc.methods.iept import IEPT, disagreement
from deepbdc.preprocessing import Preprocessing
from deepbdc.stages import TrainingEpisode
from deepbdc.stages.losses import RotationHead, feature_count


def method(**options: float) -> IEPT:
    torch.manual_seed(0)
    backbone = create_backbone("conv4", width=0.125, removed_downsamplings=2)
    return IEPT(backbone, preprocessing=Preprocessing(16, 16), heads=2, temperature=3.0, **options).double().eval()  # type: ignore[arg-type]


@pytest.fixture
def images(generator: torch.Generator) -> Tensor:
    return torch.rand(8, 3, 16, 16, generator=generator, dtype=torch.float64)


def test_an_image_is_represented_by_its_four_turns(images: Tensor) -> None:
    made = method()
    rows = made.embed(images)
    assert rows.shape == (8, 32)
    assert (made.embedding.out_features, feature_count(made)) == (32, 8)
    for turn in range(4):
        upright = made.features(images.rot90(turn, (2, 3)))
        torch.testing.assert_close(rows[:, 8 * turn : 8 * turn + 8], upright)
    assert made.head(6).weight.shape == (6, 8)


def test_each_turn_has_its_own_statistics_of_batch_norm(images: Tensor) -> None:
    made = method().train()
    rows = made.embed(images)
    alone = method().train()
    torch.testing.assert_close(rows[:, 16:24], alone.features(images.rot90(2, (2, 3))))


def naive_disagreement(scores: Tensor) -> float:
    """Mean over views, queries and classes of p log(p / p̄)."""
    total, views, queries, way = 0.0, *scores.shape
    mean = scores.mean(dim=0)
    for view in range(views):
        for query in range(queries):
            p, average = scores[view, query].softmax(0).tolist(), mean[query].softmax(0).tolist()
            total += sum(a * math.log(a / b) for a, b in zip(p, average, strict=True)) / way
    return total / (views * queries)


def test_the_loss_is_the_formula(images: Tensor) -> None:
    made = method(auxiliary_weight=0.3, instance_weight=0.5, episode_weight=0.7)
    turns = RotationHead(8, relu=True).double()
    support_labels, query_labels = torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0, 1, 1])
    episode = TrainingEpisode(images, support_labels, query_labels, torch.tensor([4, 2]))
    loss = made.pretext_loss(turns, episode)
    rotations, auxiliary, by_turn = [], [], []
    for turn in range(4):
        rows = made.features(images.rot90(turn, (2, 3)))
        rotations.append(cross_entropy((turns.linear(rows)).clamp(min=0), torch.full((8,), turn)))
        prototypes = torch.stack([rows[0], (rows[1] + rows[2]) / 2])
        scores = -((rows[3:, None] - prototypes) ** 2).sum(dim=2) / 3
        auxiliary.append(cross_entropy(scores, query_labels))
        by_turn.append(scores)
    fused = made.classifier.fused(made.embed(images))
    prototypes = torch.stack([fused[0], (fused[1] + fused[2]) / 2])
    integrated = cross_entropy(-((fused[3:, None] - prototypes) ** 2).sum(dim=2) / 3, query_labels)
    expected = integrated + 0.3 * sum(auxiliary) / 4 + 0.5 * sum(rotations) / 4
    expected = expected + 0.7 * naive_disagreement(torch.stack(by_turn))
    torch.testing.assert_close(loss.value, expected)
    assert loss.numbers.keys() == {"accuracy", "rotation", "rotation_accuracy", "auxiliary", "disagreement"}


def test_the_episode_level_term(generator: torch.Generator) -> None:
    scores = torch.randn(4, 3, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    assert disagreement(scores).item() == pytest.approx(naive_disagreement(scores.detach()))
    assert torch.autograd.gradcheck(disagreement, scores)
    assert disagreement(scores[:1].expand(4, -1, -1)).item() == pytest.approx(0, abs=1e-12)


def test_a_negative_weight() -> None:
    with pytest.raises(UserError, match="must not be negative"):
        method(episode_weight=-1.0)
