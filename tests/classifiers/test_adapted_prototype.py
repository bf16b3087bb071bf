"""Self-attention and adapted prototypes against loops, their symmetries, and gradcheck."""

import math

import pytest
import torch
from torch import Tensor

from deepbdc.classifiers._attention import SelfAttention, attend
from deepbdc.classifiers.adapted_prototype import AdaptedPrototypeClassifier
from tests.classifiers.conftest import MakeEpisodes


def naive_attention(layer: SelfAttention, rows: Tensor) -> Tensor:
    """One set ``(n, d)``, in evaluation mode."""
    weights = {name: value.detach().double() for name, value in layer.named_parameters()}
    adapted = []
    for row in rows:
        scores = [
            float((weights["query.weight"] @ row) @ (weights["key.weight"] @ other)) / math.sqrt(len(row))
            for other in rows
        ]
        total = sum(math.exp(score) for score in scores)
        read = sum(
            math.exp(score) / total * (weights["value.weight"] @ other)
            for score, other in zip(scores, rows, strict=True)
        )
        added = row + weights["output.weight"] @ read + weights["output.bias"]
        centred = added - added.mean()
        normal = centred / (centred.square().mean() + layer.norm.eps).sqrt()
        adapted.append(weights["norm.weight"] * normal + weights["norm.bias"])
    return torch.stack(adapted)


def classifier(features: int, **options: float) -> AdaptedPrototypeClassifier:
    torch.manual_seed(0)
    made = AdaptedPrototypeClassifier(features, **options).eval()
    for value in made.parameters():  # biases and norms that are not 0 and 1
        torch.nn.init.normal_(value, std=0.5)
    return made


@pytest.mark.parametrize("shots", [[1, 1, 1], [2, 2], [1, 4, 2]])
def test_equals_loops(shots: list[int], make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes(shots, 6, episodes=2, dtype=torch.float64)
    made = classifier(6, temperature=3.0)
    scores = made(support, labels, query)
    for episode in range(2):
        means = torch.stack([support[episode][labels[episode] == label].mean(0) for label in range(len(shots))])
        prototypes = naive_attention(made.attention, means)
        expected = [[-float((q - p).square().sum()) / 3 for p in prototypes] for q in query[episode]]
        torch.testing.assert_close(scores[episode], torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(made(support.float(), labels, query.float()).double(), scores, rtol=1e-4, atol=1e-4)


def test_the_rule_gives_the_same_scores(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([2, 1, 3], 5, dtype=torch.float64)
    made = classifier(5)
    scores, by_rule = made(support, labels, query), made.rule(support, labels, 3)(query)
    torch.testing.assert_close(by_rule - by_rule.mean(-1, keepdim=True), scores - scores.mean(-1, keepdim=True))


def test_entries_that_are_absent_get_no_weight(generator: torch.Generator) -> None:
    rows = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    present = torch.tensor([[True, True, True, False], [True, False, True, True]])
    found = attend(rows, rows, rows, present)
    for place in range(2):
        own = rows[place][present[place]]
        torch.testing.assert_close(found[place], attend(rows[place], own, own))


def test_dropout_is_for_training_only(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([1, 1, 1], 6)
    made = classifier(6)
    assert torch.equal(made(support, labels, query), made(support, labels, query))
    for options in ({"attention_dropout": 0.9, "dropout": 0.0}, {"attention_dropout": 0.0, "dropout": 0.9}):
        made = classifier(6, **options).train()
        assert not torch.equal(made(support, labels, query), made(support, labels, query))
    with pytest.raises(ValueError, match="dropout must be at least 0 and below 1, got 1"):
        classifier(6, dropout=1.0)


def test_gradients(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([1, 2], 3, queries=2, dtype=torch.float64)
    made = classifier(3).double()
    weights = dict(made.named_parameters())

    def scores(support: Tensor, query: Tensor, *values: Tensor) -> Tensor:
        given = dict(zip(weights, values, strict=True))
        result: Tensor = torch.func.functional_call(made, given, (support, labels, query))
        return result

    values = (support, query, *weights.values())
    assert torch.autograd.gradcheck(scores, tuple(value.detach().requires_grad_() for value in values))
