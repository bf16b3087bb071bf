"""Matching networks with and without full context against loops, and gradcheck."""

import math

import pytest
import torch
from torch import Tensor

from deepbdc.classifiers.matching import MatchingClassifier
from tests.classifiers.conftest import MakeEpisodes


def naive(support: Tensor, labels: Tensor, query: Tensor, scale: float, normalise_query: bool) -> Tensor:
    """One episode of vectors."""
    way, scores = int(labels.max()) + 1, []
    for q in query:
        if normalise_query:
            q = q / q.norm()
        weights = [math.exp(scale * float(q @ x / x.norm())) for x in support]
        of_class = [sum(w for w, y in zip(weights, labels.tolist(), strict=True) if y == label) for label in range(way)]
        scores.append([math.log(weight / sum(weights)) for weight in of_class])
    return torch.tensor(scores, dtype=query.dtype)


def naive_lstm(
    x: Tensor, hidden: Tensor, cell: Tensor, weights: dict[str, Tensor], ending: str
) -> tuple[Tensor, Tensor]:
    """One step for one vector."""
    gates = weights[f"weight_ih{ending}"] @ x + weights[f"bias_ih{ending}"]
    gates = gates + weights[f"weight_hh{ending}"] @ hidden + weights[f"bias_hh{ending}"]
    enter, forget, new, leave = gates.chunk(4)
    cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def naive_context(classifier: MatchingClassifier, support: Tensor, query: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    lstm = {name: value.detach().double() for name, value in classifier.of_support.named_parameters()}
    adapted = support.clone()
    for ending, order in (("_l0", range(len(support))), ("_l0_reverse", reversed(range(len(support))))):
        hidden = cell = torch.zeros_like(support[0])
        for place in order:
            hidden, cell = naive_lstm(support[place], hidden, cell, lstm, ending)
            adapted[place] += hidden
    step = {name: value.detach().double() for name, value in classifier.of_query.named_parameters()}
    found = []
    for x in query:
        hidden, cell = x, torch.zeros_like(x)
        for _ in range(steps):
            read = torch.softmax(adapted @ hidden, dim=0) @ adapted
            hidden, cell = naive_lstm(torch.cat([x, read]), hidden, cell, step, "")
            hidden = hidden + x
        found.append(hidden)
    return adapted, torch.stack(found)


@pytest.mark.parametrize("shots", [[1, 1, 1], [3, 3], [1, 4, 2]])
@pytest.mark.parametrize("normalise_query", [True, False])
def test_equals_loops(shots: list[int], normalise_query: bool, make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes(shots, 6, episodes=2, dtype=torch.float64)
    scores = MatchingClassifier(6, 5.0, normalise_query)(support, labels, query)
    for episode in range(2):
        expected = naive(support[episode], labels[episode], query[episode], 5.0, normalise_query)
        torch.testing.assert_close(scores[episode], expected)
    torch.testing.assert_close(scores.exp().sum(dim=-1), torch.ones(2, 12, dtype=torch.float64))


@pytest.mark.parametrize("steps", [1, 3, None])
@pytest.mark.parametrize("shots", [[1, 1, 1], [1, 4, 2]])
def test_full_context_equals_loops(steps: int | None, shots: list[int], make_episodes: MakeEpisodes) -> None:
    torch.manual_seed(0)
    classifier = MatchingClassifier(6, 5.0, full_context=True, steps=steps).eval()
    support, labels, query = make_episodes(shots, 6, episodes=2, dtype=torch.float64)
    scores = classifier(support, labels, query)
    for episode in range(2):
        own = naive_context(classifier, support[episode], query[episode], steps or sum(shots))
        torch.testing.assert_close(scores[episode], naive(own[0], labels[episode], own[1], 5.0, True))
    single = classifier(support.float(), labels, query.float())
    torch.testing.assert_close(single.double(), scores, rtol=1e-4, atol=1e-4)


def test_the_support_is_read_in_a_random_order_only_in_training(make_episodes: MakeEpisodes) -> None:
    torch.manual_seed(0)
    classifier = MatchingClassifier(6, full_context=True)
    support, labels, query = make_episodes([2, 2, 2], 6)
    assert len({classifier(support, labels, query).sum().item() for _ in range(5)}) > 1
    classifier.eval()
    assert len({classifier(support, labels, query).sum().item() for _ in range(5)}) == 1


def test_a_query_far_from_a_class_has_a_finite_score() -> None:
    support = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    scores = MatchingClassifier(2, scale=500.0)(support, torch.tensor([0, 1]), support)
    assert scores.tolist() == [[0.0, -1000.0], [-1000.0, 0.0]]


@pytest.mark.parametrize("full_context", [False, True])
def test_gradients(full_context: bool, make_episodes: MakeEpisodes) -> None:
    torch.manual_seed(0)
    support, labels, query = make_episodes([1, 2], 3, queries=2, dtype=torch.float64)
    classifier = MatchingClassifier(3, 2.0, full_context=full_context, steps=2).double().eval()
    for part in (support, query):
        part.requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: classifier(a, labels, b), (support, query))
    classifier(support, labels, query)[..., 0].sum().backward()
    for name, value in classifier.named_parameters():
        assert value.grad is not None, name


def test_its_working_memory_grows_with_context() -> None:
    plain, full = (MatchingClassifier(8, full_context=full).working_memory((5, 8), (15, 8)) for full in (False, True))
    assert full > plain > 0
