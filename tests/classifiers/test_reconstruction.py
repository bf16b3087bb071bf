"""Reconstruction errors against loops with an inverse, values worked out by hand, and gradcheck."""

import math

import pytest
import torch
from torch import Tensor

from deepbdc.classifiers.reconstruction import ReconstructionClassifier

ALPHA, BETA, GAMMA = 0.3, -0.2, 1.7


def naive(support: Tensor, labels: Tensor, query: Tensor, divide: bool) -> Tensor:
    """One episode: maps ``(s, d, h, w)`` and ``(q, d, h, w)`` -> ``(q, way)``."""
    way, channels = int(labels.max()) + 1, support.shape[1]
    root = math.sqrt(channels) if divide else 1.0
    scores = torch.zeros(len(query), way, dtype=query.dtype)
    for label in range(way):
        own = [
            image.flatten(1).T / root for image, given in zip(support, labels.tolist(), strict=True) if given == label
        ]
        rows = torch.cat(own)
        penalty = len(rows) / channels * math.exp(ALPHA) + 1e-6
        inverse = torch.linalg.inv(rows @ rows.T + penalty * torch.eye(len(rows), dtype=rows.dtype))
        for place, image in enumerate(query):
            positions = image.flatten(1).T / root
            for vector in positions:
                rebuilt = math.exp(BETA) * vector @ rows.T @ inverse @ rows
                scores[place, label] -= GAMMA * ((rebuilt - vector) ** 2).sum() / len(positions)
    return scores


def classifier(divide: bool = True) -> ReconstructionClassifier:
    made = ReconstructionClassifier(GAMMA, divide)
    torch.nn.init.constant_(made.alpha, ALPHA)
    torch.nn.init.constant_(made.beta, BETA)
    return made


@pytest.mark.parametrize("labels", [[0, 1, 0, 1], [0, 1, 1, 1], [1, 0, 2, 2]])
@pytest.mark.parametrize("channels", [3, 15, 40])  # the solution has the size of the channels, then of the rows
@pytest.mark.parametrize("divide", [True, False])
def test_equals_loops(labels: list[int], channels: int, divide: bool, generator: torch.Generator) -> None:
    maps = torch.randn(2, 7, channels, 2, 3, generator=generator, dtype=torch.float64)
    support, query, given = maps[:, :4], maps[:, 4:], torch.tensor(labels).expand(2, -1)
    scores = classifier(divide)(support, given, query)
    assert scores.dtype == torch.float64
    for episode in range(2):
        expected = naive(support[episode], given[0], query[episode], divide)
        torch.testing.assert_close(scores[episode], expected, rtol=1e-6, atol=1e-6)  # the parameters are float32
    single = classifier(divide)(support.float(), given, query.float())
    torch.testing.assert_close(single.double(), scores, rtol=1e-4, atol=1e-4)


def test_values_worked_out_by_hand() -> None:
    """Of (1, 1), the class with the row (2, 0) rebuilds the part along it: 4 / (4 + λ) with λ = 1/2 + 1e-6."""
    support = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64).reshape(2, 2, 1, 1)
    query = torch.ones(1, 2, 1, 1, dtype=torch.float64)
    scores = ReconstructionClassifier(divide_features=False)(support, torch.tensor([0, 1]), query)
    penalty = 0.5 + 1e-6
    expected = [-(1 + (1 - 4 / (4 + penalty)) ** 2), -(1 + (1 - 1 / (1 + penalty)) ** 2)]
    assert scores.tolist() == [pytest.approx(expected, rel=1e-9)]
    assert expected == pytest.approx([-1.012346, -1.111111], abs=1e-6)


def test_the_penalty_follows_the_shots() -> None:
    """K copies of an image change nothing: their products and λ both grow by K."""
    maps = torch.randn(3, 4, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    one = ReconstructionClassifier()(maps[:2], torch.tensor([0, 1]), maps[2:])
    copies = torch.cat([maps[:1]] * 3 + [maps[1:2]])
    several = ReconstructionClassifier()(copies, torch.tensor([0, 0, 0, 1]), maps[2:])
    torch.testing.assert_close(several, one, rtol=1e-5, atol=0)  # up to the constant 1e-6


def test_chunks_of_queries_do_not_show(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = torch.randn(2, 9, 4, 3, 3, generator=generator)
    arguments = maps[:, :4], torch.tensor([0, 1, 0, 1]).expand(2, -1), maps[:, 4:]
    whole = classifier()(*arguments)
    monkeypatch.setattr("deepbdc.classifiers.reconstruction._BYTES_AT_A_TIME", 1)
    torch.testing.assert_close(classifier()(*arguments), whole)


@pytest.mark.parametrize("channels", [3, 9])
def test_gradients(channels: int, generator: torch.Generator) -> None:
    maps = torch.randn(5, channels, 2, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    made = classifier().double()
    labels = torch.tensor([0, 1, 1])
    assert torch.autograd.gradcheck(lambda x: made(x[:3], labels, x[3:]), maps)
    numbers = dict(made.named_parameters())

    def of_numbers(*values: Tensor) -> Tensor:
        given = dict(zip(numbers, values, strict=True))
        scores: Tensor = torch.func.functional_call(made, given, (maps[:3].detach(), labels, maps[3:].detach()))
        return scores

    assert torch.autograd.gradcheck(of_numbers, tuple(value.detach().requires_grad_() for value in numbers.values()))


def test_its_working_memory_grows_with_channels_and_positions() -> None:
    made = ReconstructionClassifier()
    small = made.working_memory((5, 8, 4, 4), (15, 8, 4, 4))
    assert made.working_memory((5, 32, 4, 4), (15, 32, 4, 4)) > 4 * small
    assert made.working_memory((5, 8, 16, 16), (15, 8, 16, 16)) > 2 * small
