"""The statistic against a naive implementation with loops, and its properties from Sec. 3.1 of the paper."""

import math
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepbdc.report.relations import NONLINEAR, relations
from deepbdc.statistic import bd_correlation, bdc, bdc_matrix, bdc_vector, distance_matrix, double_center


def naive_bdc_matrix(x: Tensor) -> list[list[float]]:
    rows = x.tolist()
    m = len(rows)
    distance = [[math.dist(rows[k], rows[j]) for j in range(m)] for k in range(m)]
    row_mean = [sum(distance[k]) / m for k in range(m)]
    grand_mean = sum(row_mean) / m
    return [[distance[k][j] - row_mean[k] - row_mean[j] + grand_mean for j in range(m)] for k in range(m)]


def naive_bdc(x: Tensor, y: Tensor) -> float:
    a, b = naive_bdc_matrix(x), naive_bdc_matrix(y)
    m = len(a)
    return sum(a[k][j] * b[k][j] for k in range(m) for j in range(m)) / m**2


def sample(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def orthonormal(seed: int, p: int) -> Tensor:
    return torch.linalg.qr(sample(seed, p, p))[0]


seeds = st.integers(0, 2**31)
sizes = st.integers(2, 12)
dimensions = st.integers(1, 5)
scales = st.floats(1e-3, 1e3)


@given(seed=seeds, m=sizes, p=dimensions, q=dimensions)
def test_equals_the_naive_implementation(seed: int, m: int, p: int, q: int) -> None:
    x, y = sample(seed, m, p), sample(seed + 1, m, q)
    torch.testing.assert_close(bdc_matrix(x), torch.tensor(naive_bdc_matrix(x), dtype=x.dtype))
    assert bdc(x, y).item() == pytest.approx(naive_bdc(x, y), abs=1e-13)
    expected = naive_bdc(x, y) / math.sqrt(naive_bdc(x, x) * naive_bdc(y, y))
    assert bd_correlation(x, y).item() == pytest.approx(expected, abs=1e-12)


@given(seed=seeds, m=sizes, p=dimensions, q=dimensions)
def test_non_negative_symmetric_and_bounded(seed: int, m: int, p: int, q: int) -> None:
    x, y = sample(seed, m, p), sample(seed + 1, m, q)
    assert bdc(x, y) >= 0
    assert bdc(x, y) == bdc(y, x)
    assert 0 <= bd_correlation(x, y) <= 1
    assert bd_correlation(x, x).item() == pytest.approx(1)


@given(seed=seeds, m=sizes, p=dimensions)
def test_rows_and_columns_sum_to_zero(seed: int, m: int, p: int) -> None:
    matrix = bdc_matrix(sample(seed, m, p))
    zeros = torch.zeros(m, dtype=matrix.dtype)
    torch.testing.assert_close(matrix.sum(dim=0), zeros, atol=1e-12, rtol=0)
    torch.testing.assert_close(matrix.sum(dim=1), zeros, atol=1e-12, rtol=0)


@given(seed=seeds, m=sizes, p=dimensions, q=dimensions, s=scales, u=scales)
def test_translation_rotation_and_scale(seed: int, m: int, p: int, q: int, s: float, u: float) -> None:
    """ρ(c₁ + s₁R₁X, c₂ + s₂R₂Y) = |s₁s₂| ρ(X, Y)."""
    x, y = sample(seed, m, p), sample(seed + 1, m, q)
    moved_x = sample(seed + 2, p) + s * x @ orthonormal(seed + 3, p)
    moved_y = sample(seed + 4, q) - u * y @ orthonormal(seed + 5, q)
    torch.testing.assert_close(bdc(moved_x, moved_y), s * u * bdc(x, y), rtol=1e-9, atol=1e-14 * s * u)
    torch.testing.assert_close(bd_correlation(moved_x, moved_y), bd_correlation(x, y), rtol=1e-9, atol=1e-12)


@given(seed=seeds, n=st.integers(1, 3), k=st.integers(1, 3), m=sizes)
def test_leading_dimensions_are_a_batch(seed: int, n: int, k: int, m: int) -> None:
    x, y = sample(seed, n, k, m, 3), sample(seed + 1, k, m, 2)
    together = bd_correlation(x, y)
    assert together.shape == (n, k)
    for i in range(n):
        for j in range(k):
            torch.testing.assert_close(together[i, j], bd_correlation(x[i, j], y[j]))


@given(seed=seeds, m=sizes)
def test_weighted_vector_has_the_inner_product_of_the_matrices(seed: int, m: int) -> None:
    a, b = bdc_matrix(sample(seed, m, 3)), bdc_matrix(sample(seed + 1, m, 2))
    trace = (a.T @ b).trace()
    torch.testing.assert_close(bdc_vector(a, "weighted") @ bdc_vector(b, "weighted"), trace)
    plain = bdc_vector(a) @ bdc_vector(b)
    torch.testing.assert_close(plain, (trace + a.diagonal() @ b.diagonal()) / 2)


def test_vector_is_the_upper_triangle_row_by_row() -> None:
    matrix = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]])
    assert bdc_vector(matrix).tolist() == [1, 2, 3, 4, 5, 6]
    assert bdc_vector(matrix.expand(2, 4, 3, 3)).shape == (2, 4, 6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-9)])
def test_samples_far_from_the_origin_keep_their_precision(dtype: torch.dtype, tolerance: float) -> None:
    offset = 4096.0  # x + offset is exact in float32 for these x
    x = torch.arange(20, dtype=dtype).reshape(10, 2).sin().mul(64).round() / 64
    assert torch.equal((x + offset) - offset, x)
    torch.testing.assert_close(bdc_matrix(x + offset), bdc_matrix(x), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(bd_correlation(x + offset, x), torch.ones((), dtype=dtype), rtol=tolerance, atol=0)


def test_duplicated_observations_have_distance_exactly_zero() -> None:
    x = torch.tensor([[0.1, 0.7], [0.1, 0.7], [3.0, 1.0]], dtype=torch.float32)
    assert distance_matrix(x)[0, 1] == 0


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constant_sample_has_correlation_zero_and_finite_gradient(constant: float, dtype: torch.dtype) -> None:
    x = torch.full((7, 2), constant, dtype=dtype, requires_grad=True)
    y = torch.arange(7, dtype=dtype)[:, None].requires_grad_()
    correlation = bd_correlation(x, y)
    assert correlation == 0
    correlation.backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert bdc(x.detach(), y.detach()) == 0


@pytest.mark.parametrize("scale", [1e-30, 1e25, 4e37])
def test_very_small_or_large_values(scale: float) -> None:
    x = torch.arange(9, dtype=torch.float32)[:, None]
    torch.testing.assert_close(distance_matrix(x * scale) / scale, distance_matrix(x), rtol=1e-4, atol=0)
    torch.testing.assert_close(bd_correlation(x * scale, x**2), bd_correlation(x, x**2), rtol=1e-4, atol=0)


def test_gradients() -> None:
    x, y = sample(0, 5, 3).requires_grad_(), sample(1, 5, 2).requires_grad_()
    assert torch.autograd.gradcheck(bdc, (x, y))
    assert torch.autograd.gradcheck(bd_correlation, (x, y))


@settings(max_examples=5)
@given(seed=seeds)
def test_detects_relations_that_pearson_correlation_misses(seed: int) -> None:
    found = list(islice(relations(points=1000, permutations=99, seed=seed), len(NONLINEAR)))
    assert [relation.name for relation in found] == list(NONLINEAR)
    for relation in found:
        assert abs(relation.corr) < 0.15, relation.name
        assert relation.p_value <= 0.05, relation.name
        assert relation.bdcorr > 3 * np.mean(relation.shuffled), relation.name


def test_independent_samples_are_not_detected() -> None:
    x, y = sample(5, 500, 1), sample(6, 500, 1)
    assert bd_correlation(x, y) < 0.02


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(5), "for m scalar observations use"),
        (torch.zeros(1, 3), "at least 2 observations, got 1"),
        (torch.zeros(3, 0), "at least 1 dimension"),
        (torch.zeros(4, 3, dtype=torch.int64), "float32 or float64, got torch.int64"),
        (torch.tensor([[0.0], [math.nan]]), "NaN or infinite"),
        (torch.tensor([[0.0], [math.inf]]), "NaN or infinite"),
    ],
)
def test_wrong_samples_raise_clear_errors(x: Tensor, message: str) -> None:
    for call in (lambda: bdc_matrix(x), lambda: bdc(x, x), lambda: bd_correlation(x, x)):
        with pytest.raises(ValueError, match=message):
            call()


def test_wrong_pairs_raise_clear_errors() -> None:
    with pytest.raises(ValueError, match=r"x has 4 observations.*y has 5"):
        bdc(torch.zeros(4, 2), torch.zeros(5, 2))
    with pytest.raises(ValueError, match="the same dtype"):
        bdc(torch.zeros(4, 2), torch.zeros(4, 2, dtype=torch.float64))
    with pytest.raises(TypeError, match=r"torch\.as_tensor"):
        bdc(np.zeros((4, 2)), np.zeros((4, 2)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="square"):
        double_center(torch.zeros(3, 4))
    with pytest.raises(ValueError, match="square"):
        bdc_vector(torch.zeros(3, 4))
    with pytest.raises(ValueError, match="square"):
        bdc_vector(torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"must broadcast, got \(2,\) and \(3,\)"):
        bdc(torch.zeros(2, 4, 1), torch.zeros(3, 4, 1))
    with pytest.raises(ValueError, match="'triangle' or 'weighted'"):
        bdc_vector(torch.zeros(3, 3), "lower")  # type: ignore[arg-type]
