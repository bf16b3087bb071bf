"""95 % intervals of a mean over episodes: the usual one, and one that also holds for other classes."""

import numpy as np
from numpy.typing import NDArray


def usual_interval(values: NDArray[np.float64]) -> float:
    """Half the width of the 95 % interval that papers report, 1.96 · std / √n.

    Args:
        values: Accuracies, or differences of accuracies, one for each episode ``(episodes,)``.

    It says where the mean over all episodes of *these* classes and images lies. It becomes as small as one likes with
    more episodes, and says nothing about other classes.
    """
    return float(1.96 * values.std() / np.sqrt(len(values)))


def class_interval(values: NDArray[np.float64], classes: NDArray[np.int64]) -> float | None:
    """Half the width of a 95 % interval that regards the test classes as a sample.

    It says where the mean over all classes of the same kind, with their images, lies. More episodes do not make it
    small; more test classes do.

    Args:
        values: Accuracies, or differences of accuracies, one for each episode ``(episodes,)``.
        classes: The classes of each episode ``(episodes, way)``.

    Returns:
        None if the episodes do not tell the classes apart, for example if each has all classes (5-way episodes of 5
        classes), or if there are hardly more episodes than classes.

    The model is that each class adds its own effect to every episode that it is part of:

        value of an episode = mean + sum of the effects of its classes + rest

    Least squares estimate the effects of the N classes. Let v be the variance of these estimates, minus the part of it
    that the rest causes by chance. Then the mean over n episodes has the variance way² · v / N + (variance of the
    values) / n. The interval takes the quantile of Student's t with N - 1 degrees of freedom instead of 1.96, because v
    is estimated from N classes only.

    This assumes that the classes were drawn independently of each other. Effects of pairs of classes, such as two that
    look alike, enter v with about twice their weight, which makes the interval too wide rather than too narrow. The
    randomness of training is not included.

    A bootstrap that resamples the classes, and weights an episode with the product of the multiplicities of its
    classes, is not used: with 5-way episodes of 20 classes, few episodes keep a large weight, and the noise of these
    few makes the interval far too wide. ``tests/test_intervals.py`` shows both on planted data.
    """
    from scipy.stats import t

    named, places = np.unique(classes, return_inverse=True)
    (episodes, way), count = classes.shape, len(named)
    if episodes <= count or count == 1:
        return None
    present = np.zeros((episodes, count))
    np.put_along_axis(present, places.reshape(classes.shape), 1, axis=1)
    together = present.T @ present  # how often two classes were in one episode
    if np.linalg.matrix_rank(together, hermitian=True) < count:
        return None
    inverse = np.linalg.inv(together)
    effects = inverse @ (present.T @ values)  # each with the same share, mean / way, of the mean
    rest = values - present @ effects
    noise = rest @ rest / (episodes - count)
    by_chance = noise * (np.trace(inverse) - inverse.sum() / count) / (count - 1)
    between = max(0.0, effects.var(ddof=1) - by_chance)
    return float(t.ppf(0.975, count - 1) * np.sqrt(way**2 * between / count + values.var() / episodes))
