"""The written-out gradient steps against autograd."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from deepbdc.classifiers.adapted_linear import AdaptedLinearClassifier


def naive(classifier: AdaptedLinearClassifier, support: Tensor, labels: Tensor, query: Tensor, steps: int) -> Tensor:
    """One episode, by autograd."""
    way = int(labels.max()) + 1
    weight = torch.zeros(way, support.shape[1], dtype=support.dtype, requires_grad=True)
    bias = torch.zeros(way, dtype=support.dtype, requires_grad=True)
    if classifier.weight is not None and classifier.bias is not None:
        weight, bias = classifier.weight, classifier.bias  # type: ignore[assignment]
    for _ in range(steps):
        loss = cross_entropy(support @ weight.T + bias, labels)
        gradients = torch.autograd.grad(loss, [weight, bias], create_graph=not classifier.first_order)
        weight, bias = (v - classifier.rate * g for v, g in zip((weight, bias), gradients, strict=True))  # type: ignore[assignment]
    return query @ weight.T + bias


@pytest.mark.parametrize("slots", [None, 3])
@pytest.mark.parametrize("first_order", [False, True])
def test_steps_and_their_gradients_are_those_of_autograd(
    slots: int | None, first_order: bool, generator: torch.Generator
) -> None:
    classifier = AdaptedLinearClassifier(4, slots, steps=3, test_steps=6, rate=0.3, first_order=first_order).double()
    rows = torch.randn(2, 9, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 2, 2, 0])
    for training, steps in ((True, 3), (False, 6)):
        classifier.train(training)
        scores = classifier(rows[:, :5], labels.expand(2, -1), rows[:, 5:])
        expected = torch.stack([naive(classifier, one[:5], labels, one[5:], steps) for one in rows])
        torch.testing.assert_close(scores, expected)
        parameters = [rows, *classifier.parameters()]
        weights = torch.randn(scores.shape, generator=generator, dtype=torch.float64)
        ours, theirs = (torch.autograd.grad((s * weights).sum(), parameters) for s in (scores, expected))
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other)


def test_gradcheck(generator: torch.Generator) -> None:
    classifier = AdaptedLinearClassifier(steps=2, rate=0.5).double()
    rows = torch.randn(5, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: classifier(x[:3], torch.tensor([0, 1, 1]), x[3:]), rows)


def test_its_rule_has_its_scores(generator: torch.Generator) -> None:
    classifier = AdaptedLinearClassifier(steps=4).eval()
    support, query = torch.randn(2, 6, 5, generator=generator), torch.randn(2, 3, 5, generator=generator)
    labels = torch.tensor([0, 1, 2, 0, 1, 2]).expand(2, -1)
    torch.testing.assert_close(classifier.rule(support, labels, 3)(query), classifier(support, labels, query))


def test_slots_fix_the_number_of_classes(generator: torch.Generator) -> None:
    classifier = AdaptedLinearClassifier(5, slots=3)
    with pytest.raises(ValueError, match="made for 3 classes"):
        classifier(torch.randn(2, 5, generator=generator), torch.tensor([0, 1]), torch.randn(1, 5, generator=generator))
