"""Prototypes against loops over classes and queries."""

import pytest
import torch
from torch import Tensor

from deepbdc import BDCPool
from deepbdc.classifiers import create_classifier
from tests.classifiers.conftest import MakeEpisodes


def naive_similarity(query: Tensor, prototype: Tensor, similarity: str) -> Tensor:
    if similarity == "inner_product":
        return (query * prototype).sum()
    if similarity == "cosine":
        return torch.nn.functional.cosine_similarity(query, prototype, dim=0)
    return -((query - prototype) ** 2).sum()


def naive_scores(prototypes: Tensor, query: Tensor, similarity: str) -> Tensor:
    return torch.stack([torch.stack([naive_similarity(q, p, similarity) for p in prototypes]) for q in query])


@pytest.mark.parametrize("similarity", ["euclidean", "cosine", "inner_product"])
@pytest.mark.parametrize("shots", [[1, 1], [3, 1, 2, 5], [1]])
def test_similarities_against_loops(make_episodes: MakeEpisodes, similarity: str, shots: list[int]) -> None:
    support, labels, query = make_episodes(shots, features=30, episodes=3, dtype=torch.float64)
    scores = create_classifier("prototype", similarity=similarity)(support, labels, query)
    for episode in range(3):
        classes = range(len(shots))
        prototypes = torch.stack([support[episode][labels[episode] == k].mean(dim=0) for k in classes])
        torch.testing.assert_close(scores[episode], naive_scores(prototypes, query[episode], similarity))


def test_distances_keep_the_digits_that_tell_classes_apart(make_episodes: MakeEpisodes) -> None:
    """Far from the origin, in float32: differences between the scores of a query are those of float64."""
    support, labels, query = make_episodes([2, 2, 2], features=200, offset=100.0)
    classifier = create_classifier("prototype")
    scores = classifier(support, labels, query).double()
    exact = classifier(support.double(), labels, query.double())
    relative, exact = scores - scores.mean(-1, keepdim=True), exact - exact.mean(-1, keepdim=True)
    assert (relative - exact).abs().max() < 1e-4 * exact.abs().max()


def test_a_vector_of_length_zero_has_cosine_zero() -> None:
    support = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    scores = create_classifier("prototype", similarity="cosine")(
        support, torch.tensor([0, 1]), torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    )
    torch.testing.assert_close(scores, torch.tensor([[0.0, 0.0], [0.0, 1.0]]))


@pytest.mark.parametrize("similarity", ["euclidean", "cosine", "inner_product"])
def test_gradients(make_episodes: MakeEpisodes, similarity: str) -> None:
    support, labels, query = make_episodes([2, 1], features=4, episodes=2, queries=3, dtype=torch.float64)
    classifier = create_classifier("prototype", similarity=similarity)
    assert torch.autograd.gradcheck(
        lambda s, q: classifier(s, labels, q), (support.requires_grad_(), query.requires_grad_())
    )


def naive_map_prototype(maps: Tensor, form: str, pool: BDCPool) -> Tensor:
    """The prototype of one class from its maps (shot, d, h, w)."""
    if form == "mean":
        return torch.stack([pool(single[None])[0] for single in maps]).mean(dim=0)
    if form == "mean_features":
        return pool(maps.mean(dim=0)[None])[0]
    return pool(torch.cat(list(maps), dim=1)[None])[0]


@pytest.mark.parametrize("form", ["mean", "mean_features", "concatenated_features"])
@pytest.mark.parametrize("shots", [[2, 2, 2], [1, 3, 2]])
@pytest.mark.parametrize("reduce_to", [None, 3])
def test_prototypes_of_maps_against_loops(
    make_episodes: MakeEpisodes, form: str, shots: list[int], reduce_to: int | None
) -> None:
    pool = BDCPool(4, reduce_to=reduce_to).double().eval()
    support, labels, query = make_episodes(shots, features=4 * 2 * 5, episodes=2, queries=4, dtype=torch.float64)
    support, query = support.unflatten(-1, (4, 2, 5)), query.unflatten(-1, (4, 2, 5))
    scores = create_classifier("prototype", prototype=form, pool=pool)(support, labels, query)
    for episode in range(2):
        prototypes = [naive_map_prototype(support[episode][labels[episode] == k], form, pool) for k in range(3)]
        expected = naive_scores(torch.stack(prototypes), pool(query[episode]), "euclidean")
        torch.testing.assert_close(scores[episode], expected)


def test_the_gradient_reaches_the_pool(make_episodes: MakeEpisodes) -> None:
    pool = BDCPool(4, output="matrix")
    support, labels, query = make_episodes([2, 1], features=4 * 6)
    classifier = create_classifier("prototype", prototype="concatenated_features", pool=pool)
    classifier(support.unflatten(-1, (4, 2, 3)), labels, query.unflatten(-1, (4, 2, 3))).sum().backward()
    assert pool.t.grad is not None
    assert pool.t.grad.abs() > 0
    assert "BDCPool" in classifier.settings["pool"]


def test_a_pool_needs_maps(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([2, 1], features=4)
    with pytest.raises(ValueError, match=r"takes feature maps \(d, h, w\), but .* are vectors"):
        create_classifier("prototype", pool=BDCPool(4))(support, labels, query)
