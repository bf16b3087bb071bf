"""Prototypes of images that read from a support set: against loops, as ProtoNet at first, and gradcheck."""

import math

import pytest
import torch
from torch import Tensor

from deepbdc.classifiers import create_classifier
from deepbdc.classifiers.cross_episode import CrossEpisodeClassifier
from tests.classifiers.conftest import MakeEpisodes


def classifier(features: int, **options: float) -> CrossEpisodeClassifier:
    torch.manual_seed(0)
    made = CrossEpisodeClassifier(features, **options)
    torch.nn.init.normal_(made.value.weight, std=0.5)
    return made


def naive_read(made: CrossEpisodeClassifier, row: Tensor, others: Tensor) -> Tensor:
    """One image that reads from a support set, entry by entry."""
    weights = {name: value.detach().double() for name, value in made.named_parameters()}
    asked = weights["query.weight"] @ row
    scores = [float(asked @ (weights["key.weight"] @ other)) / math.sqrt(len(row)) for other in others]
    total = sum(math.exp(score) for score in scores)
    read = row.clone()
    for score, other in zip(scores, others, strict=True):
        read += math.exp(score) / total * (weights["value.weight"] @ other)
    return read


@pytest.mark.parametrize("shots", [[1, 1, 1], [2, 2], [1, 4, 2]])
def test_equals_loops(shots: list[int], make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes(shots, 6, episodes=2, dtype=torch.float64)
    made = classifier(6, temperature=3.0)
    scores = made(support, labels, query)
    for episode in range(2):
        read = torch.stack([naive_read(made, row, support[episode]) for row in support[episode]])
        means = [read[labels[episode] == label].mean(0) for label in range(len(shots))]
        asked = [naive_read(made, row, support[episode]) for row in query[episode]]
        expected = [[-float((q - p).square().sum()) / 3 for p in means] for q in asked]
        torch.testing.assert_close(scores[episode], torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(made(support.float(), labels, query.float()).double(), scores, rtol=1e-4, atol=1e-4)


def test_it_starts_as_the_nearest_prototype(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([2, 3], 5, dtype=torch.float64)
    expected = create_classifier("prototype")(support, labels, query)
    torch.testing.assert_close(CrossEpisodeClassifier(5, temperature=1.0)(support, labels, query), expected)


def test_gradients(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([1, 2], 3, dtype=torch.float64)
    made = classifier(3, temperature=2.0).double()
    inputs = [support.requires_grad_(), query.requires_grad_()]
    assert torch.autograd.gradcheck(lambda s, q: made(s, labels, q), inputs)
