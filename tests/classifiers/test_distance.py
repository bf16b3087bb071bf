"""The scaled distance against loops, and its gradient."""

import math
from typing import Literal

import pytest
import torch

from deepbdc.classifiers.distance import DistanceClassifier
from tests.classifiers.conftest import MakeEpisodes


@pytest.mark.parametrize("distance", ["euclidean", "squared"])
@pytest.mark.parametrize("shots", [[1, 1], [1, 4, 2]])
def test_equals_loops(distance: Literal["euclidean", "squared"], shots: list[int], make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes(shots, 5, episodes=2, dtype=torch.float64)
    made = DistanceClassifier(0.5, distance)
    scores = made(support, labels, query).detach()
    for episode in range(2):
        for row, q in enumerate(query[episode].tolist()):
            for label in range(len(shots)):
                own = support[episode][labels[episode] == label].tolist()
                mean = [sum(values) / len(own) for values in zip(*own, strict=True)]
                length = math.dist(q, mean)
                expected = -0.5 * (length if distance == "euclidean" else length**2)
                assert float(scores[episode, row, label]) == pytest.approx(expected)
    single = made(support.float(), labels, query.float()).detach()
    torch.testing.assert_close(single.double(), scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("distance", ["euclidean", "squared"])
def test_gradients(distance: Literal["euclidean", "squared"], make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([1, 2], 3, queries=2, dtype=torch.float64)
    made = DistanceClassifier(0.5, distance).double()
    values = (support.requires_grad_(), query.requires_grad_())
    assert torch.autograd.gradcheck(lambda support, query: made(support, labels, query), values)


def test_a_query_at_a_mean_has_a_finite_gradient() -> None:
    support = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    query = support.detach()[:1].clone().requires_grad_()
    scores = DistanceClassifier()(support, torch.tensor([0, 1]), query)
    scores.sum().backward()
    assert query.grad is not None
    assert query.grad.isfinite().all()
    with pytest.raises(ValueError, match="distance must be one of euclidean, squared"):
        DistanceClassifier(distance="cosine")  # type: ignore[arg-type]
