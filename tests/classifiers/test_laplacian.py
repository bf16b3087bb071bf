"""LaplacianShot against loops."""

import math

import pytest
import torch
from torch import Tensor

from deepbdc.classifiers.laplacian import LaplacianClassifier
from tests.classifiers.conftest import MakeEpisodes


def cosine(one: Tensor, other: Tensor) -> float:
    return float(one @ other / one.norm() / other.norm())


def naive_prototypes(means: list[Tensor], images: list[Tensor]) -> list[Tensor]:
    """Each image counts for its nearest class, with its weight, and the sum is divided by the number of images."""
    found: list[list[Tensor]] = [[] for _ in means]
    for x in images:
        cosines = [cosine(x, mean) for mean in means]
        nearest = max(range(len(means)), key=lambda c: cosines[c])
        weight = math.exp(10 * cosines[nearest]) / sum(math.exp(10 * value) for value in cosines)
        found[nearest].append(weight * x)
    return [torch.stack(own).sum(dim=0) / len(own) if own else mean for own, mean in zip(found, means, strict=True)]


def naive(support: Tensor, labels: Tensor, query: Tensor, weight: float, neighbours: int, rectify: bool) -> Tensor:
    """The assignments of one episode."""
    s, q = [x / x.norm() for x in support], [x / x.norm() for x in query]
    way = int(labels.max()) + 1
    prototypes = []
    for label in range(way):
        own = [x for x, y in zip(s, labels.tolist(), strict=True) if y == label]
        prototypes.append(sum(own, torch.zeros_like(s[0])) / len(own))
    if rectify:
        shift = sum(s, torch.zeros_like(s[0])) / len(s) - sum(q, torch.zeros_like(s[0])) / len(q)
        q = [x + shift for x in q]
        prototypes = naive_prototypes(prototypes, [*s, *q])
    costs = [[float((x - p).square().sum()) for p in prototypes] for x in q]
    near = []
    for i, x in enumerate(q):
        others = sorted((j for j in range(len(q)) if j != i), key=lambda j: float((x - q[j]).norm()))
        near.append(others[:neighbours])
    unary = torch.tensor(costs, dtype=torch.float64)
    y = [torch.softmax(-row, dim=0) for row in unary]
    energies: list[float] = []
    for _ in range(20):
        votes = [sum((y[j] for j in near[i]), torch.zeros(way).double()) for i in range(len(q))]
        y = [torch.softmax(weight * v - row, dim=0) for v, row in zip(votes, unary, strict=True)]
        energy = 0.0
        for i, row in enumerate(costs):
            for c in range(way):
                agreement = sum(float(y[j][c]) for j in near[i])
                energy += float(y[i][c]) * (math.log(float(y[i][c])) + row[c] - weight * agreement)
        energies.append(energy)
        if len(energies) >= 3 and abs(energies[-1] - energies[-2]) <= 1e-6 * abs(energies[-2]):
            break
    return torch.stack(y)


@pytest.mark.parametrize("rectify", [True, False])
@pytest.mark.parametrize("shots", [[1, 1, 1], [3, 3], [1, 4, 2]])
@pytest.mark.parametrize(("weight", "neighbours"), [(0.7, 2), (1.5, 4), (0.0, 2)])
def test_equals_loops(
    shots: list[int], weight: float, neighbours: int, rectify: bool, make_episodes: MakeEpisodes
) -> None:
    support, labels, query = make_episodes(shots, 6, episodes=3, dtype=torch.float64)
    scores = LaplacianClassifier(weight, neighbours, rectify)(support, labels, query)
    for place in range(3):
        expected = naive(support[place], labels[place], query[place], weight, neighbours, rectify)
        torch.testing.assert_close(torch.softmax(scores[place], dim=-1), expected, rtol=1e-9, atol=1e-12)


def test_a_class_to_which_no_image_is_nearest_keeps_its_mean() -> None:
    # The two support images of class 1 point to opposite sides of class 0: their mean is short and far from all.
    support = torch.tensor([[[1.0, 0.0, 0.0], [0.9, 0.4, 0.0], [0.9, -0.4, 0.0]]]).double()
    labels, query = torch.tensor([[0, 1, 1]]), torch.tensor([[[1.0, 0.02, 0.0], [1.0, -0.02, 0.0]]]).double()
    expected = naive(support[0], labels[0], query[0], 0.7, 2, True)
    scores = LaplacianClassifier(0.7)(support, labels, query)
    torch.testing.assert_close(torch.softmax(scores[0], dim=-1), expected)


def test_without_neighbours_and_rectification_it_is_the_nearest_mean(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([1, 1], 4, queries=1)
    alone = LaplacianClassifier(1.0, rectify=False)(support, labels, query)
    torch.testing.assert_close(alone, LaplacianClassifier(0.0, rectify=False)(support, labels, query))


def test_neighbours_correct_a_query_between_two_classes() -> None:
    """The query in the middle is nearer to class 0 by a hair; both of its neighbours are queries of class 1."""
    angles = torch.tensor([0.0, 90.0, 44.0, 50.0, 55.0, 5.0]).double().deg2rad()
    points = torch.stack([angles.cos(), angles.sin()], dim=1).unsqueeze(0)
    support, query, labels = points[:, :2], points[:, 2:], torch.tensor([[0, 1]])
    assert LaplacianClassifier(0.0, rectify=False)(support, labels, query).argmax(dim=-1).tolist() == [[0, 1, 1, 0]]
    assert LaplacianClassifier(1.0, rectify=False)(support, labels, query).argmax(dim=-1).tolist() == [[1, 1, 1, 0]]


def test_only_the_shift_assumes_balanced_queries() -> None:
    assert LaplacianClassifier().transductive
    assert LaplacianClassifier().assumes_balanced_queries
    assert not LaplacianClassifier(rectify=False).assumes_balanced_queries


def test_no_queries_and_wrong_options(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([1, 1], 4)
    assert LaplacianClassifier()(support, labels, query[:, :0]).shape == (1, 0, 2)
    for options in ({"weight": -1.0}, {"neighbours": 0}, {"iterations": 0}, {"tolerance": 0.0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            LaplacianClassifier(**options)  # type: ignore[arg-type]
