"""Class vectors fitted to real and virtual images: against loops, and what the virtual images are."""

import math

import pytest
import torch
from torch import Tensor

from deepbdc.classifiers.variance_transfer import VarianceTransferClassifier
from tests.classifiers.conftest import MakeEpisodes


def classifier(features: int, **options: float) -> VarianceTransferClassifier:
    torch.manual_seed(0)
    made = VarianceTransferClassifier(features, **options)
    for value in made.transfer.parameters():
        torch.nn.init.normal_(value, std=0.5)
    return made.double()


def naive_scores(made: VarianceTransferClassifier, support: Tensor, labels: Tensor, query: Tensor) -> Tensor:
    """One episode, image by image; autograd takes the gradient."""
    unit = torch.stack([row / row.norm() for row in support])
    way = int(labels.max()) + 1
    means = [unit[labels == label].mean(0) for label in range(way)]
    real = list(zip(unit, labels.tolist(), strict=True))
    virtual = []
    for row, source in real:
        for target in range(way):
            if target != source and int((labels == source).sum()) > 1:
                raw = made.transfer(torch.cat([means[source], means[target]]))
                factors = torch.stack([2 / (1 + torch.exp(-value)) for value in raw])
                virtual.append((means[target] + factors * (row - means[source]), target))
    scale = made.scale.factor
    vectors = torch.stack(means).detach()

    def loss(vectors: Tensor, images: list[tuple[Tensor, int]]) -> Tensor:
        found = [(scale * vectors @ row, label) for row, label in images]
        return torch.stack([torch.logsumexp(scores, 0) - scores[label] for scores, label in found]).mean()

    share = made.virtual if virtual else 0.0
    for _ in range(made.steps):
        vectors = vectors.detach().requires_grad_()
        total = (1 - share) * loss(vectors, real)
        if virtual:
            total = total + share * loss(vectors, virtual)
        (gradient,) = torch.autograd.grad(total, vectors, retain_graph=True)
        vectors = vectors - made.rate * gradient
    return torch.stack([scale * vectors @ (row / row.norm()) for row in query]).detach()


@pytest.mark.parametrize("shots", [[1, 1, 1], [2, 2], [1, 4, 2]])
def test_equals_loops(shots: list[int], make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes(shots, 6, episodes=2, dtype=torch.float64)
    made = classifier(6, steps=3, rate=0.3, virtual=0.4, hidden=5, scale=4.0)
    scores = made(support, labels, query)
    for episode in range(2):
        expected = naive_scores(made, support[episode], labels[episode], query[episode])
        torch.testing.assert_close(scores[episode], expected)
    torch.testing.assert_close(made.rule(support, labels, len(shots))(query), scores, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(made(support.float(), labels, query.float()).double(), scores, rtol=1e-3, atol=1e-4)


def test_at_first_variations_are_transferred_as_they_are() -> None:
    made = VarianceTransferClassifier(2)
    support = torch.tensor([[[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]]])
    images, exists = made.virtual_images(support, torch.tensor([[0, 0, 1]]), 2)
    assert images[0, :2, 1].tolist() == [[-1, 5], [1, 5]]
    assert exists[0].tolist() == [[False, True], [False, True], [False, False]]  # class 1 has one image: no variation


def test_with_one_shot_there_are_no_virtual_images(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([1, 1, 1], 4, dtype=torch.float64)
    scores = [classifier(4, virtual=virtual)(support, labels, query) for virtual in (0.0, 0.9)]
    torch.testing.assert_close(*scores)


def test_gradients_reach_the_transfer(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([2, 2], 3, dtype=torch.float64)
    made = classifier(3, steps=2, hidden=2)
    assert torch.autograd.gradcheck(lambda s, q: made(s, labels, q), [support.requires_grad_(), query.requires_grad_()])
    made(support, labels, query).square().sum().backward()
    assert all(value.grad is not None and math.isfinite(float(value.grad.sum())) for value in made.parameters())
    assert float(made.transfer[0].weight.grad.abs().sum()) > 0


def test_wrong_values() -> None:
    with pytest.raises(ValueError, match="virtual must be at least 0 and below 1"):
        VarianceTransferClassifier(3, virtual=1.0)
