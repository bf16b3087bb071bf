"""Query-aligned prototypes against loops, a value worked out by hand, and gradcheck."""

import math

import pytest
import torch
from torch import Tensor

from deepbdc.classifiers.cross_attention import CrossAttentionClassifier


def naive(support: Tensor, labels: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One episode: maps ``(s, d, h, w)`` and ``(q, d, h, w)`` -> ``(q, way)``."""
    way = int(labels.max()) + 1
    scores = torch.zeros(len(query), way, dtype=query.dtype)
    for label in range(way):
        own = torch.cat(
            [image.flatten(1).T for image, given in zip(support, labels.tolist(), strict=True) if given == label]
        )
        for place, image in enumerate(query):
            positions = image.flatten(1).T
            for vector in positions:
                products = [float((key @ vector) @ (key @ other)) / math.sqrt(len(key)) for other in own]
                total = sum(math.exp(product) for product in products)
                aligned = sum(math.exp(p) / total * (value @ other) for p, other in zip(products, own, strict=True))
                scores[place, label] -= (value @ vector - aligned).square().sum() / len(positions)
    return scores


@pytest.mark.parametrize("labels", [[0, 1, 0, 1], [0, 1, 1, 1], [1, 0, 2, 2]])
def test_equals_loops(labels: list[int], generator: torch.Generator) -> None:
    torch.manual_seed(0)
    classifier = CrossAttentionClassifier(5, 4)
    maps = 2 * torch.randn(2, 7, 5, 2, 3, generator=generator, dtype=torch.float64)
    support, query, given = maps[:, :4], maps[:, 4:], torch.tensor(labels).expand(2, -1)
    key, value = (layer.weight.detach().double() for layer in (classifier.key, classifier.value))
    scores = classifier(support, given, query)
    for episode in range(2):
        expected = naive(support[episode], given[0], query[episode], key, value)
        torch.testing.assert_close(scores[episode], expected)
    single = classifier(support.float(), given, query.float())
    torch.testing.assert_close(single.double(), scores, rtol=1e-4, atol=1e-4)


def test_a_value_worked_out_by_hand() -> None:
    """Keys and values are the features; the query 1 gives weights 1/(1 + e) and e/(1 + e) to the positions 0 and 1."""
    classifier = CrossAttentionClassifier(1, 1)
    for layer in (classifier.key, classifier.value):
        torch.nn.init.ones_(layer.weight)
    support = torch.tensor([0.0, 1.0, 3.0, 3.0]).reshape(2, 1, 1, 2)
    query = torch.ones(1, 1, 1, 2)
    scores = classifier(support, torch.tensor([0, 1]), query)
    assert scores.tolist() == [pytest.approx([-((1 / (1 + math.e)) ** 2), -4.0])]


def test_a_query_that_is_in_the_class_finds_itself() -> None:
    """With large features the attention picks the position itself, so that the distance vanishes."""
    torch.manual_seed(0)
    classifier = CrossAttentionClassifier(8, 8)
    maps = 100 * torch.nn.functional.normalize(torch.randn(2, 8, 3, 3), dim=1)
    scores = classifier(maps, torch.tensor([0, 1]), maps)
    assert scores.argmax(dim=1).tolist() == [0, 1]


def test_chunks_of_queries_do_not_show(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = torch.randn(2, 9, 4, 3, 3, generator=generator)
    arguments = maps[:, :4], torch.tensor([0, 1, 0, 1]).expand(2, -1), maps[:, 4:]
    classifier = CrossAttentionClassifier(4, 6)
    whole = classifier(*arguments)
    monkeypatch.setattr("deepbdc.classifiers.cross_attention._BYTES_AT_A_TIME", 1)
    torch.testing.assert_close(classifier(*arguments), whole)


def test_gradients(generator: torch.Generator) -> None:
    torch.manual_seed(0)
    maps = torch.randn(5, 3, 2, 2, generator=generator, dtype=torch.float64)
    classifier, labels = CrossAttentionClassifier(3, 2).double(), torch.tensor([0, 1, 1])

    def scores(maps: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = {"key.weight": key, "value.weight": value}
        result: Tensor = torch.func.functional_call(classifier, weights, (maps[:3], labels, maps[3:]))
        return result

    values = maps, classifier.key.weight, classifier.value.weight
    assert torch.autograd.gradcheck(scores, tuple(value.detach().requires_grad_() for value in values))


def test_its_working_memory_grows_with_the_maps() -> None:
    classifier = CrossAttentionClassifier(8)
    small, large = (classifier.working_memory((5, 8, size, size), (15, 8, size, size)) for size in (2, 8))
    assert large > 16 * small
