"""The batched SVM solver against scipy, its optimality conditions, and finite differences of its solution."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import one_hot

from deepbdc.classifiers.multiclass_svm import MulticlassSVMClassifier
from tests.classifiers.conftest import MakeEpisodes


def by_scipy(products: Tensor, labels: Tensor, C: float, stabiliser: float) -> Tensor:
    """One episode, ``(s, s), (s,) -> (s, way)``, with the flattened matrices of the paper's code."""
    n, way = len(labels), int(labels.max()) + 1
    targets = one_hot(labels, way).double().numpy().ravel()
    matrix = np.kron(products.numpy(), np.eye(way)) + stabiliser * np.eye(n * way)
    rows = np.kron(np.eye(n), np.ones((1, way)))
    found = minimize(
        lambda a: 0.5 * a @ matrix @ a - a @ targets,
        np.zeros(n * way),
        jac=lambda a: matrix @ a - targets,
        bounds=[(None, C * target) for target in targets],
        constraints={"type": "eq", "fun": lambda a: rows @ a, "jac": lambda a: rows},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 2000},
    )
    assert found.status in (0, 8), found.message  # 8: rounding errors leave no better point on the line
    return torch.from_numpy(found.x.reshape(n, way))


@pytest.mark.parametrize("shots", [[2, 2, 2], [1, 4, 2], [3, 1]])
@pytest.mark.parametrize("C", [0.1, 1.0])
def test_equals_scipy(shots: list[int], C: float, make_episodes: MakeEpisodes) -> None:
    support, labels, _ = make_episodes(shots, 4, episodes=3, dtype=torch.float64)
    support = 0.5 * support
    products = support @ support.mT
    found = MulticlassSVMClassifier(C).coefficients(products, labels, len(shots))
    bounds = C * one_hot(labels).double()
    assert ((found - bounds).abs() < 1e-6).any()  # some constraints are active,
    assert (bounds - found > 1e-3).any()  # others are not
    for episode in range(3):
        expected = by_scipy(products[episode], labels[episode], C, 1.0)
        torch.testing.assert_close(found[episode], expected, rtol=0, atol=1e-6)


def test_two_images_by_hand() -> None:
    """Images (1, 0) and (0, 1) of two classes: α = ±a minimises ½ · 4 · 2 a² - 2 a, so a = ¼ unless C is less."""
    support, labels = torch.eye(2, dtype=torch.float64), torch.tensor([0, 1])
    for C, expected in ((1.0, 0.25), (0.1, 0.1)):
        found = MulticlassSVMClassifier(C).coefficients((support @ support.T)[None], labels[None], 2)[0]
        wanted = expected * torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0, 1e3])
def test_the_solution_is_optimal_for_features_of_any_size(size: float, make_episodes: MakeEpisodes) -> None:
    """No feasible direction of one row, from class k to class m, lowers the objective."""
    support, labels, _ = make_episodes([5] * 5, 40, episodes=4, dtype=torch.float64)
    products = size**2 * support @ support.mT
    targets = one_hot(labels).double()
    with torch.no_grad():
        found = MulticlassSVMClassifier(0.1).coefficients(products, labels, 5)
    assert found.sum(dim=-1).abs().max() < 1e-12
    assert (0.1 * targets - found).min() > -1e-12
    gradient = products @ found + found - targets
    free = 0.1 * targets - found > 1e-4 * found.abs().amax(dim=(-2, -1), keepdim=True)
    # Entries that may grow must not have a smaller gradient than any other, as every other may shrink.
    smallest = torch.where(free, gradient, torch.inf).amin(dim=-1)
    assert (smallest - gradient.amax(dim=-1)).min() > -1e-4


@pytest.mark.parametrize("C", [0.1, 10.0])
@pytest.mark.parametrize("labels", [[0, 1, 0, 1], [0, 1, 2, 2]])
def test_gradients_are_those_of_finite_differences(C: float, labels: list[int], generator: torch.Generator) -> None:
    rows = torch.randn(2, 6, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    classifier = MulticlassSVMClassifier(C, scale=2.0, tolerance=1e-9).double()
    given = torch.tensor(labels).expand(2, -1)
    assert torch.autograd.gradcheck(lambda x: classifier(x[:, :4], given, x[:, 4:]), rows, eps=1e-5, atol=1e-5)
    classifier(rows[:, :4], given, rows[:, 4:]).square().sum().backward()
    assert float(classifier.scale.scale.grad) != 0  # type: ignore[arg-type, union-attr]


def test_a_batch_changes_nothing(make_episodes: MakeEpisodes) -> None:
    """Episodes need different numbers of steps."""
    support, labels, query = make_episodes([2, 1, 3], 8, episodes=5)
    support = support * torch.tensor([0.01, 0.1, 1.0, 10.0, 100.0])[:, None, None]
    classifier = MulticlassSVMClassifier()
    together = classifier(support, labels, query)
    for episode in range(5):
        alone = classifier(support[episode], labels[episode], query[episode])
        torch.testing.assert_close(together[episode], alone, rtol=1e-6, atol=1e-12)


def test_its_rule_has_its_scores(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([2, 5, 1], 40, episodes=3)
    classifier = MulticlassSVMClassifier(scale=3.0)
    rule = classifier.rule(support, labels, 3)
    torch.testing.assert_close(rule(query), classifier(support, labels, query).detach(), rtol=1e-4, atol=1e-5)


def test_it_says_when_it_gives_up_and_what_it_needs(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([2, 2], 5, episodes=2)
    with pytest.warns(UserWarning, match="SVM of 2 of 2 episodes did not converge in 2 steps"):
        MulticlassSVMClassifier(max_iterations=2)(support, labels, query)
    with pytest.raises(ValueError, match="needs at least 2"):
        MulticlassSVMClassifier()(support, labels * 0, query)
