import pytest
import torch

from deepbdc.errors import UserError
from deepbdc.estimator import FewShotClassifier
from deepbdc.own_images.suggesting import alike, choose, choose_alike, suggest
from tests.drawings import CLASSES, draw


def groups(count: int, size: int, seed: int = 0) -> torch.Tensor:
    """Vectors in some tight groups."""
    noise = 0.05 * torch.randn(count * size, 16, generator=torch.Generator().manual_seed(seed))
    return torch.eye(count, 16).repeat_interleave(size, dim=0) + noise


def test_one_picture_of_each_group_without_examples() -> None:
    pool = groups(4, 10)
    chosen = choose(pool, pool[:0], torch.ones(40), 4)
    assert {index // 10 for index, _ in chosen} == {0, 1, 2, 3}


def test_groups_with_examples_are_left_out() -> None:
    pool = groups(4, 10)
    chosen = choose(pool, groups(4, 1, seed=1)[:2], torch.ones(40), 2)
    assert {index // 10 for index, _ in chosen} == {2, 3}


def test_unsure_pictures_come_first() -> None:
    pool = groups(4, 10)
    unsure = torch.zeros(40)
    unsure[20:30] = 1
    ((index, explains),) = choose(pool, pool[:0], unsure, 1)
    assert index // 10 == 2
    assert explains >= 10


def test_no_picture_is_chosen_twice() -> None:
    pool = groups(2, 3)
    chosen = [index for index, _ in choose(pool, pool, torch.ones(6), 10)]
    assert sorted(chosen) == list(range(6))


def test_suggestions_for_pictures() -> None:
    fitted = FewShotClassifier().fit([draw(kind, 0) for kind in CLASSES[:2]], CLASSES[:2])
    pool = fitted.embed([draw(kind, seed) for kind in CLASSES for seed in (1, 2)])
    (first,) = suggest(fitted, pool, 1)
    assert first.index in (4, 5)  # of the class without an example
    assert (first.name, first.label in CLASSES[:2]) == (pool[first.index].name, True)
    assert suggest(fitted, [], 3) == []
    with pytest.raises(UserError, match="at least one picture"):
        suggest(fitted, pool, 0)


def test_the_same_by_similarities_that_are_known() -> None:
    pool, labelled, unsure = groups(4, 10), groups(4, 1, seed=1)[:2], torch.linspace(1, 0, 40)
    similarities = alike(torch.cat([pool, labelled]))
    assert torch.allclose(similarities, similarities.T)
    assert similarities.diagonal().allclose(torch.ones(42))
    assert similarities.min() == 0
    chosen = choose_alike(similarities[:40, :40], similarities[:40, 40:], unsure, 5)
    assert chosen == choose(pool, labelled, unsure, 5)
    assert choose_alike(similarities[:40, :40], similarities[:40, :0], unsure, 1) != chosen[:1]
