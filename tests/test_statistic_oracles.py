"""The statistic against two independent libraries. dcor takes seconds to import, so only this file imports it."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepbdc.statistic import bd_correlation, bdc

shapes = {"m": st.integers(3, 60), "p": st.integers(1, 20), "q": st.integers(1, 20), "seed": st.integers(0, 2**31)}


def samples(m: int, p: int, q: int, seed: int, dependent: bool) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(m, p, dtype=torch.float64, generator=generator)
    y = torch.randn(m, q, dtype=torch.float64, generator=generator)
    if dependent:
        y[:, 0] += x[:, 0] ** 2
        y[m // 2] = y[0]  # a repeated observation
    return x * 3 + 5, y


@pytest.mark.parametrize("dependent", [False, True])
@given(**shapes)
def test_dcor(dependent: bool, m: int, p: int, q: int, seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import dcor

    x, y = samples(m, p, q, seed, dependent)
    covariance = dcor.distance_covariance_sqr(x.numpy(), y.numpy())
    correlation = dcor.distance_correlation_sqr(x.numpy(), y.numpy())
    assert bdc(x, y).item() == pytest.approx(covariance, abs=1e-10)
    assert bd_correlation(x, y).item() == pytest.approx(correlation, abs=1e-10)


@pytest.mark.parametrize("dependent", [False, True])
@given(**shapes)
def test_statsmodels(dependent: bool, m: int, p: int, q: int, seed: int) -> None:
    from statsmodels.stats.dist_dependence_measures import distance_statistics

    x, y = samples(m, p, q, seed, dependent)
    found = distance_statistics(x.numpy(), y.numpy())
    assert bdc(x, y).item() == pytest.approx(found.distance_covariance**2, abs=1e-10)
    assert bd_correlation(x, y).item() == pytest.approx(found.distance_correlation**2, abs=1e-10)
