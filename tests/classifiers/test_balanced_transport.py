"""PT-MAP against loops, and its transport against POT."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from deepbdc.classifiers.balanced_transport import BalancedTransportClassifier, balanced_transport, power_transformed
from tests.classifiers.conftest import MakeEpisodes


def naive_transform(images: Tensor) -> list[Tensor]:
    rooted = [torch.stack([math.copysign(1, v) * (abs(v) + 1e-6).sqrt() for v in x]) for x in images]
    unit = [x / x.norm() for x in rooted]
    mean = sum(unit, torch.zeros_like(unit[0])) / len(unit)
    return [(x - mean) / (x - mean).norm() for x in unit]


def naive_sinkhorn(query: list[Tensor], centres: list[Tensor]) -> list[list[float]]:
    """Rows and columns scaled in turn, until the rows are right."""
    plan = [[math.exp(-10 * float((x - mu).square().sum())) for mu in centres] for x in query]
    share = len(query) / len(centres)
    for _ in range(10_000):
        plan = [[value / sum(row) for value in row] for row in plan]
        columns = [sum(row[c] for row in plan) for c in range(len(centres))]
        plan = [[row[c] * share / columns[c] for c in range(len(centres))] for row in plan]
        if max(abs(sum(row) - 1) for row in plan) <= 1e-13:
            break
    return plan


def naive(support: Tensor, labels: Tensor, query: Tensor, step: float) -> Tensor:
    """The transport of one episode."""
    s, q, y = naive_transform(support), naive_transform(query), labels.tolist()
    way = int(labels.max()) + 1
    own = [[x for x, label in zip(s, y, strict=True) if label == c] for c in range(way)]
    centres = [sum(images, torch.zeros_like(s[0])) / len(images) for images in own]
    for _ in range(20):
        plan = naive_sinkhorn(q, centres)
        for c in range(way):
            total = sum(own[c], torch.zeros_like(s[0]))
            for x, row in zip(q, plan, strict=True):
                total = total + row[c] * x
            mean = total / (len(own[c]) + sum(row[c] for row in plan))
            centres[c] = centres[c] + step * (mean - centres[c])
    return torch.tensor(naive_sinkhorn(q, centres), dtype=torch.float64)


@pytest.mark.parametrize("step", [0.2, 0.4])
@pytest.mark.parametrize("shots", [[1, 1, 1], [3, 3], [1, 4, 2]])
def test_equals_loops(shots: list[int], step: float, make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes(shots, 6, episodes=3, dtype=torch.float64)
    assert bool((query < 0).any())
    scores = BalancedTransportClassifier(step=step, tolerance=1e-12)(support, labels, query)
    for place in range(3):
        expected = naive(support[place], labels[place], query[place], step)
        torch.testing.assert_close(scores[place].exp(), expected, rtol=1e-8, atol=1e-12)


def test_transport_equals_that_of_pot() -> None:
    ot = pytest.importorskip("ot")
    generator = torch.Generator().manual_seed(0)
    costs = torch.rand(4, 12, 3, generator=generator, dtype=torch.float64)
    plans = balanced_transport(-10 * costs, 1e-11, 1000).exp()
    for plan, cost in zip(plans, costs, strict=True):
        expected = ot.sinkhorn(np.ones(12), np.full(3, 4.0), cost.numpy(), reg=0.1, stopThr=1e-13)
        np.testing.assert_allclose(plan, expected, rtol=1e-9)


def test_every_class_gets_its_share_and_every_query_is_used(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([2, 2, 2], 6, episodes=2, queries=7)
    plans = BalancedTransportClassifier()(support, labels, query).exp()
    torch.testing.assert_close(plans.sum(dim=-1), torch.ones(2, 7), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(plans.sum(dim=-2), torch.full((2, 3), 7 / 3), rtol=1e-5, atol=1e-5)


def test_a_cost_that_is_out_of_range_for_exp_is_still_finite() -> None:
    kernel = torch.tensor([[[0.0, -5000.0], [0.0, -4000.0]]], dtype=torch.float64)
    plan = balanced_transport(kernel, 1e-6, 1000)
    assert bool(plan.isfinite().all())
    torch.testing.assert_close(plan.exp().sum(dim=1), torch.ones(1, 2).double(), rtol=0, atol=1e-6)


def test_transports_far_from_balance_are_found_in_few_iterations() -> None:
    """All queries are nearest to one class; Sinkhorn's algorithm needs hundreds of iterations here."""
    generator = torch.Generator().manual_seed(0)
    costs = torch.rand(200, 75, 5, generator=generator, dtype=torch.float64)
    costs[..., 0] -= 1
    plans = balanced_transport(-20 * costs, 1e-6, 25).exp()
    torch.testing.assert_close(plans.sum(dim=1), torch.full((200, 5), 15.0).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(plans.sum(dim=2), torch.ones(200, 75).double())


def test_features_that_are_not_negative_are_transformed_as_in_the_paper() -> None:
    images = torch.rand(1, 4, 5, dtype=torch.float64)
    rooted = (images + 1e-6) ** 0.5
    unit = rooted / rooted.norm(dim=-1, keepdim=True)
    expected = unit - unit.mean(dim=1, keepdim=True)
    torch.testing.assert_close(power_transformed(images, 0.5), expected / expected.norm(dim=-1, keepdim=True))


def test_it_wins_on_balanced_queries_and_fails_on_unbalanced_ones() -> None:
    """The single support image of each class is odd. Two groups of queries are easy to see, if they are as large."""
    generator = torch.Generator().manual_seed(0)

    def accuracy(first: int, second: int) -> float:
        centres = torch.tensor([[1.0, 1.0, 0.2, 0.2], [0.2, 0.2, 1.0, 1.0]]).repeat(1, 4)
        truth = torch.tensor([0] * first + [1] * second)
        query = (centres[truth] + 0.35 * torch.randn(len(truth), 16, generator=generator)).clamp(min=0)
        support = (centres + 0.35 * torch.randn(2, 16, generator=generator)).clamp(min=0)
        scores = BalancedTransportClassifier()(support[None], torch.tensor([[0, 1]]), query[None])
        return float((scores[0].argmax(dim=-1) == truth).double().mean())

    assert accuracy(15, 15) == 1
    assert accuracy(27, 3) < 0.8  # it answers 15 times each


def test_no_queries_and_wrong_options(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([1, 1], 4)
    assert BalancedTransportClassifier()(support, labels, query[:, :0]).shape == (1, 0, 2)
    assert BalancedTransportClassifier().transductive
    assert BalancedTransportClassifier().assumes_balanced_queries
    for options in ({"power": 0.0}, {"step": 0.0}, {"step": 1.1}, {"iterations": 0}, {"regularisation": -1.0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            BalancedTransportClassifier(**options)
