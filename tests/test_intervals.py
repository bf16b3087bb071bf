"""The interval over classes covers the truth on planted data, where the usual interval does not."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import t

from deepbdc.intervals import class_interval, usual_interval

TRUE_MEAN = 60.0


def planted(
    random: np.random.Generator,
    count: int = 20,
    way: int = 5,
    episodes: int = 2000,
    *,
    effect: float = 1.2,
    pair: float = 0.0,
    noise: float = 10.0,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Accuracies of episodes from freshly drawn classes, each with its own difficulty, and pairs with theirs."""
    effects = random.normal(0, effect, count)
    pairs = np.triu(random.normal(0, pair, (count, count)), 1)
    classes = np.argsort(random.random((episodes, count)), axis=1)[:, :way]
    ordered = np.sort(classes, axis=1)
    of_pairs = pairs[ordered[:, :, None], ordered[:, None, :]].sum(axis=(1, 2))
    return TRUE_MEAN + effects[classes].sum(axis=1) + of_pairs + random.normal(0, noise, episodes), classes


def naive_class_interval(values: NDArray[np.float64], classes: NDArray[np.int64]) -> float:
    """The docstring's formula with explicit loops, an intercept, and effects that sum to 0."""
    names = sorted(set(classes.ravel().tolist()))
    episodes, way, count = len(values), classes.shape[1], len(names)
    design = np.zeros((episodes, count))  # the intercept, then all effects but the last, which is minus their sum
    for row, members in enumerate(classes.tolist()):
        design[row, 0] = 1
        for member in members:
            if member == names[-1]:
                design[row, 1:] -= 1
            else:
                design[row, 1 + names.index(member)] += 1
    solution = np.linalg.lstsq(design, values, rcond=None)[0]
    to_effects = np.vstack([np.eye(count)[1:], -np.eye(count)[1:].sum(axis=0)])
    effects = to_effects @ solution
    residual = values - design @ solution
    covariance = (residual**2).sum() / (episodes - count) * np.linalg.inv(design.T @ design)
    by_chance = sum(row @ covariance @ row for row in to_effects) / (count - 1)
    between = max(0, (effects**2).sum() / (count - 1) - by_chance)
    return float(t(count - 1).ppf(0.975) * np.sqrt(way**2 * between / count + values.var() / episodes))


def bootstrap_interval(values: NDArray[np.float64], classes: NDArray[np.int64], random: np.random.Generator) -> float:
    """Resampled classes; an episode weighs the product of the multiplicities of its classes."""
    count = classes.max() + 1
    multiplicities = random.multinomial(count, np.full(count, 1 / count), size=200)
    weights = multiplicities[:, classes].prod(axis=2)
    return float(1.96 * ((weights @ values) / weights.sum(axis=1)).std())


@pytest.mark.parametrize(("count", "way", "episodes"), [(20, 5, 300), (6, 5, 40), (9, 2, 100)])
def test_equals_the_naive_formula(count: int, way: int, episodes: int) -> None:
    random = np.random.default_rng(count)
    for effect in (0.0, 3.0):
        values, classes = planted(random, count, way, episodes, effect=effect, pair=1)
        assert class_interval(values, classes) == pytest.approx(naive_class_interval(values, classes))
        renamed = 7 * classes + 3  # other numbers for the same classes
        assert class_interval(values, renamed) == pytest.approx(class_interval(values, classes))


@pytest.mark.parametrize(
    ("options", "usual_at_most"),
    [({}, 0.5), ({"pair": 1.0}, 0.5), ({"effect": 0.3, "pair": 0.3, "noise": 7.0}, 0.7), ({"count": 64}, 0.6)],
)
def test_covers_the_mean_over_all_classes(options: dict[str, float], usual_at_most: float) -> None:
    """The third case is like a paired difference: small effects in much noise."""
    random = np.random.default_rng(0)
    samples = [planted(random, **options) for _ in range(200)]  # type: ignore[arg-type]
    errors = np.array([abs(values.mean() - TRUE_MEAN) for values, _ in samples])
    of_classes = np.array([class_interval(*sample) for sample in samples])
    assert 0.9 <= (errors <= of_classes).mean() <= 0.99
    assert (errors <= [usual_interval(values) for values, _ in samples]).mean() < usual_at_most
    true_width = 1.96 * np.std([values.mean() for values, _ in samples])
    assert 0.8 < np.median(of_classes) / true_width < 1.35


def test_a_bootstrap_with_products_of_multiplicities_would_be_too_wide() -> None:
    random = np.random.default_rng(0)
    samples = [planted(random, effect=0.3, noise=7) for _ in range(30)]
    true_width = 1.96 * np.sqrt((5 * 0.3) ** 2 / 20 + 7**2 / 2000)
    assert np.median([bootstrap_interval(*sample, random) for sample in samples]) > 1.8 * true_width
    assert np.median([class_interval(*sample) or 0 for sample in samples]) < 1.35 * true_width


def test_never_below_the_usual_interval_and_hardly_above_it_without_effects_of_classes() -> None:
    random = np.random.default_rng(1)
    ratios = []
    for _ in range(50):
        values, classes = planted(random, effect=0)
        found = class_interval(values, classes)
        assert found is not None
        ratios.append(found / usual_interval(values))
    assert min(ratios) > 1
    assert np.median(ratios) < 1.5


def test_none_where_classes_cannot_be_told_apart() -> None:
    random = np.random.default_rng(0)
    assert class_interval(*planted(random, count=5, way=5, episodes=100)) is None
    assert class_interval(*planted(random, count=20, way=5, episodes=20)) is None
    values, classes = planted(random, count=4, way=2, episodes=100)
    always_together = np.concatenate([classes[:, :1] * 2, classes[:, :1] * 2 + 1], axis=1)
    assert class_interval(values, always_together) is None
    assert class_interval(*planted(random, count=6, way=5, episodes=100)) is not None
