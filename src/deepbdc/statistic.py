"""Brownian distance covariance (BDC) between samples of random vectors: the statistic, as pure functions.

A sample is a tensor ``(..., m, p)``: m observations of a p-vector, with any number of leading batch dimensions, in
float32 or float64, on any device. All functions are differentiable once. Distances are computed from the differences of
observations, never through a Gram product, so that samples far from the origin keep their precision. The layer
`deepbdc.BDCPool` gives up a little of this precision for speed, and is differentiable twice.

References: Székely & Rizzo, "Brownian distance covariance" (2009); Xie et al., "Joint Distribution Matters: Deep
Brownian Distance Covariance for Few-Shot Classification" (CVPR 2022), Sec. 3.1.
"""

from typing import Literal

import torch
from torch import Tensor

from deepbdc.errors import UserError, WrongType

VectorForm = Literal["triangle", "weighted"]


def distance_matrix(x: Tensor) -> Tensor:
    """Euclidean distances between observations: ``(..., m, p) -> (..., m, m)``, â_kl = ‖x_k - x_l‖.

    >>> distance_matrix(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor([[0., 5.],
            [5., 0.]])
    """
    _check_sample(x, "x")
    scaled, largest = _to_unit_range(x)
    return torch.cdist(scaled, scaled, compute_mode="donot_use_mm_for_euclid_dist") * largest


def double_center(matrix: Tensor) -> Tensor:
    """Subtract the row and column means and *add* the grand mean: ``(..., m, m) -> (..., m, m)``.

    a_kl = â_kl - (1/m) Σ_k â_kl - (1/m) Σ_l â_kl + (1/m²) Σ_kl â_kl. Rows and columns then sum to 0. (The paper's text
    subtracts the grand mean; its Eq. 6 adds it, which is right.)

    >>> double_center(torch.tensor([[0.0, 5.0], [5.0, 0.0]]))
    tensor([[-2.5000,  2.5000],
            [ 2.5000, -2.5000]])
    """
    if matrix.dim() < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise UserError(f"double_center needs square matrices (..., m, m), got shape {tuple(matrix.shape)}")
    rows = matrix.mean(dim=-1, keepdim=True)
    columns = matrix.mean(dim=-2, keepdim=True)
    return matrix - rows - columns + rows.mean(dim=-2, keepdim=True)


def bdc_matrix(x: Tensor) -> Tensor:
    """The BDC matrix of a sample, which is its double-centred distance matrix: ``(..., m, p) -> (..., m, m)``.

    >>> bdc_matrix(torch.tensor([[0.0], [2.0], [4.0], [6.0]]))
    tensor([[-3.5000, -0.5000,  1.5000,  2.5000],
            [-0.5000, -1.5000,  0.5000,  1.5000],
            [ 1.5000,  0.5000, -1.5000, -0.5000],
            [ 2.5000,  1.5000, -0.5000, -3.5000]])
    """
    return double_center(distance_matrix(x))


def bdc(x: Tensor, y: Tensor) -> Tensor:
    """The BDC metric of paired samples ``(..., m, p), (..., m, q) -> (...)``: (1/m²) tr(AᵀB).

    This is the squared sample distance covariance. It is never negative, and its limit for many observations is 0 only
    if the variables are independent. The dimensions p and q may differ; the number of observations m must be the same.

    >>> x = torch.tensor([[-1.0], [0.0], [1.0]])
    >>> bdc(x, x**2)  # the classical covariance of these is 0
    tensor(0.0988)
    """
    _check_pair(x, y)
    return _inner_product(bdc_matrix(x), bdc_matrix(y))


def bd_correlation(x: Tensor, y: Tensor) -> Tensor:
    """The Brownian distance correlation of paired samples ``(..., m, p), (..., m, q) -> (...)``, in [0, 1].

    bdc(x, y) / sqrt(bdc(x, x) bdc(y, y)): 1 for a linear relation, 0 if a sample is constant.

    >>> x = torch.tensor([[-1.0], [0.0], [1.0]])
    >>> round(bd_correlation(x, 3 - 2 * x).item(), 4)
    1.0
    """
    _check_pair(x, y)
    a, b = bdc_matrix(_to_unit_range(x)[0]), bdc_matrix(_to_unit_range(y)[0])
    variances = _inner_product(a, a) * _inner_product(b, b)
    varies = variances > 0
    # Without the first "where", the unused branch of the second one would have an infinite gradient.
    scale = torch.where(varies, variances, 1).sqrt()
    return torch.where(varies, _inner_product(a, b) / scale, 0).clamp(max=1)


def bdc_vector(matrix: Tensor, form: VectorForm = "triangle") -> Tensor:
    """The upper triangles of symmetric matrices with their diagonals, row by row: ``(..., m, m) -> (..., m(m+1)/2)``.

    ``"triangle"`` takes the entries as they are. This is the paper's vector; relative to the other entries, the inner
    product of two such vectors counts the diagonal twice as much as tr(AᵀB) does. ``"weighted"`` multiplies the entries
    off the diagonal by √2, so that the inner product of two vectors is exactly tr(AᵀB).

    >>> bdc_vector(torch.tensor([[1.0, 2.0], [2.0, 3.0]]))
    tensor([1., 2., 3.])
    """
    if form not in ("triangle", "weighted"):
        raise UserError(f"form must be 'triangle' or 'weighted', got {form!r}")
    if matrix.dim() < 2 or matrix.shape[-2] != matrix.shape[-1]:
        raise UserError(f"bdc_vector needs square matrices (..., m, m), got shape {tuple(matrix.shape)}")
    m = matrix.shape[-1]
    rows, columns = torch.triu_indices(m, m, device=matrix.device)
    vector = matrix.flatten(-2)[..., rows * m + columns]
    if form == "weighted":
        vector = torch.where(rows == columns, vector, vector * 2**0.5)
    return vector


def _inner_product(a: Tensor, b: Tensor) -> Tensor:
    """(1/m²) tr(AᵀB). It is never negative for BDC matrices: the clamp only removes rounding errors."""
    return (a * b).mean(dim=(-2, -1)).clamp(min=0)


def _to_unit_range(x: Tensor) -> tuple[Tensor, Tensor]:
    """Shift a sample so that its first observation is 0, and scale it to [-1, 1].

    Returns the new sample and the factor ``(..., 1, 1)`` that undoes the scaling. Squares of very small or very large
    values then neither underflow nor overflow. The observations are halved before they are subtracted, because the
    difference of two finite numbers may be infinite.
    """
    half = x / 2 - x[..., :1, :] / 2
    largest = half.detach().abs().amax(dim=(-2, -1), keepdim=True)
    largest = torch.where(largest > 0, largest, 1)
    return half / largest, 2 * largest


def _check_pair(x: Tensor, y: Tensor) -> None:
    _check_sample(x, "x")
    _check_sample(y, "y")
    if x.shape[-2] != y.shape[-2]:
        raise UserError(
            f"x and y must be paired: x has {x.shape[-2]} observations (shape {tuple(x.shape)}), "
            f"y has {y.shape[-2]} (shape {tuple(y.shape)}). The second-to-last dimension counts the observations."
        )
    if x.dtype != y.dtype:
        raise UserError(f"x and y must have the same dtype, got {x.dtype} and {y.dtype}")
    try:
        torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    except RuntimeError as error:
        raise UserError(
            f"the batch dimensions of x and y must broadcast, got {tuple(x.shape[:-2])} and {tuple(y.shape[:-2])}"
        ) from error


def _check_sample(x: Tensor, name: str) -> None:
    if not isinstance(x, Tensor):
        raise WrongType(f"{name} must be a torch.Tensor, got {type(x).__name__}: use torch.as_tensor")
    if x.dtype not in (torch.float32, torch.float64):
        raise UserError(f"{name} must be float32 or float64, got {x.dtype}")
    if x.dim() < 2:
        raise UserError(
            f"{name} must have shape (..., observations, dimensions), got {tuple(x.shape)}; "
            f"for m scalar observations use {name}[:, None]"
        )
    if x.shape[-2] < 2:
        raise UserError(f"{name} needs at least 2 observations, got {x.shape[-2]} (shape {tuple(x.shape)})")
    if x.shape[-1] < 1:
        raise UserError(f"{name} needs at least 1 dimension, got shape {tuple(x.shape)}")
    if not torch.compiler.is_compiling() and not bool(torch.isfinite(x).all()):
        raise UserError(f"{name} has NaN or infinite entries")
