"""Logistic regression against scikit-learn run to convergence."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits
from torch import Tensor

from deepbdc.classifiers import LogisticClassifier, create_classifier
from tests.classifiers.conftest import MakeEpisodes


def converged(
    support: Tensor, labels: Tensor, query: Tensor, C: float, normalize: bool = True, solver: str = "lbfgs"
) -> np.ndarray:
    """Probabilities (q, way) by scikit-learn."""
    prepared = [x.double().numpy() for x in (support, query)]
    if normalize:
        prepared = [x / (np.linalg.norm(x, axis=-1, keepdims=True) + 1e-6) for x in prepared]
    with threadpool_limits(1):
        model = LogisticRegression(C=C, tol=1e-10, max_iter=100_000, solver=solver).fit(prepared[0], labels.numpy())
        return np.asarray(model.predict_proba(prepared[1]))


def assert_agrees(scores: Tensor, expected: np.ndarray) -> None:
    probabilities = torch.softmax(scores.double(), dim=-1).numpy()
    assert np.abs(probabilities - expected).max() < 1e-4
    first, second = np.sort(expected, axis=-1)[:, -1], np.sort(expected, axis=-1)[:, -2]
    clear = first - second > 1e-3
    assert (probabilities.argmax(-1) == expected.argmax(-1))[clear].all()


@pytest.mark.parametrize("C", [0.01, 0.1, 2.0, 100.0])
@pytest.mark.parametrize("features", [3, 150])
@pytest.mark.parametrize("shots", [[1, 1], [20, 3], [1] * 5, [5] * 5, [1, 20, 4, 7, 2]])
def test_agrees_with_scikit_learn(make_episodes: MakeEpisodes, shots: list[int], features: int, C: float) -> None:
    support, labels, query = make_episodes(shots, features, queries=40)
    scores = create_classifier("logistic", C=C)(support, labels, query)
    assert_agrees(scores[0], converged(support[0], labels[0], query[0], C))


@pytest.mark.parametrize("C", [1e-4, 0.01])
@pytest.mark.parametrize("shots", [[1, 1], [1] * 5, [3, 1, 2]])
def test_small_logits_are_also_exact(make_episodes: MakeEpisodes, shots: list[int], C: float) -> None:
    """With a small C probabilities hardly differ, but their order still decides."""
    support, labels, query = make_episodes(shots, features=100, dtype=torch.float64)
    probabilities = torch.softmax(create_classifier("logistic", C=C)(support, labels, query), dim=-1)
    prior = np.bincount(labels[0]) / labels.numel()
    # L-BFGS leaves an error of 4e-6 in the intercept here, whatever its tolerance.
    expected = np.log(converged(support[0], labels[0], query[0], C, solver="newton-cholesky") / prior)
    difference = np.log(probabilities[0].numpy() / prior) - expected
    assert np.abs(difference).max() < 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize(("C", "features"), [(0.01, 60), (2.0, 60), (2.0, 300), (100.0, 10)])
def test_agrees_with_many_classes(make_episodes: MakeEpisodes, C: float, features: int) -> None:
    shots = [1, 20, 3, 8, 2, 1, 5, 4, 9, 1] * 2
    support, labels, query = make_episodes(shots, features, queries=40)
    scores = create_classifier("logistic", C=C)(support, labels, query)
    assert_agrees(scores[0], converged(support[0], labels[0], query[0], C))


@pytest.mark.parametrize("C", [0.1, 100.0])
def test_agrees_when_images_are_almost_alike(make_episodes: MakeEpisodes, C: float) -> None:
    """The common part of the features is 50 times their differences, as for BDC representations."""
    support, labels, query = make_episodes([5] * 5, features=500, offset=50.0, queries=40)
    scores = create_classifier("logistic", C=C)(support, labels, query)
    assert_agrees(scores[0], converged(support[0], labels[0], query[0], C))


@pytest.mark.parametrize("C", [0.01, 1.0, 100.0])
def test_agrees_with_duplicates_also_across_classes(make_episodes: MakeEpisodes, C: float) -> None:
    support, labels, query = make_episodes([4, 4, 4], features=50, queries=40)
    support[0, 1] = support[0, 0]
    first, second = ((labels[0] == k).nonzero()[0].item() for k in (0, 1))
    support[0, first] = support[0, second]
    scores = create_classifier("logistic", C=C)(support, labels, query)
    assert_agrees(scores[0], converged(support[0], labels[0], query[0], C))


def test_without_normalisation(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([5, 3, 2], features=20, dtype=torch.float64)
    scores = create_classifier("logistic", C=1.0, normalize=False)(support, labels, query)
    assert_agrees(scores[0], converged(support[0], labels[0], query[0], 1.0, normalize=False))


def test_all_images_equal_gives_the_frequencies() -> None:
    """Nothing but the intercept can learn: probabilities are the shares of the classes."""
    support, labels = torch.ones(1, 6, 4), torch.tensor([[0, 0, 0, 1, 1, 2]])
    scores = create_classifier("logistic")(support, labels, torch.ones(1, 1, 4))
    torch.testing.assert_close(torch.softmax(scores, -1), torch.tensor([[[3 / 6, 2 / 6, 1 / 6]]]), rtol=0, atol=1e-5)


def test_representations_of_length_zero_work() -> None:
    support = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    scores = create_classifier("logistic")(support, torch.tensor([[0, 1, 2]]), support)
    assert scores.argmax(-1).tolist() == [[0, 1, 2]]


def test_episodes_of_a_batch_are_each_solved(make_episodes: MakeEpisodes) -> None:
    """Also when some of them need many more iterations than others."""
    easy = make_episodes([2, 3, 1], features=30, episodes=5, offset=0.0, seed=1)
    hard = make_episodes([2, 3, 1], features=30, episodes=5, offset=20.0, seed=2)
    support, labels, query = (torch.cat(both) for both in zip(easy, hard, strict=True))
    scores = create_classifier("logistic", C=20.0)(support, labels, query)
    for episode in range(10):
        expected = converged(support[episode], labels[episode], query[episode], 20.0)
        assert_agrees(scores[episode], expected)


def test_giving_up_is_said(make_episodes: MakeEpisodes) -> None:
    with pytest.warns(RuntimeWarning, match="stopped after 3 iterations") as caught:
        create_classifier("logistic", max_iterations=3)(*make_episodes([2, 2], features=5))
    assert caught[0].filename == __file__


def test_images_that_are_not_used_are_as_if_they_were_not_there(make_episodes: MakeEpisodes) -> None:
    support, labels, _ = make_episodes([4, 4, 4], 6, episodes=2, dtype=torch.float64)
    products = support @ support.transpose(-2, -1)
    used = torch.ones_like(labels, dtype=torch.bool)
    used[0, :3] = used[1, 5:7] = False
    classifier = LogisticClassifier(2.0, False, 1e-10, 20_000)
    coefficients, intercepts = classifier.fit_products(products, labels, 3, used)
    for place in range(2):
        own = used[place]
        some = products[place][own][:, own].unsqueeze(0)
        alone, intercept = classifier.fit_products(some, labels[place][own].unsqueeze(0), 3)
        torch.testing.assert_close(coefficients[place][own], alone[0], rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(
            coefficients[place][~own], torch.zeros_like(coefficients[place][~own]), atol=1e-9, rtol=0
        )
        torch.testing.assert_close(intercepts[place], intercept[0], rtol=1e-6, atol=1e-8)


def test_equal_classes_are_the_odds_without_the_frequencies(make_episodes: MakeEpisodes) -> None:
    support, labels, query = (one[0] for one in make_episodes([2, 3, 1], features=30))
    odds = converged(support, labels, query, 2.0) / np.bincount(labels.numpy())
    scores = create_classifier("logistic", C=2.0, equal_classes=True)(support, labels, query)
    assert_agrees(scores, odds / odds.sum(axis=1, keepdims=True))


def test_equal_classes_change_nothing_if_they_are_equal(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([2, 2, 2], features=30, episodes=4)
    plain, equal = (create_classifier("logistic", equal_classes=one)(support, labels, query) for one in (False, True))
    assert torch.equal(plain, equal)


def test_a_class_without_support_has_finite_scores(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([2, 2], features=5)
    rule = create_classifier("logistic", equal_classes=True).rule(support, labels, 3)
    assert rule(query).isfinite().all()
