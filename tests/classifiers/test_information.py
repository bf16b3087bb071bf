"""TIM against loops, against gradients, and on queries that tell where the classes are."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from deepbdc.classifiers.base import membership
from deepbdc.classifiers.information import InformationClassifier
from deepbdc.classifiers.prototype import class_means
from tests.classifiers.conftest import MakeEpisodes

TAU, LAMBDA, ALPHA = 15.0, 0.1, 0.1


def naive_predictions(images: list[Tensor], weights: list[Tensor]) -> list[list[float]]:
    found = []
    for z in images:
        logits = [-TAU / 2 * float((z - w).square().sum()) for w in weights]
        total = sum(math.exp(logit) for logit in logits)
        found.append([math.exp(logit) / total for logit in logits])
    return found


def naive_adm(support: Tensor, labels: Tensor, query: Tensor, iterations: int) -> Tensor:
    """Class weights of one episode."""
    s, z = [x / x.norm() for x in support], [x / x.norm() for x in query]
    y, way = labels.tolist(), int(labels.max()) + 1
    weights = []
    for c in range(way):
        own = [x for x, label in zip(s, y, strict=True) if label == c]
        weights.append(sum(own, torch.zeros_like(s[0])) / len(own))
    small, ratio = LAMBDA / (1 + ALPHA), len(s) / len(z)
    for _ in range(iterations):
        of_support, of_query = naive_predictions(s, weights), naive_predictions(z, weights)
        sums = [sum(p[c] ** (1 + ALPHA) for p in of_query) for c in range(way)]
        latent = []
        for p in of_query:
            raw = [p[c] ** (1 + ALPHA) / math.sqrt(sums[c]) for c in range(way)]
            latent.append([value / sum(raw) for value in raw])
        updated = []
        for c in range(way):
            w, above, below = weights[c], torch.zeros_like(s[0]), 0.0
            for x, label, p in zip(s, y, of_support, strict=True):
                above = above + small * ((label == c) * x + p[c] * (w - x))
                below += small * (label == c)
            for x, q, p in zip(z, latent, of_query, strict=True):
                above = above + ratio * (q[c] * x + p[c] * (w - x))
                below += ratio * q[c]
            updated.append(above / below)
        weights = updated
    return torch.stack(weights)


def naive_loss(weights: Tensor, support: Tensor, labels: Tensor, query: Tensor) -> Tensor:
    """The loss of one episode, for normalised images."""

    def predictions(x: Tensor) -> Tensor:
        return torch.softmax(torch.stack([-TAU / 2 * (x - w).square().sum() for w in weights]), dim=0)

    total = torch.zeros(()).to(weights)
    for x, label in zip(support, labels.tolist(), strict=True):
        total = total - LAMBDA * predictions(x)[label].log() / len(support)
    mean = torch.zeros(len(weights)).to(weights)
    for x in query:
        p = predictions(x)
        mean = mean + p / len(query)
        total = total - ALPHA * (p * p.log()).sum() / len(query)
    return total + (mean * mean.log()).sum()


def scores_of(weights: Tensor, query: Tensor) -> Tensor:
    return torch.stack([torch.stack([-TAU / 2 * (x / x.norm() - w).square().sum() for w in weights]) for x in query])


@pytest.mark.parametrize("shots", [[1, 1, 1], [3, 3], [1, 4, 2]])
def test_adm_equals_loops(shots: list[int], make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes(shots, 6, episodes=3, dtype=torch.float64)
    scores = InformationClassifier(iterations=10)(support, labels, query)
    for place in range(3):
        weights = naive_adm(support[place], labels[place], query[place], 10)
        torch.testing.assert_close(scores[place], scores_of(weights, query[place]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shots", [[1, 1, 1], [1, 4, 2]])
def test_gd_equals_adam_on_one_episode_after_the_other(shots: list[int], make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes(shots, 6, episodes=2, dtype=torch.float64)
    classifier = InformationClassifier("gd", iterations=5, learning_rate=1e-2)
    with torch.no_grad():  # as the evaluation calls it
        scores = classifier(support, labels, query)
    for place in range(2):
        s, q = (normalize(part[place], dim=-1) for part in (support, query))
        weights = class_means(s.unsqueeze(0), labels[place : place + 1], len(shots))[0].requires_grad_()
        optimiser = torch.optim.Adam([weights], lr=1e-2)
        for _ in range(5):
            optimiser.zero_grad()
            naive_loss(weights, s, labels[place], q).backward()
            optimiser.step()
        torch.testing.assert_close(scores[place], scores_of(weights.detach(), query[place]), rtol=1e-9, atol=1e-9)


def test_loss_and_its_gradient(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([1, 2], 4, episodes=2, queries=5, dtype=torch.float64)
    support, query = normalize(support, dim=-1), normalize(query, dim=-1)
    classifier, targets = InformationClassifier(), membership(labels, 2, torch.float64)
    weights = class_means(support, labels, 2).requires_grad_()
    for place, value in enumerate(classifier.loss(weights, support, targets, query)):
        torch.testing.assert_close(value, naive_loss(weights[place], support[place], labels[place], query[place]))
    assert torch.autograd.gradcheck(lambda w: classifier.loss(w, support, targets, query), weights)


@pytest.mark.parametrize("solver", ["adm", "gd"])
def test_queries_move_the_weights_to_their_classes(solver: str) -> None:
    """The support image of class 0 is odd; the queries show two groups of equal size."""
    generator = torch.Generator().manual_seed(0)
    angles = torch.cat([torch.full((10,), 0.0), torch.full((10,), 70.0)]) + 8 * torch.randn(20, generator=generator)
    angles = torch.cat([torch.tensor([-45.0, 42.0]), angles]).double().deg2rad()
    points = torch.stack([angles.cos(), angles.sin()], dim=1).unsqueeze(0)
    support, query, labels = points[:, :2], points[:, 2:], torch.tensor([[0, 1]])
    truth = torch.tensor([0] * 10 + [1] * 10)
    nearest = class_means(support, labels, 2)
    before = (torch.cdist(query, nearest)[0].argmin(dim=-1) == truth).double().mean()
    classifier = InformationClassifier(solver, learning_rate=1e-2 if solver == "gd" else 1e-4)  # type: ignore[arg-type]
    after = (classifier(support, labels, query)[0].argmax(dim=-1) == truth).double().mean()
    assert before < 0.9
    assert after == 1


def test_no_queries_and_wrong_options(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([1, 1], 4)
    assert InformationClassifier()(support, labels, query[:, :0]).shape == (1, 0, 2)
    assert InformationClassifier().transductive
    assert InformationClassifier().assumes_balanced_queries
    for options in ({"solver": "newton"}, {"iterations": 0}, {"temperature": 0.0}, {"conditional_weight": -1.0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            InformationClassifier(**options)  # type: ignore[arg-type]
