import math

import numpy as np
import pytest
import torch
from scipy.special import stdtr
from torch import Tensor

from deepbdc import create_classifier
from deepbdc.errors import UserError
from deepbdc.own_images import familiarity
from deepbdc.own_images.confidence import class_directions, learn_confidence
from deepbdc.own_images.familiarity import Familiarity, _posterior, likeness, simulated_similarities, t_distribution
from deepbdc.own_images.rejection import reject_rate
from tests.own_images.test_confidence import LOGISTIC, clusters


def test_simulated_similarities_against_loops() -> None:
    examples, labels = clusters([3, 1, 2], 1.0)
    unit = torch.nn.functional.normalize(examples, dim=1)
    pairs = [(i, j) for i in range(6) for j in range(6) if i != j and labels[i] == labels[j]]
    cosine = np.mean([float(unit[i] @ unit[j]) for i, j in pairs])

    def similarity(index: int, label: int, left_out: set[int]) -> float:
        rows = [i for i in range(6) if labels[i] == label and i not in left_out]
        if not rows:
            return -2.0
        direction = unit[rows].sum(dim=0)
        found = float(unit[index] @ direction / direction.norm())
        if left_out == {index} and label == labels[index]:  # the class has one example less than for a new picture
            found *= math.sqrt((cosine + (1 - cosine) / len(rows)) / (cosine + (1 - cosine) / (len(rows) + 1)))
        every = sum(1 for i in range(6) if labels[i] == label)  # 2 on average
        return found * math.sqrt((cosine + (1 - cosine) / every) / (cosine + (1 - cosine) / 2))

    inside, outside = simulated_similarities(examples, labels, 3)
    for i in (0, 1, 2, 4, 5):
        assert float(inside[i]) == pytest.approx(max(similarity(i, k, {i}) for k in range(3)), abs=1e-5)
    assert inside[3].isnan()  # the only example of its class
    for i in range(6):
        own = {j for j in range(6) if labels[j] == labels[i]}
        assert float(outside[i]) == pytest.approx(max(similarity(i, k, own) for k in range(3)), abs=1e-5)


@pytest.mark.parametrize("freedom", [1, 2, 3, 5, 6, 30, 31, 5000])
def test_the_t_distribution_against_scipy(freedom: int) -> None:
    values = np.linspace(-8, 8, 41)
    assert t_distribution(values, freedom) == pytest.approx(
        stdtr(freedom, values), abs=1e-3 if freedom > 300 else 1e-12
    )


def test_familiarity_is_a_share_and_its_inverse_a_likeness() -> None:
    known = Familiarity(mean=0.7, spread=0.1, freedom=10, others=(0.2, 0.3, 0.9))
    assert known.of(0.7) == pytest.approx(0.5)
    assert np.all(np.diff(known.of([0.1, 0.5, 0.7, 0.9])) > 0)
    for rate in (0.01, 0.05, 0.5):
        assert known.of(known.likeness_at(rate)) == pytest.approx(rate)
    assert known.others_rejected(0.05) == pytest.approx(2 / 3)
    assert Familiarity(0.7, 0.1, 10).others_rejected(0.05) is None


def test_without_held_out_examples_the_prior_remains_and_with_many_it_vanishes() -> None:
    alone = _posterior(torch.empty(0, dtype=torch.float64), 0.5, ())
    assert (alone.mean, alone.freedom) == (0.5, familiarity.SPREAD_WEIGHT)
    assert alone.spread == pytest.approx(familiarity.SPREAD * math.sqrt(2))
    seen = 0.8 + 0.03 * torch.randn(5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    many = _posterior(seen, 0.5, ())
    assert many.likeness_at(0.05) == pytest.approx(float(seen.quantile(0.05)), abs=0.004)


@pytest.mark.parametrize("shots", [2, 5])
@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_as_many_known_pictures_are_lost_as_promised(shots: int, rate: float) -> None:
    lost, found = [], []
    for seed in range(12):
        pictures, labels = clusters([shots + 20] * 6, 1.0, seed)
        rank = torch.arange(len(labels)) % (shots + 20)
        examples, new, other = (labels < 5) & (rank < shots), (labels < 5) & (rank >= shots), labels == 5
        learnt = learn_confidence(LOGISTIC, pictures[examples], labels[examples], 5)

        def familiar(
            chosen: Tensor,
            learnt=learnt,
            pictures=pictures,
            labels=labels,
            examples=examples,  # type: ignore[no-untyped-def]
        ) -> np.ndarray:
            scores = LOGISTIC(pictures[examples], labels[examples], pictures[chosen])
            directions = class_directions(pictures[examples], labels[examples], 5)
            return learnt.familiarity.of(
                likeness(pictures[chosen], directions, torch.softmax(learnt.scale * scores, 1))
            )

        lost.append((familiar(new) < rate).mean())
        found.append((familiar(other) < rate).mean())
    # These likenesses vary less than those that the prior was learnt on, so that somewhat fewer are lost.
    assert rate - 0.08 <= np.mean(lost) <= rate + 0.05
    assert np.mean(lost) > 0.01
    assert np.mean(found) > 0.6


def test_a_single_picture_of_a_single_class_has_only_the_prior() -> None:
    examples, labels = clusters([1], 1.0)
    learnt = learn_confidence(create_classifier("prototype"), examples, labels, 1).familiarity
    assert (learnt.mean, learnt.others) == (familiarity.LONE_MEAN, ())


@pytest.mark.parametrize(("given", "rate"), [(True, 0.05), (0.2, 0.2), (False, None), (None, None)])
def test_what_reject_stands_for(given: bool | float | None, rate: float | None) -> None:
    assert reject_rate(given) == rate


@pytest.mark.parametrize("given", [0.0, 1.0, -0.1, 5])
def test_a_share_that_makes_no_sense_is_refused(given: float) -> None:
    with pytest.raises(UserError, match="between 0 and 1"):
        reject_rate(given)


def test_classes_with_few_examples_lose_no_more_pictures_than_others() -> None:
    """Of ten classes, five have one example and five have ten."""
    random = torch.Generator().manual_seed(0)
    kept: list[list[float]] = []
    for _ in range(10):
        centres = torch.randn(10, 100, generator=random)
        labels = torch.cat([torch.arange(5), torch.arange(5, 10).repeat(10)])
        new = torch.arange(10).repeat_interleave(40)
        examples, pictures = (centres[one] + torch.randn(len(one), 100, generator=random) for one in (labels, new))
        learnt = learn_confidence(LOGISTIC, examples, labels, 10)
        probabilities = torch.softmax(learnt.scale * LOGISTIC(examples, labels, pictures), dim=1)
        found = learnt.familiarity.of(likeness(pictures, class_directions(examples, labels, 10), probabilities))
        kept.append([(found[new < 5] >= 0.1).mean(), (found[new >= 5] >= 0.1).mean()])
    few, many = np.mean(kept, axis=0)
    assert few > 0.6  # without the factors for unequal classes it is 0.1
    assert many == pytest.approx(0.9, abs=0.05)


def test_equal_classes_need_no_factors() -> None:
    examples, labels = clusters([3, 3, 3], 1.0)
    assert class_directions(examples, labels, 3).norm(dim=1).tolist() == pytest.approx([1, 1, 1])
    assert familiarity.of_unequal_classes(examples[:3], torch.tensor([4.0, 4.0, 4.0])).tolist() == [1, 1, 1]
