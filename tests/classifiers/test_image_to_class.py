"""The image-to-class measure against loops, the values of its fact sheet, and gradcheck."""

import pytest
import torch
from torch import Tensor

from deepbdc.classifiers import create_classifier
from deepbdc.classifiers.image_to_class import ImageToClassClassifier


def naive(support: Tensor, labels: Tensor, query: Tensor, neighbours: int) -> Tensor:
    """One episode: maps ``(s, d, h, w)`` and ``(q, d, h, w)`` -> ``(q, way)``."""
    way = int(labels.max()) + 1
    scores = torch.zeros(len(query), way, dtype=query.dtype)
    for q, image in enumerate(query):
        for label in range(way):
            own = [x for x, y in zip(support, labels.tolist(), strict=True) if y == label]
            pool = [m.flatten(1)[:, j] for m in own for j in range(m[0].numel())]
            for i in range(image[0].numel()):
                vector = image.flatten(1)[:, i]
                cosines = sorted((float(vector @ x / vector.norm() / x.norm()) for x in pool), reverse=True)
                scores[q, label] += sum(cosines[:neighbours])
    return scores


@pytest.mark.parametrize("labels", [[0, 1, 0, 1], [0, 1, 1, 1], [1, 0, 2, 2]])
@pytest.mark.parametrize("neighbours", [1, 3])
def test_equals_loops(labels: list[int], neighbours: int, generator: torch.Generator) -> None:
    maps = torch.randn(2, 7, 5, 2, 3, generator=generator, dtype=torch.float64)
    support, query = maps[:, :4], maps[:, 4:]
    given = torch.tensor(labels).expand(2, -1)
    scores = ImageToClassClassifier(neighbours)(support, given, query)
    for episode in range(2):
        torch.testing.assert_close(scores[episode], naive(support[episode], given[0], query[episode], neighbours))


@pytest.mark.parametrize(("neighbours", "expected"), [(1, 1.707107), (2, 2.414214), (3, 0.707107)])
def test_values_worked_out_by_hand(neighbours: int, expected: float) -> None:
    """Descriptors (1, 0) and (1, 1) against (1, 0), (0, 1) and (-1, 0)."""
    query = torch.tensor([[1.0, 0.0], [1.0, 1.0]]).reshape(2, 2, 1, 1)
    support = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]).reshape(3, 2, 1, 1)
    scores = ImageToClassClassifier(neighbours)(support, torch.zeros(3, dtype=torch.int64), query)
    assert float(scores.sum()) == pytest.approx(expected, abs=1e-6)


def test_chunks_of_queries_do_not_show(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = torch.randn(2, 9, 4, 3, 3, generator=generator)
    arguments = maps[:, :4], torch.tensor([0, 1, 0, 1]).expand(2, -1), maps[:, 4:]
    whole = ImageToClassClassifier()(*arguments)
    monkeypatch.setattr("deepbdc.classifiers.image_to_class._BYTES_AT_A_TIME", 1)
    torch.testing.assert_close(ImageToClassClassifier()(*arguments), whole)


def test_gradients(generator: torch.Generator) -> None:
    maps = torch.randn(5, 3, 2, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    classifier = ImageToClassClassifier(2, scale=0.5).double()
    assert torch.autograd.gradcheck(lambda x: classifier(x[:3], torch.tensor([0, 1, 1]), x[3:]), maps)
    classifier(maps[:3], torch.tensor([0, 1, 1]), maps[3:]).sum().backward()
    assert classifier.scale.scale is not None
    assert classifier.scale.scale.grad is not None


def test_a_position_without_features_is_like_nothing() -> None:
    support, query = torch.ones(2, 3, 2, 2), torch.ones(1, 3, 2, 2)
    support[0] = 0
    assert ImageToClassClassifier(1)(support, torch.tensor([0, 1]), query).tolist() == [[0.0, pytest.approx(4.0)]]


def test_vectors_are_refused_here_and_maps_elsewhere() -> None:
    with pytest.raises(ValueError, match=r"takes feature maps \(d, h, w\), but .* are vectors"):
        ImageToClassClassifier()(torch.rand(2, 5), torch.tensor([0, 1]), torch.rand(1, 5))
    with pytest.raises(ValueError, match=r"LogisticClassifier takes vectors \(features,\), but .* are feature maps"):
        create_classifier("logistic")(torch.rand(2, 5, 3, 3), torch.tensor([0, 1]), torch.rand(1, 5, 3, 3))


def test_its_working_memory_grows_with_the_maps() -> None:
    classifier = ImageToClassClassifier()
    small, large = (classifier.working_memory((5, 8, size, size), (15, 8, size, size)) for size in (2, 8))
    assert large > 16 * small
