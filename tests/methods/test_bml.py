"""The losses of BML against naive twins, and its two views."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from deepbdc.backbones import create_backbone
from deepbdc.data.loading import load_dataset
from deepbdc.errors import UserError
from deepbdc.methods.bml import BML, EpisodesInTime, TwoViews, elastic_margins, mutual_divergence
from deepbdc.pooling import PowerFlatten
from deepbdc.preprocessing import Preprocessing
from deepbdc.stages import AugmentedImages, EpisodeSettings, Process, TrainingEpisode


def method(**options: float) -> BML:
    torch.manual_seed(0)
    backbone = create_backbone("conv4", width=0.125, removed_downsamplings=2)
    return BML(backbone, preprocessing=Preprocessing(16, 16), **options).double().eval()  # type: ignore[arg-type]


@pytest.fixture
def images(generator: torch.Generator) -> Tensor:
    return torch.rand(8, 3, 16, 16, generator=generator, dtype=torch.float64)


def naive_margin(distances: list[float], label: int, largest: float) -> float:
    exponents = [math.exp(-d) for d in distances]
    wrong = [place for place in range(len(distances)) if place != label]
    nearest = min(wrong, key=lambda place: distances[place])
    if exponents[label] / sum(exponents) > 0.5 or exponents[nearest] / sum(exponents) > 0.5:
        return 0.0
    return largest / (1 + math.exp(-0.1 * (distances[label] - distances[nearest])))


def test_margins_are_the_formula(generator: torch.Generator) -> None:
    distances = 2 * torch.rand(40, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (40,), generator=generator)
    found = elastic_margins(distances, labels, 3.0)
    expected = [naive_margin(row.tolist(), int(label), 3.0) for row, label in zip(distances, labels, strict=True)]
    assert found.tolist() == pytest.approx(expected)
    assert 0 < sum(value == 0 for value in expected) < 40


def naive_divergence(one: Tensor, other: Tensor, temperature: float) -> Tensor:
    total = torch.zeros((), dtype=one.dtype)
    for a, b in zip(one, other, strict=True):
        p, q = (a / temperature).softmax(0), (b / temperature).softmax(0)
        total = total + sum(x * (x / y).log() + y * (y / x).log() for x, y in zip(p, q, strict=True))
    return temperature**2 * total / len(one)


@pytest.mark.parametrize("passed", [0.0, 0.5])
def test_the_loss_is_the_formula(passed: float, images: Tensor) -> None:
    made = method(global_weight=1.5, mutual_weight=0.25, mutual_temperature=3.0)
    head = made.head(6).double()
    support_labels, query_labels = torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 2, 1])
    episode = TrainingEpisode(images, support_labels, query_labels, torch.tensor([4, 2, 0]))
    loss = made.mutual_loss(head, episode, passed)
    backbone = made.embedding.backbone
    trunk = backbone.trunk(images)
    whole, parts = backbone.views.first(trunk), backbone.views.second(trunk)  # (8, 8, 4, 4)
    assert whole.shape == (8, 8, 4, 4)
    labels = torch.tensor([4, 2, 2, 0, 4, 2, 0, 2])
    of_global, of_local = [], []
    prototypes = [parts[[0]].mean(dim=(0, 2, 3)), parts[[1, 2]].mean(dim=(0, 2, 3)), parts[[3]].mean(dim=(0, 2, 3))]
    for row in range(4):
        for column in range(4):
            of_global += [cross_entropy(head(whole[n, :, row, column]), labels[n]) for n in range(8)]
            for n, label in enumerate(query_labels, start=4):
                distances = torch.stack([((parts[n, :, row, column] - p) ** 2).sum() for p in prototypes])
                distances[label] = distances[label] + naive_margin(distances.tolist(), int(label), passed * 5.5)
                of_local.append(cross_entropy(-distances, label))
    mutual = naive_divergence(whole.mean(dim=(2, 3)), parts.mean(dim=(2, 3)), 3.0)
    expected = 1.5 * torch.stack(of_global).mean() + torch.stack(of_local).mean() + 0.25 * mutual
    torch.testing.assert_close(loss.value, expected)
    assert loss.numbers.keys() == {"accuracy", "global_accuracy", "global", "local", "mutual"}


def test_the_views_learn_from_each_other(generator: torch.Generator) -> None:
    one, other = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64).unbind()
    one, other = one.requires_grad_(), other.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: mutual_divergence(a, b, 4.0), (one, other))


def test_scores_are_the_sum_of_those_of_both_views(images: Tensor) -> None:
    made = method()
    rows = made.embed(images)
    maps = made.embedding.backbone(images).clamp(min=0).sqrt()
    labels = torch.tensor([0, 0, 1])
    scores = made.classify(rows[:3], labels, rows[3:])
    for query in range(5):
        for c, members in enumerate(([0, 1], [2])):
            of_views = 0.0
            for view in maps.chunk(2, dim=1):
                of_views -= ((view[3 + query] - view[members].mean(dim=0)) ** 2).sum().item()
            assert scores[query, c].item() == pytest.approx(of_views, rel=1e-5)


def test_a_power_of_zero_has_a_gradient() -> None:
    maps = torch.tensor([[[[0.0, -1.0, 4.0]]]], requires_grad=True)
    found = PowerFlatten(1, 1, 3)(maps)
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.0, 2.0]]), atol=1e-5, rtol=0)
    found.sum().backward()
    assert maps.grad is not None
    assert bool(maps.grad.isfinite().all())
    with pytest.raises(UserError, match="power must be above 0"):
        PowerFlatten(1, 1, 3, power=0)


@pytest.mark.parametrize(("name", "blocks"), [("conv4", 1), ("resnet12", 1), ("resnet18", 2)])
def test_the_last_blocks_exist_twice(name: str, blocks: int) -> None:
    torch.manual_seed(0)
    backbone = create_backbone(name, width=0.1)
    channels, shared = backbone.out_channels, sum(value.numel() for value in backbone.parameters())
    views = TwoViews(backbone, blocks).eval()
    images = torch.rand(2, 3, 32, 32)
    maps = views(images)
    assert maps.shape[1] == 2 * channels == views.out_channels
    torch.testing.assert_close(maps[:, :channels], backbone.eval()(images))
    assert not torch.allclose(maps[:, :channels], maps[:, channels:])
    own = sum(value.numel() for value in views.views.second.parameters())
    assert sum(value.numel() for value in views.parameters()) == shared + own


def test_a_backbone_needs_blocks() -> None:
    with pytest.raises(UserError, match="branch_blocks must be 1 to 3"):
        TwoViews(create_backbone("conv4"), 4)
    with pytest.raises(UserError, match="blocks"):
        TwoViews(create_backbone("efficientnet_lite0", pretrained=False))


def test_an_episode_knows_its_time(tiny_data: Path) -> None:
    images = AugmentedImages(load_dataset(tiny_data, "train"), Preprocessing(16, 16), "none")
    batches = EpisodesInTime(images, EpisodeSettings(epochs=4, episodes=2, way=3, query=2), "meta", 0, Process())
    assert [float(batches.load(epoch, 1, 0)[-1]) for epoch in range(4)] == [0, 0.25, 0.5, 0.75]
    assert len(batches.load(0, 0, 0)) == 5
