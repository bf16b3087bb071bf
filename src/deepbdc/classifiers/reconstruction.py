"""Feature map reconstruction: how well the positions of a class reproduce those of a query."""

import torch
from torch import Tensor, nn

from deepbdc.classifiers._scale import Scale
from deepbdc.classifiers.base import Classifier, grouped_by_class, positive, shots

_BYTES_AT_A_TIME = 2**26
"""Memory for the second moments of a group of queries."""
_SMALLEST_PENALTY = 1e-6


class ReconstructionClassifier(Classifier):
    """Scores are errors of a ridge regression (FRN: Wertheimer, Tang, Hariharan, CVPR 2021).

    The rows of S_c are the feature vectors at all positions of all images of a class, those of Q the r positions of a
    query. The rows of Q are reconstructed as Q̄ = ρ Q S_cᵀ (S_c S_cᵀ + λ I)⁻¹ S_c, and the score is
    s_c(Q) = -γ/r · ‖Q̄ - Q‖²_F, with λ = rows(S_c)/d · exp(α) + 1e-6, ρ = exp(β), and d channels. α, β and γ are learnt.

    Classes may have unequal numbers of images, each with its own λ. The matrix to solve with has the size d or
    rows(S_c), whichever is smaller. Everything is differentiable.

    Args:
        scale: Start of γ, the parameter group ``scale``. α and β start at 0 and are the group ``ridge``.
        divide_features: Divide all features by √d first, so that a squared distance is a mean over channels.
    """

    takes = "maps"
    named_parameter_groups = {"scale": ("scale.scale",), "ridge": ("alpha", "beta")}  # noqa: RUF012

    def __init__(self, scale: float = 1.0, divide_features: bool = True) -> None:
        super().__init__(scale=scale, divide_features=divide_features)
        self.scale = Scale(positive("scale", scale))
        self.alpha = nn.Parameter(torch.zeros(()))
        self.beta = nn.Parameter(torch.zeros(()))
        self.divide_features = divide_features

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, d, h, w), (e, s), (e, q, d, h, w) -> (e, q, way)``."""
        rows = rows_of_classes(self.rows(support), support_labels, way)
        counts = shots(support_labels, way) * support.shape[3] * support.shape[4]
        operators = error_operators(rows, counts, self.alpha, self.beta)
        scores: Tensor = self.scale(-reconstruction_errors(operators, self.rows(query)))
        return scores

    def rows(self, maps: Tensor) -> Tensor:
        """The feature vectors at all positions: ``(..., d, h, w) -> (..., h · w, d)``."""
        rows = maps.flatten(-2).transpose(-2, -1)
        return rows / maps.shape[-3] ** 0.5 if self.divide_features else rows

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """Copies of the rows, a few matrices for each class, and the moments of the queries scored at a time."""
        images, channels, height, width = support
        rows = 4 * (5 * images + query[0]) * channels * height * width
        return (
            rows
            + 3 * images * _bytes_per_query(channels)
            + min(_BYTES_AT_A_TIME, query[0] * _bytes_per_query(channels))
        )


def rows_of_classes(rows: Tensor, labels: Tensor, way: int) -> Tensor:
    """Stack the rows of the images of each class: ``(e, s, r, d), (e, s) -> (e, way, most · r, d)``.

    Classes with fewer images are filled up with rows of zeros, which change no product of rows.
    """
    grouped, present = grouped_by_class(rows, labels, way)  # (e, way, most, r, d)
    if not bool(present.all()):
        grouped = grouped * present[..., None, None].to(rows.dtype)
    return grouped.flatten(2, 3)


def error_operators(rows: Tensor, counts: Tensor, alpha: Tensor | float, beta: Tensor | float) -> Tensor:
    """The matrix E of each class with ‖q̄ - q‖² = q E qᵀ for every row q: ``(..., n, d), (...) -> (..., d, d)``.

    With q̄ = ρ q H and symmetric H = Sᵀ (S Sᵀ + λ I)⁻¹ S = (Sᵀ S + λ I)⁻¹ Sᵀ S it is E = (I - ρ H)².

    Args:
        rows: S of each class; rows of zeros are no rows.
        counts: The number of rows that count for λ.
        alpha: Logarithm of the factor of λ.
        beta: Logarithm of ρ.
    """
    size, channels = rows.shape[-2:]
    alpha, beta = (torch.as_tensor(value, dtype=rows.dtype, device=rows.device) for value in (alpha, beta))
    penalty = (counts.to(rows.dtype) / channels * alpha.exp() + _SMALLEST_PENALTY)[..., None, None]
    factor = beta.exp()
    identity = torch.eye(channels, dtype=rows.dtype, device=rows.device)
    if size < channels:
        gram = rows @ rows.transpose(-2, -1)
        inverted = _ridge_solve(gram, penalty, rows)  # W with H = Sᵀ W and H² = Wᵀ (S Sᵀ) W
        return identity - (2 * factor * rows - factor**2 * gram @ inverted).transpose(-2, -1) @ inverted
    moments = rows.transpose(-2, -1) @ rows
    remainder = identity - factor * _ridge_solve(moments, penalty, moments)
    return remainder @ remainder.transpose(-2, -1)


def reconstruction_errors(operators: Tensor, query: Tensor) -> Tensor:
    """Mean over the rows of ‖q̄ - q‖²: ``(e, way, d, d), (e, q, r, d) -> (e, q, way)``.

    As the mean of q E qᵀ is the inner product of E with the second moments QᵀQ/r, a query costs the same for every
    number of positions once these are known.
    """
    of_classes = operators.flatten(2).transpose(-2, -1)
    at_a_time = max(1, _BYTES_AT_A_TIME // (len(query) * _bytes_per_query(query.shape[-1])))
    errors = [
        (part.transpose(-2, -1) @ part / query.shape[2]).flatten(2) @ of_classes
        for part in query.split(at_a_time, dim=1)
    ]
    return torch.cat(errors, dim=1)


def _ridge_solve(matrix: Tensor, penalty: Tensor, right: Tensor) -> Tensor:
    """(matrix + penalty · I)⁻¹ right, for symmetric positive semi-definite matrices."""
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    factor: Tensor = torch.linalg.cholesky(matrix + penalty * identity)
    return torch.cholesky_solve(right, factor)


def _bytes_per_query(channels: int) -> int:
    """Memory of the second moments of one query, with a copy."""
    return 2 * 4 * channels**2
