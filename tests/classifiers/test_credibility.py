"""ICI against loops with scikit-learn: its path of group lassos, its logistic regression, its rounds."""

import warnings

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, lasso_path
from torch import Tensor

from deepbdc.classifiers import create_classifier
from deepbdc.classifiers._products import support_products
from deepbdc.classifiers.base import membership
from deepbdc.classifiers.credibility import CredibilityClassifier, credibility, most_credible, principal_directions
from tests.classifiers.conftest import MakeEpisodes

PATH = 40


def naive_order(images: NDArray[np.float64], targets: NDArray[np.float64], path: int) -> NDArray[np.int64]:
    """For each image: the place, from the smallest α of the path, where its parameter is 0 for the first time."""
    x = PCA(5).fit_transform(images)
    rest = np.eye(len(x)) - x @ np.linalg.inv(x.T @ x) @ x.T
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about convergence, which the accuracy below does not need
        _, found, _ = lasso_path(rest, rest @ targets, eps=1e-3, alphas=path, tol=1e-9, max_iter=100_000)
    order = []
    for image in range(len(x)):  # found is (way, images, path), from the largest α to the smallest
        for place in range(path):
            if not found[:, image, path - 1 - place].any():
                order.append(place)
                break
    return np.array(order)


def naive(support: Tensor, labels: Tensor, query: Tensor, per_class: int) -> NDArray[np.float64]:
    """Logits of one episode, with the project's own tie-break."""
    images = torch.cat([support, query])
    unit = (images / (images.norm(dim=1, keepdim=True) + 1e-6)).numpy()
    count, way = len(support), int(labels.max()) + 1
    used = [True] * count + [False] * len(query)
    model = LogisticRegression(C=10, tol=1e-10, max_iter=10_000).fit(unit[:count], labels.numpy())
    while not all(used):
        guessed = [*labels.tolist(), *model.predict(unit[count:]).tolist()]
        targets = membership(torch.tensor([guessed]), way, torch.float64)
        products, _ = support_products(images.unsqueeze(0), normalize=True)
        exact = credibility(principal_directions(products, 5), targets, PATH, 1e-3)[0].numpy()
        assert (np.floor(exact) == naive_order(unit, targets[0].numpy(), PATH)).all()
        for label in range(way):
            rest = [i for i in range(len(unit)) if not used[i] and guessed[i] == label]
            for i in sorted(rest, key=lambda i: float(exact[i]))[:per_class]:
                used[i] = True
        model = LogisticRegression(C=10, tol=1e-10, max_iter=10_000).fit(unit[used], np.array(guessed)[used])
    logits: NDArray[np.float64] = model.decision_function(unit[count:])
    return logits


@pytest.mark.parametrize("shots", [[1, 1, 1], [1, 4, 2]])
@pytest.mark.parametrize("per_class", [2, 5])
def test_equals_loops(shots: list[int], per_class: int, make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes(shots, 12, episodes=2, queries=15, dtype=torch.float64)
    scores = CredibilityClassifier(per_class=per_class, path=PATH)(support, labels, query)
    for place in range(2):
        expected = naive(support[place], labels[place], query[place], per_class)
        torch.testing.assert_close(scores[place], torch.from_numpy(expected), rtol=1e-3, atol=1e-3)


def test_wrong_labels_are_the_least_credible(make_episodes: MakeEpisodes) -> None:
    """Clear classes, and every tenth label is wrong."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(40) % 4
    images = (2 * torch.eye(4)[labels] + 0.3 * torch.randn(40, 4, generator=generator)).double().unsqueeze(0)
    given = labels.clone()
    given[::10] = (given[::10] + 1) % 4
    products, _ = support_products(images, normalize=True)
    basis = principal_directions(products, 5)
    order = credibility(basis, membership(given.unsqueeze(0), 4, torch.float64), 100, 1e-3)[0]
    assert set(order.argsort(descending=True)[:4].tolist()) == {0, 10, 20, 30}


def test_most_credible_of_each_class() -> None:
    order = torch.tensor([[0.0, 5.0, 3.0, 3.0, 9.0, 1.0]])
    labels = torch.tensor([[0, 0, 0, 0, 1, 1]])
    used = torch.tensor([[True, False, False, False, False, False]])
    assert most_credible(order, labels, used, 1).tolist() == [[False, False, True, False, False, True]]
    assert most_credible(order, labels, used, 2).tolist() == [[False, False, True, True, True, True]]


def test_queries_help_where_one_example_misleads() -> None:
    generator = torch.Generator().manual_seed(2)
    centres = 2 * torch.randn(20, 5, 30, generator=generator)
    support = centres + 3 * torch.randn(20, 5, 30, generator=generator)
    truth = torch.arange(5).repeat_interleave(15)
    query = centres[:, truth] + 2 * torch.randn(20, 75, 30, generator=generator)
    labels = torch.arange(5).expand(20, 5)
    before, after = (
        float((classifier(support, labels, query).argmax(dim=-1) == truth).double().mean())
        for classifier in (create_classifier("logistic", C=10), CredibilityClassifier())
    )
    assert after > before + 0.03


def test_images_that_span_fewer_dimensions_than_asked_for() -> None:
    support = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    query = torch.tensor([[[1.0, 0.1], [0.2, 1.0], [1.0, 0.3], [0.3, 0.9]]])
    scores = CredibilityClassifier()(support, torch.tensor([[0, 1]]), query)
    assert scores.argmax(dim=-1).tolist() == [[0, 1, 0, 1]]
    same = CredibilityClassifier()(support, torch.tensor([[0, 1]]), support[:, :1].expand(-1, 3, -1))
    assert same.argmax(dim=-1).tolist() == [[0, 0, 0]]


def test_no_queries_and_wrong_options(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([1, 1], 4)
    assert CredibilityClassifier()(support, labels, query[:, :0]).shape == (1, 0, 2)
    assert CredibilityClassifier().transductive
    assert not CredibilityClassifier().assumes_balanced_queries
    for options in ({"C": 0.0}, {"dimensions": 0}, {"per_class": 0}, {"path": 0}, {"range": 1.0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            CredibilityClassifier(**options)
