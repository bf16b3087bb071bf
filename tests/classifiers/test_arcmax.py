"""The cosine classifier with a margin against loops and a plain Adam, and the margin by hand."""

import math

import pytest
import torch
from torch import Tensor

from deepbdc.classifiers.arcmax import ArcmaxClassifier, arcmax
from tests.classifiers.conftest import MakeEpisodes


def naive_vectors(made: ArcmaxClassifier, support: Tensor, labels: Tensor) -> Tensor:
    """Fit one episode ``(s, d)``: the steps of Adam written out."""
    unit = torch.stack([row / row.norm() for row in support])
    start = [unit[labels == label].mean(0) for label in range(int(labels.max()) + 1)]
    vectors = torch.stack(start).requires_grad_()
    mean, square = torch.zeros_like(vectors), torch.zeros_like(vectors)
    for step in range(1, made.steps + 1):
        losses = []
        for row, label in zip(unit, labels.tolist(), strict=True):
            scores = []
            for place, vector in enumerate(vectors):
                cosine = row @ vector / vector.norm()
                if place == label and cosine > 0:
                    cosine = torch.cos(torch.acos(cosine) + made.margin)
                scores.append(made.scale * cosine)
            losses.append(torch.logsumexp(torch.stack(scores), 0) - scores[label])
        (gradient,) = torch.autograd.grad(torch.stack(losses).mean(), vectors)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        change = (mean / (1 - 0.9**step)) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
        vectors = (vectors - made.rate * change).detach().requires_grad_()
    return vectors.detach()


@pytest.mark.parametrize("shots", [[2, 2, 2], [2, 4, 3]])
def test_equals_loops(shots: list[int], make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes(shots, 6, episodes=2, dtype=torch.float64)
    made = ArcmaxClassifier(steps=4, rate=0.02, scale=3.0, margin=0.2)
    scores = made(support, labels, query)
    for episode in range(2):
        vectors = naive_vectors(made, support[episode], labels[episode])
        expected = [[3 * float(q @ w / q.norm() / w.norm()) for w in vectors] for q in query[episode]]
        torch.testing.assert_close(scores[episode], torch.tensor(expected, dtype=torch.float64), rtol=1e-4, atol=1e-5)
    again = made.rule(support, labels, len(shots))(query)
    torch.testing.assert_close(again, scores)


def test_the_margin_makes_the_angle_of_the_right_class_larger() -> None:
    cosines = torch.tensor([[math.cos(0.5), math.cos(2.0)], [math.cos(2.0), math.cos(0.5)]], dtype=torch.float64)
    right = torch.tensor([[True, False], [True, False]])
    found = arcmax(cosines, right, scale=2.0, margin=0.1)
    expected = [[2 * math.cos(0.6), 2 * math.cos(2.0)], [2 * math.cos(2.0), 2 * math.cos(0.5)]]  # only below 90 degrees
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_the_margin_has_a_finite_gradient_at_an_angle_of_0() -> None:
    cosines = torch.ones(1, 2, requires_grad=True)
    arcmax(cosines, torch.tensor([[True, False]]), 5.0, 0.1).sum().backward()
    assert cosines.grad is not None
    assert cosines.grad.isfinite().all()


def test_more_steps_lower_the_loss(make_episodes: MakeEpisodes) -> None:
    support, labels, _ = make_episodes([3, 3], 5, dtype=torch.float64)
    losses = []
    for steps in (1, 300):
        scores = ArcmaxClassifier(steps=steps)(support, labels, support)
        losses.append(torch.nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten()).item())
    assert losses[1] < losses[0]


def test_wrong_values() -> None:
    with pytest.raises(ValueError, match="margin must be at least 0 and below"):
        ArcmaxClassifier(margin=2.0)
    with pytest.raises(ValueError, match="steps must be a positive number"):
        ArcmaxClassifier(steps=0)
