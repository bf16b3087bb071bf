from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from deepbdc.report.relations import LINEAR, NONLINEAR, draw, measure, relations
from deepbdc.statistic import bd_correlation


@pytest.fixture(scope="module")
def found() -> list:  # type: ignore[type-arg]
    """The relations of `deepbdc paper relations`, with fewer permutations."""
    return list(relations(permutations=99, seed=0))


def test_correlation_misses_nonlinear_relations_and_bdcorr_does_not(found: list) -> None:  # type: ignore[type-arg]
    assert [relation.name for relation in found] == [*NONLINEAR, *LINEAR]
    for relation in found:
        if not relation.linear:
            assert abs(relation.corr) < 0.05, relation.name
        assert relation.bdcorr > relation.shuffled.max(), relation.name
        assert relation.p_value == pytest.approx(0.01)


def test_lines_without_noise_have_correlation_one_for_every_slope(found: list) -> None:  # type: ignore[type-arg]
    by_name = {relation.name: relation for relation in found}
    for name, sign in (("Slope 1", 1), ("Slope 0.3", 1), ("Slope −0.3", -1)):
        assert by_name[name].corr == pytest.approx(sign)
        assert by_name[name].bdcorr == pytest.approx(1)


def test_shuffled_values_are_the_correlations_of_permuted_samples() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=30), generator.normal(size=30)
    relation = measure("x", False, x, y, permutations=2, generator=np.random.default_rng(1))
    again = np.random.default_rng(1)
    for value in relation.shuffled:
        order = again.permutation(30)
        expected = bd_correlation(torch.as_tensor(x)[:, None], torch.as_tensor(y[order])[:, None])
        assert value == pytest.approx(expected.item(), abs=1e-6)


def test_the_same_seed_gives_the_same_sample() -> None:
    first, second = (next(relations(points=20, permutations=1, seed=4)) for _ in range(2))
    assert np.array_equal(first.x, second.x)
    assert np.array_equal(first.shuffled, second.shuffled)


def test_picture(found: list, tmp_path: Path) -> None:  # type: ignore[type-arg]
    draw(found, tmp_path / "new" / "relations.png")
    with Image.open(tmp_path / "new" / "relations.png") as image:
        assert image.width > 1000
