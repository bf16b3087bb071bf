import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from deepbdc import create_classifier
from deepbdc.own_images import confidence
from deepbdc.own_images.confidence import (
    held_out_scores,
    in_their_span,
    learn_confidence,
    usual_scale,
)

LOGISTIC = create_classifier("logistic", C=10.0)


def clusters(counts: list[int], noise: float, seed: int = 0, features: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    centres = torch.randn(len(counts), features, generator=generator) + 1
    return centres[labels] + noise * torch.randn(len(labels), features, generator=generator), labels


def test_the_span_keeps_all_inner_products() -> None:
    examples, _ = clusters([3, 2], 1.0)
    inside = in_their_span(examples)
    assert inside.shape == (5, 5)
    assert torch.allclose(inside @ inside.T, (examples @ examples.T).double(), atol=1e-3)


def test_held_out_scores_come_from_a_fit_to_the_other_examples() -> None:
    examples, labels = clusters([2, 2, 1], 0.5)
    scores, true = held_out_scores(LOGISTIC, examples, labels, 3)
    assert true.tolist() == [
        0,
        1,
        0,
        1,
    ]  # class 2 keeps its only example
    without = torch.tensor([1, 3, 4])
    assert torch.allclose(scores[:2], LOGISTIC(examples[without], labels[without], examples[[0, 2]]), atol=1e-5)


@given(st.lists(st.integers(1, 13), min_size=1, max_size=6))
def test_each_example_is_held_out_once_and_no_class_becomes_empty(counts: list[int]) -> None:
    examples, labels = clusters(counts, 0.5)
    prototype = create_classifier("prototype")
    _, true = held_out_scores(prototype, examples, labels, len(counts))
    assert torch.bincount(true, minlength=len(counts)).tolist() == [count if count > 1 else 0 for count in counts]


def test_the_scale_minimises_the_loss() -> None:
    examples, labels = clusters([6, 6, 6], 2.0)
    learnt = learn_confidence(LOGISTIC, examples, labels, 3).scale
    scores, true = held_out_scores(LOGISTIC, in_their_span(examples), labels, 3)
    usual = usual_scale(examples, labels, 3)

    def loss(scale: float) -> float:
        likelihood = torch.nn.functional.cross_entropy(scores * scale, true, reduction="sum")
        return float(likelihood) + (math.log(scale / usual) / confidence.DEVIATION) ** 2 / 2

    assert all(loss(learnt) <= loss(learnt * factor) for factor in (0.8, 0.95, 1.05, 1.25))


def test_well_separated_classes_give_larger_probabilities_than_mixed_ones() -> None:
    clear, mixed = (learn_confidence(LOGISTIC, *clusters([5] * 4, noise), 4).scale for noise in (0.3, 4.0))
    assert clear > 1.3 * mixed


def test_single_examples_give_the_usual_scale() -> None:
    examples, labels = clusters([1, 1, 1], 1.0)
    assert learn_confidence(LOGISTIC, examples, labels, 3).scale == pytest.approx(
        usual_scale(examples, labels, 3), rel=0.02
    )


def test_the_usual_scale_compensates_for_the_size_of_scores() -> None:
    """With single examples, probabilities hardly depend on C or on the classifier."""
    examples, labels = clusters([1] * 5, 1.0)
    query = examples + torch.randn(examples.shape, generator=torch.Generator().manual_seed(3))
    confidences = []
    for classifier in (
        LOGISTIC,
        create_classifier("logistic", C=1.0),
        create_classifier("prototype", similarity="cosine"),
    ):
        scale = learn_confidence(classifier, examples, labels, 5).scale
        confidences.append(
            float(torch.softmax(scale * classifier(examples, labels, query), dim=1).max(dim=1).values.mean())
        )
    assert max(confidences) - min(confidences) < 0.08


@pytest.mark.parametrize("similarity", ["euclidean", "inner_product"])
def test_probabilities_do_not_depend_on_the_size_of_representations(similarity: str) -> None:
    examples, labels = clusters([5] * 4, 1.0)
    prototype = create_classifier("prototype", similarity=similarity)
    small, large = (learn_confidence(prototype, size * examples, labels, 4).scale for size in (1, 1000))
    assert large == pytest.approx(small / 1000**2, rel=0.02)
