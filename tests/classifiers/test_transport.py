"""Optimal transport against POT and scipy, its gradients, and the classifier of DeepEMD against loops."""

from itertools import pairwise
from typing import Any

import numpy as np
import ot
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from deepbdc.classifiers import _transport
from deepbdc.classifiers._transport import transport
from deepbdc.classifiers.transport import TransportClassifier, position_weights
from deepbdc.errors import NotFinite, UserError


def problems(generator: torch.Generator, *shape: int) -> tuple[Tensor, Tensor, Tensor]:
    """Costs ``(..., r, c)`` and weights that do not sum to 1."""
    cost = torch.rand(*shape, generator=generator, dtype=torch.float64)
    rows = 0.1 + torch.rand(*shape[:-1], generator=generator, dtype=torch.float64)
    columns = 0.1 + torch.rand(*shape[:-2], shape[-1], generator=generator, dtype=torch.float64)
    return cost, rows, columns


def by_linear_programming(cost: Tensor, a: Tensor, b: Tensor) -> float:
    """The value of one problem, from its constraints written out."""
    r, c = cost.shape
    flow = np.arange(r * c).reshape(r, c)
    constraints = np.zeros((r + c, r * c))
    for i in range(r):
        constraints[i, flow[i]] = 1
    for j in range(c):
        constraints[r + j, flow[:, j]] = 1
    sums = np.concatenate([a / a.sum(), b / b.sum()])
    found = linprog(cost.flatten().numpy(), A_eq=constraints, b_eq=sums, bounds=(0, None))
    return float(found.fun)


def test_equals_pot_and_linear_programming(generator: torch.Generator) -> None:
    cost, rows, columns = problems(generator, 2, 3, 4, 5)
    values = transport(cost, rows, columns)
    assert values.shape == (2, 3)
    for place in np.ndindex(2, 3):
        a, b = rows[place], columns[place]
        expected = ot.emd2((a / a.sum()).numpy(), (b / b.sum()).numpy(), cost[place].numpy())
        assert float(values[place]) == pytest.approx(float(expected), abs=1e-12)
        assert float(values[place]) == pytest.approx(by_linear_programming(cost[place], a, b), abs=1e-9)
    single = transport(cost.float(), rows.float(), columns.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), values, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(transport(cost[0, 0], rows[0, 0], columns[0, 0]), values[0, 0])


def test_threads_change_nothing(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    given = problems(generator, 23, 4, 5)
    alone = transport(*given)
    monkeypatch.setattr(_transport, "_PROBLEMS_PER_THREAD", 5)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(transport(*given), alone)


def test_the_exact_gradient(generator: torch.Generator) -> None:
    given = [tensor.requires_grad_() for tensor in problems(generator, 3, 4, 5)]
    assert torch.autograd.gradcheck(transport, given)


def test_the_dual_solution_is_the_gradient(generator: torch.Generator) -> None:
    """Σ flow · similarity is r - cost if weights sum to r, and raising a weight moves the value along its potential."""
    cost, rows, columns = problems(generator, 5, 5)
    a, b = (5 * weights / weights.sum() for weights in (rows, columns))
    flow, log = ot.emd(a.numpy(), b.numpy(), cost.numpy(), log=True)
    assert float((flow * (1 - cost.numpy())).sum()) == pytest.approx(5 - 5 * float(transport(cost, rows, columns)))
    rows.requires_grad_()
    transport(cost, rows, columns).backward()
    share = (rows / rows.sum()).detach().numpy()
    potentials = log["u"] - (log["u"] * share).sum()  # without what the normalisation removes
    np.testing.assert_allclose(rows.grad, potentials / rows.detach().sum().numpy(), atol=1e-12)


@pytest.mark.parametrize("regularisation", [0.1, 0.5])
def test_the_entropic_gradient(
    regularisation: float, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_transport, "_TOLERANCE", 1e-12)
    given = [tensor.requires_grad_() for tensor in problems(generator, 3, 4, 5)]
    assert torch.autograd.gradcheck(lambda *tensors: transport(*tensors, "entropic", regularisation), given)


def test_the_entropic_value_equals_plain_iterations(generator: torch.Generator) -> None:
    cost, rows, columns = problems(generator, 4, 5)
    a, b = rows / rows.sum(), columns / columns.sum()
    u, kernel = torch.ones(4, dtype=torch.float64), torch.exp(-cost / 0.2)
    for _ in range(2000):
        v = b / (kernel.T @ u)
        u = a / (kernel @ v)
    expected = (u[:, None] * kernel * v * cost).sum()
    torch.testing.assert_close(transport(cost, rows, columns, "entropic", 0.2), expected, rtol=1e-5, atol=1e-6)


def test_the_entropic_value_approaches_the_exact_one_from_above(generator: torch.Generator) -> None:
    given = problems(generator, 20, 6, 6)
    exact = transport(*given)
    errors = [(transport(*given, "entropic", epsilon) - exact) for epsilon in (1.0, 0.3, 0.1, 0.03, 0.01)]
    for larger, smaller in pairwise(errors):
        assert (smaller < larger + 1e-5).all()
    assert (errors[-1] > -1e-5).all()
    assert errors[-1].max() < 2e-3
    for epsilon, error in zip((1.0, 0.3, 0.1, 0.03, 0.01), errors, strict=True):
        assert error.max() < epsilon * np.log(6)


def test_a_small_regularisation_overflows_nothing(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_transport, "_MAX_ROUNDS", 30)
    cost, rows, columns = problems(generator, 3, 5, 5)
    cost.requires_grad_()
    with pytest.warns(UserWarning, match="did not converge"):
        values = transport(cost, rows, columns, "entropic", 1e-4)
    values.sum().backward()
    assert values.isfinite().all()
    assert cost.grad is not None
    assert cost.grad.isfinite().all()


def test_an_unknown_solver_is_refused() -> None:
    with pytest.raises(UserError, match="solver must be one of exact, entropic"):
        TransportClassifier(solver="fast")  # type: ignore[arg-type]


# ---- the classifier


def naive_score(image: Tensor, of_class: Tensor, scale: float, centre: bool) -> Tensor:
    """Maps ``(d, h, w)`` of an image and of a class -> ``()``, with the weights of the flow's ends as constants."""
    rows, others = (maps.flatten(1).T for maps in (image, of_class))
    a = [max((row @ others.mean(0)).item(), 0.0) + 1e-3 for row in rows]
    b = [max((row @ rows.mean(0)).item(), 0.0) + 1e-3 for row in others]
    if centre:
        rows, others = (x - x.mean(dim=1, keepdim=True) for x in (rows, others))
    similarity = torch.stack([torch.stack([x @ y / x.norm() / y.norm() for y in others]) for x in rows])
    flow = ot.emd(np.array(a) / sum(a), np.array(b) / sum(b), 1 - similarity.detach().numpy())
    return scale * (torch.from_numpy(flow) * similarity).sum()


def naive(support: Tensor, labels: Tensor, query: Tensor, steps: int, rate: float, centre: bool = True) -> Tensor:
    """One episode with loops; the SGD of the maps of classes is written out."""
    way = int(labels.max()) + 1
    classes = torch.stack([support[labels == label].mean(0) for label in range(way)])
    momentum = torch.zeros_like(classes)
    for step in range(steps if len(labels) > way else 0):
        leaf = classes.clone().requires_grad_()
        scores = torch.stack([torch.stack([naive_score(x, c, 3.0, centre) for c in leaf]) for x in support])
        torch.nn.functional.cross_entropy(scores, labels).backward()
        assert leaf.grad is not None
        momentum = 0.9 * momentum + 0.1 * leaf.grad if step else leaf.grad
        classes = classes - rate * momentum
    return torch.stack([torch.stack([naive_score(x, c, 3.0, centre) for c in classes]) for x in query]).detach()


def maps(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64) + 0.3


@pytest.mark.parametrize("labels", [[0, 1, 2], [0, 1, 0, 1], [1, 0, 2, 2]])
@pytest.mark.parametrize("centre", [True, False])
def test_equals_loops(labels: list[int], centre: bool, generator: torch.Generator) -> None:
    images = maps(generator, 2, len(labels) + 3, 6, 2, 3)
    support, query, given = images[:, : len(labels)], images[:, len(labels) :], torch.tensor(labels).expand(2, -1)
    classifier = TransportClassifier(3.0, centre, steps=4, rate=2.0)
    scores = classifier(support, given, query)
    assert scores.dtype == torch.float64
    for episode in range(2):
        expected = naive(support[episode], given[0], query[episode], 4, 2.0, centre)
        torch.testing.assert_close(scores[episode], expected, rtol=1e-7, atol=1e-7)
    single = classifier(support.float(), given, query.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), scores, rtol=1e-3, atol=1e-3)


def test_values_worked_out_by_hand() -> None:
    """Two orthogonal positions each, in another order: all weight goes to the equal ones."""
    query = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])  # (d=2, h=1, w=2)
    support = torch.stack([query.flip(-1), -query])
    classifier = TransportClassifier(scale=2.0, centre=False)
    scores = classifier(support, torch.tensor([0, 1]), query[None])
    torch.testing.assert_close(scores, torch.tensor([[2.0, -1.0]]) * torch.tensor([1.0, 0.0]), atol=1e-6, rtol=0)
    a, b = position_weights(*(x.flatten(1).T[None, None].double() for x in (query, support[0])))
    torch.testing.assert_close(a.flatten().tolist() + b.flatten().tolist(), [0.501] * 4)


@pytest.mark.parametrize("options", [{}, {"solver": "entropic", "regularisation": 0.3}])
def test_the_order_of_positions_does_not_matter(options: dict[str, Any], generator: torch.Generator) -> None:
    images = maps(generator, 7, 6, 2, 3)
    labels = torch.tensor([0, 1, 1, 0])
    classifier = TransportClassifier(steps=3, rate=1.0, **options)
    scores = classifier(images[:4], labels, images[4:])
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    shuffled = images.flatten(2)[..., order].unflatten(2, (2, 3))
    torch.testing.assert_close(classifier(shuffled[:4], labels, shuffled[4:]), scores)
    # With one image per class, each image may have an order of its own.
    one = classifier(images[:2], labels[:2], images[4:])
    torch.testing.assert_close(classifier(images[:2], labels[:2], shuffled[4:]), one)


def test_fitting_lowers_the_loss_of_the_support(generator: torch.Generator) -> None:
    support, labels = maps(generator, 6, 8, 2, 2), torch.tensor([0, 0, 0, 1, 1, 1])
    scores = [TransportClassifier(steps=steps, rate=1.0)(support, labels, support) for steps in (0, 5, 50)]
    losses = [float(torch.nn.functional.cross_entropy(each, labels)) for each in scores]
    assert losses[0] > losses[1] > losses[2]


def test_gradients(generator: torch.Generator) -> None:
    images = maps(generator, 4, 5, 1, 3).requires_grad_()
    labels = torch.tensor([0, 1])
    classifier = TransportClassifier()
    assert torch.autograd.gradcheck(lambda x: classifier(x[:2], labels, x[2:]), images)
    means = TransportClassifier(steps=0)
    assert torch.autograd.gradcheck(lambda x: means(x[:3], torch.tensor([0, 1, 1]), x[3:]), images)


def test_support_has_a_gradient_through_the_start_of_the_steps(generator: torch.Generator) -> None:
    images = maps(generator, 5, 5, 1, 3).requires_grad_()
    classifier = TransportClassifier(steps=2, rate=1e-9)
    classifier(images[:3], torch.tensor([0, 1, 1]), images[3:]).square().sum().backward()
    fitted, images.grad = images.grad, None
    TransportClassifier(steps=0)(images[:3], torch.tensor([0, 1, 1]), images[3:]).square().sum().backward()
    assert fitted is not None
    torch.testing.assert_close(fitted, images.grad)
    with torch.no_grad():  # as in an evaluation
        classifier(images[:3], torch.tensor([0, 1, 1]), images[3:])


@pytest.mark.parametrize("solver", ["exact", "entropic"])
def test_broken_features_are_named(solver: Any, generator: torch.Generator) -> None:
    images = maps(generator, 4, 5, 1, 3)
    images[3, 0] = torch.nan
    with pytest.raises(NotFinite, match="query has NaN"):
        TransportClassifier(solver=solver)(images[:2], torch.tensor([0, 1]), images[2:])


def test_its_working_memory_grows_with_positions_and_channels() -> None:
    made = TransportClassifier()
    small = made.working_memory((5, 8, 4, 4), (15, 8, 4, 4))
    assert made.working_memory((5, 64, 4, 4), (15, 64, 4, 4)) > 1.5 * small
    assert made.working_memory((5, 8, 8, 8), (15, 8, 8, 8)) > 8 * small
    assert TransportClassifier(solver="entropic").working_memory((5, 8, 4, 4), (15, 8, 4, 4)) > small
