"""Second-order pooling: an image is described by the second moments of its feature channels."""

from abc import abstractmethod

import torch
from torch import Tensor

from deepbdc.errors import UserError
from deepbdc.pooling._bdc_operator import Output
from deepbdc.pooling.base import ReducedPool, in_full_precision
from deepbdc.statistic import bdc_vector

_TRACE_EPSILON = 1e-10
"""Added to the trace of a covariance, so that a map of equal positions has the root 0 and a finite gradient."""


class _MatrixPool(ReducedPool):
    """A pooling layer that describes an image by a symmetric d×d matrix."""

    def __init__(
        self, channels: int, reduce_to: int | None, center: bool, output: Output, **settings: float | int
    ) -> None:
        super().__init__(channels, reduce_to, center=center, output=output, **settings)
        if output not in ("triangle", "weighted", "matrix"):
            raise UserError(f"output must be 'triangle', 'weighted' or 'matrix', got {output!r}")
        self.center = center
        self.output: Output = output
        d = self.dimensions
        self.out_features = d * d if output == "matrix" else d * (d + 1) // 2

    def represent(self, reduced: Tensor) -> Tensor:
        """The second half: from reduced maps ``(n, d, h, w)`` to matrices, or the vectors of their triangles."""
        return in_full_precision(self._represent, reduced)

    def _represent(self, maps: Tensor) -> Tensor:
        matrix = self.normalise(second_moment(maps.flatten(2), self.center))
        return matrix if self.output == "matrix" else bdc_vector(matrix, self.output)

    @abstractmethod
    def normalise(self, moments: Tensor) -> Tensor:
        """What is done to the second moments ``(n, d, d)``."""


class SecondMomentPool(_MatrixPool):
    """The second moments of the channels over positions, with a signed root: ``(n, channels, h, w) -> (n, d(d+1)/2)``.

    Wertheimer and Hariharan, "Few-Shot Learning with Localization in Realistic Settings", CVPR 2019. With the feature
    vectors x_j at the p positions of a map,

        M = (1/p) Σ_j x_j x_jᵀ,      R_kl = sign(M_kl) · sqrt(|M_kl| + eps).

    The original takes all d² entries of R as a vector. The default, the upper triangle with √2 off the diagonal, has
    the same distances and inner products with half the numbers.

    Args:
        channels: Channels of the incoming map.
        reduce_to: Channels d after a 1×1 convolution, batch norm and ReLU, as in `BDCPool`. None: no reduction.
        center: Subtract the mean of the positions first, so that M is the covariance.
        output: ``"weighted"``: the upper triangle with √2 off the diagonal; ``"triangle"``: without that factor;
            ``"matrix"``: ``(n, d, d)``.
        eps: Keeps the gradient of the root finite near 0. Where M_kl is exactly 0, R_kl and its gradient are 0.

    >>> pool = SecondMomentPool(64, reduce_to=16)
    >>> pool(torch.rand(2, 64, 5, 5)).shape, pool.out_features
    (torch.Size([2, 136]), 136)
    """

    def __init__(
        self,
        channels: int,
        reduce_to: int | None = None,
        *,
        center: bool = False,
        output: Output = "weighted",
        eps: float = 1e-5,
    ) -> None:
        super().__init__(channels, reduce_to, center, output, eps=eps)
        if not eps > 0:
            raise UserError(f"eps must be positive, got {eps}")
        self.eps = eps

    def normalise(self, moments: Tensor) -> Tensor:
        """The signed square root of each entry."""
        return moments.sign() * (moments.abs() + self.eps).sqrt()


class CovarianceRootPool(_MatrixPool):
    """The matrix square root of the covariance of the channels, ``(n, channels, h, w) -> (n, d(d+1)/2)``.

    Li et al., "Is Second-order Information Helpful for Large-scale Visual Recognition?", ICCV 2017 (MPN-COV), with the
    iterations of Li et al., "Towards Faster Training of Global Covariance Pooling Networks by Iterative Matrix Square
    Root Normalization", CVPR 2018 (iSQRT-COV). With A = Σ / tr(Σ), Y = A and Z = I, each iteration computes

        Y ← Y (3I - Z Y) / 2,      Z ← (3I - Z Y) Z / 2,

    and the representation is sqrt(tr(Σ)) · Y, which converges to Σ^(1/2). Eigenvalues that are small relative to the
    trace converge slowly: after five iterations, the usual number, they are still smaller than their roots.

    Args:
        channels: Channels of the incoming map.
        reduce_to: Channels d after a 1×1 convolution, batch norm and ReLU, as in `BDCPool`. None: no reduction.
        center: Subtract the mean of the positions first. Without it, Σ is the second moment.
        iterations: How many.
        output: ``"weighted"``: the upper triangle with √2 off the diagonal, which keeps distances and inner products
            of matrices; ``"triangle"``: without that factor, as in the papers; ``"matrix"``: ``(n, d, d)``.

    >>> pool = CovarianceRootPool(64, reduce_to=16)
    >>> pool(torch.rand(2, 64, 5, 5)).shape, pool.out_features
    (torch.Size([2, 136]), 136)
    """

    def __init__(
        self,
        channels: int,
        reduce_to: int | None = None,
        *,
        center: bool = True,
        iterations: int = 5,
        output: Output = "weighted",
    ) -> None:
        super().__init__(channels, reduce_to, center, output, iterations=iterations)
        if iterations < 1:
            raise UserError(f"iterations must be at least 1, got {iterations}")
        self.iterations = iterations

    def normalise(self, moments: Tensor) -> Tensor:
        """The matrix square root."""
        trace = moments.diagonal(dim1=1, dim2=2).sum(dim=1)[:, None, None] + _TRACE_EPSILON
        identity = torch.eye(moments.shape[1], dtype=moments.dtype, device=moments.device)
        y, z = moments / trace, identity
        for _ in range(self.iterations):
            step = 1.5 * identity - 0.5 * (z @ y)
            y, z = y @ step, step @ z
        # All factors are polynomials in one symmetric matrix: only rounding makes the product unsymmetric.
        return trace.sqrt() * (y + y.transpose(1, 2)) / 2


def second_moment(x: Tensor, center: bool = False) -> Tensor:
    """The mean over p positions of x_j x_jᵀ, ``(n, d, p) -> (n, d, d)``; with ``center``, their covariance."""
    if center:
        x = x - x.mean(dim=2, keepdim=True)
    return x @ x.transpose(1, 2) / x.shape[2]
