"""The classifier of fused views against a naive twin."""

import pytest
import torch
from torch import Tensor

from deepbdc.classifiers.integrated_prototype import IntegratedPrototypeClassifier
from deepbdc.errors import UserError


def classifier(**options: object) -> IntegratedPrototypeClassifier:
    torch.manual_seed(0)
    return IntegratedPrototypeClassifier(3, views=2, heads=2, temperature=5.0, **options).double().eval()  # type: ignore[arg-type]


def naive_fused(row: Tensor, made: IntegratedPrototypeClassifier) -> Tensor:
    """The views of one image ``(6,)``, adapted one by one."""
    attention = made.attention
    views = row.reshape(2, 3)
    adapted = []
    for view in views:
        read = []
        for head in range(2):
            own = slice(3 * head, 3 * head + 3)
            q = (attention.query.weight @ view + attention.query.bias).clamp(min=0)[own]
            keys = [(attention.key.weight @ other + attention.key.bias).clamp(min=0)[own] for other in views]
            values = [(attention.value.weight @ other + attention.value.bias).clamp(min=0)[own] for other in views]
            weights = torch.stack([(q @ k / 3**0.5).exp() for k in keys])
            weights = weights / weights.sum()
            read.append(sum(w * v for w, v in zip(weights, values, strict=True)))
        out = view + (attention.output.weight @ torch.cat(read) + attention.output.bias).clamp(min=0)
        centred = out - out.mean()
        adapted.append(centred / (centred.square().mean() + 1e-5).sqrt())
    return torch.cat(adapted)


def test_scores_are_distances_to_means_of_fused_views(generator: torch.Generator) -> None:
    made = classifier()
    support = torch.randn(2, 5, 6, generator=generator, dtype=torch.float64)
    query = torch.randn(2, 3, 6, generator=generator, dtype=torch.float64)
    labels = torch.tensor([[0, 1, 1, 2, 0], [2, 0, 1, 1, 1]])
    scores = made(support, labels, query)
    for episode in range(2):
        fused = [naive_fused(row, made) for row in support[episode]]
        for place, row in enumerate(query[episode]):
            for c in range(3):
                mine = [vector for vector, label in zip(fused, labels[episode], strict=True) if label == c]
                mean = sum(mine) / len(mine)
                expected = -((naive_fused(row, made) - mean) ** 2).sum() / 5
                torch.testing.assert_close(scores[episode, place, c], expected)


def test_gradients(generator: torch.Generator) -> None:
    made = classifier()
    support = torch.randn(1, 3, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    query = torch.randn(1, 2, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[0, 1, 1]])
    assert torch.autograd.gradcheck(lambda s, q: made(s, labels, q), (support, query))


def test_its_weights_do_not_change_those_drawn_afterwards() -> None:
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    IntegratedPrototypeClassifier(3)
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize("wrong", [{"views": 0}, {"heads": 0}, {"dropout": 1.0}, {"temperature": 0.0}])
def test_wrong_options(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError):
        IntegratedPrototypeClassifier(3, **wrong)  # type: ignore[arg-type]
