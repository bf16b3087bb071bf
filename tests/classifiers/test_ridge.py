"""Ridge regression against loops, the equations of its paper, and gradcheck."""

from typing import Any

import pytest
import torch
from torch import Tensor

from deepbdc.classifiers.ridge import RidgeClassifier
from tests.classifiers.conftest import MakeEpisodes


def naive(support: Tensor, labels: Tensor, query: Tensor, penalty: float, intercept: bool, mean: bool) -> Tensor:
    """One episode: the primal system, entry by entry, with X and Y divided by √n as R2D2 states it."""
    n, way = len(support), int(labels.max()) + 1
    rows = [[*x.tolist(), 1.0] if intercept else x.tolist() for x in support]
    factor = n**-0.5 if mean else 1.0
    x = torch.tensor(rows, dtype=torch.float64) * factor
    y = torch.tensor([[float(label == c) for c in range(way)] for label in labels.tolist()], dtype=torch.float64)
    y *= factor
    size = x.shape[1]
    system = torch.zeros(size, size, dtype=torch.float64)
    right = torch.zeros(size, way, dtype=torch.float64)
    for i in range(size):
        system[i, i] += penalty
        for k in range(n):
            for j in range(size):
                system[i, j] += x[k, i] * x[k, j]
            right[i] += x[k, i] * y[k]
    weights = torch.linalg.inv(system) @ right
    scores: Tensor = query @ weights[: support.shape[1]]
    return scores + weights[-1] if intercept else scores


@pytest.mark.parametrize("features", [3, 12], ids=["primal", "dual"])
@pytest.mark.parametrize("shots", [[2, 2, 2], [1, 4, 2]])
@pytest.mark.parametrize(("intercept", "mean"), [(True, True), (False, False), (True, False)])
def test_equals_loops(
    features: int, shots: list[int], intercept: bool, mean: bool, make_episodes: MakeEpisodes
) -> None:
    support, labels, query = make_episodes(shots, features, episodes=2, queries=4, dtype=torch.float64)
    classifier = RidgeClassifier(0.7, scale=3.0, offset=0.5, intercept=intercept, mean=mean).double()
    scores = classifier(support, labels, query)
    for episode in range(2):
        expected = naive(support[episode], labels[episode], query[episode], 0.7, intercept, mean)
        torch.testing.assert_close(scores[episode], 3 * expected + 0.5)


def test_the_head_of_metaoptnet_is_the_dual_with_twice_the_labels(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([3, 3], 9, dtype=torch.float64)
    scores = RidgeClassifier(50, scale=None, intercept=False, mean=False, target=2.0)(support, labels, query)
    x, y = support[0], torch.nn.functional.one_hot(labels[0]).double()
    alpha = 2 * torch.linalg.inv(x @ x.T + 50 * torch.eye(6, dtype=torch.float64)) @ y
    torch.testing.assert_close(scores[0], query[0] @ x.T @ alpha)


@pytest.mark.parametrize("features", [2, 6], ids=["primal", "dual"])
def test_gradients(features: int, generator: torch.Generator) -> None:
    labels = torch.tensor([0, 1, 1, 2])
    rows = torch.randn(6, features, generator=generator, dtype=torch.float64, requires_grad=True)
    classifier = RidgeClassifier(0.5, scale=2.0, offset=0.0, learn_penalty=True).double()
    values = [value.detach().clone().requires_grad_() for value in classifier.parameters()]
    names = [name for name, _ in classifier.named_parameters()]

    def scores(x: Tensor, *given: Tensor) -> Tensor:
        arguments: Any = (x[:4], labels, x[4:])
        found: Tensor = torch.func.functional_call(classifier, dict(zip(names, given, strict=True)), arguments)
        return found

    assert sorted(names) == ["log_penalty", "offset", "scale.scale"]
    assert torch.autograd.gradcheck(scores, (rows, *values))


@pytest.mark.parametrize("features", [4, 40])
def test_its_rule_has_its_scores(features: int, make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([2, 5, 1], features, episodes=3)
    classifier = RidgeClassifier(2.0, scale=5.0, offset=0.0)
    rule = classifier.rule(support, labels, 3)
    assert rule.weights.requires_grad is False
    torch.testing.assert_close(rule(query), classifier(support, labels, query).detach(), rtol=1e-4, atol=1e-5)


def test_float32_keeps_its_digits(make_episodes: MakeEpisodes) -> None:
    """A small penalty and features with a large common part."""
    support, labels, query = make_episodes([5] * 5, 640, offset=10.0, dtype=torch.float64)
    exact = RidgeClassifier(0.1)(support, labels, query)
    rounded = RidgeClassifier(0.1)(support.float(), labels, query.float())
    torch.testing.assert_close(rounded.double(), exact, rtol=1e-3, atol=1e-4)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="penalty must be a positive number"):
        RidgeClassifier(penalty=0)
