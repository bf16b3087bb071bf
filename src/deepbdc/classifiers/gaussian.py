"""Images and classes as Gaussians of their local descriptors, compared by the measures of ADM."""

import math
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from deepbdc.classifiers._scale import Scale
from deepbdc.classifiers.base import Classifier, grouped_by_class, positive
from deepbdc.errors import UserError

Measure = Literal["kl", "wasserstein"]

_BYTES_AT_A_TIME = 2**26
"""Memory for the covariances of a group of queries."""


class GaussianClassifier(Classifier):
    """Scores are minus the divergence of the Gaussian of a query from that of a class (Li et al., IJCAI 2020).

    A descriptor is the feature vector at one position of a map. The Gaussian of a query has the mean and the unbiased
    covariance of its h·w descriptors, that of a class those of all descriptors of its images together, so that classes
    may have unequal numbers of images. To each covariance ε I is added. The measures are

        KL(q ‖ c) = ½ [tr(Σ_c⁻¹ Σ_q) + (μ_c - μ_q)ᵀ Σ_c⁻¹ (μ_c - μ_q) + ln det Σ_c - ln det Σ_q - d],
        W(q, c) = ‖μ_q - μ_c‖ / d + ‖Σ_q - Σ_c‖_F / d²,

    the second a substitute for the Wasserstein distance in ADM's released code. With ``contrast`` the score of a
    class is the divergence from the Gaussian of all other classes, minus that from the class.

    An image has often fewer positions than channels, so that a covariance is ε in most directions; therefore
    everything is computed in float64. Σ_c is factorised once per class, and all queries share the factor, so nothing
    of size (queries, classes, d, d) is needed. Everything is differentiable.

    Args:
        measure: ``"kl"`` or ``"wasserstein"``.
        contrast: Compare with all other classes as well (ADM's contrastive measure strategy).
        ridge: ε. It cancels in ``"wasserstein"``.
        scale: Start of a learnable factor on the scores, the parameter group ``scale`` (None: no factor, as in ADM). KL
            is a sum over d dimensions; the factor is on its mean, KL / d, so that it has the same size for any d.
    """

    takes = "maps"
    named_parameter_groups = {"scale": ("scale.scale",)}  # noqa: RUF012

    def __init__(
        self, measure: Measure = "kl", contrast: bool = False, ridge: float = 0.01, scale: float | None = None
    ) -> None:
        super().__init__(measure=measure, contrast=contrast, ridge=ridge, scale=scale)
        if measure not in get_args(Measure):
            raise UserError(f"measure must be one of {', '.join(get_args(Measure))}, got {measure!r}")
        self.measure = measure
        self.contrast = contrast
        self.ridge = positive("ridge", ridge)
        self.scale = Scale(None if scale is None else positive("scale", scale))

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, d, h, w), (e, s), (e, q, d, h, w) -> (e, q, way)``."""
        grouped, present = grouped_by_class(_descriptors(support), support_labels, way)  # (e, way, most, r, d)
        present = present.repeat_interleave(grouped.shape[3], dim=-1)
        moments = _moments(grouped.flatten(2, 3).double(), present)
        classes = self._gaussians(moments)
        if self.contrast:
            classes = _beside(classes, self._gaussians(_of_the_others(moments)))
        factors = _factors(classes) if self.measure == "kl" else None
        found = []
        for part in query.split(self._queries_at_a_time(query), dim=1):
            descriptors = _descriptors(part).double()
            queries = self._gaussians(_moments(descriptors))
            if factors is None:
                found.append(_distances(queries, classes))
            else:
                found.append(_divergences(queries, self._log_determinants(queries, descriptors), factors))
        divergences = torch.cat(found, dim=1)  # (e, q, way), or (e, q, 2 · way)
        if self.contrast:
            own, others = divergences.chunk(2, dim=-1)
            divergences = own - others
        if self.measure == "kl" and self.scale.scale is not None:
            divergences = divergences / query.shape[2]
        scores: Tensor = self.scale(-divergences).to(query.dtype)
        return scores

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """Descriptors in float64, covariances of the classes and their factors, and those of a group of queries."""
        images, d, height, width = support
        descriptors = 8 * images * d * height * width
        # There are at most as many classes as images. Four matrices of each class, and a copy, are kept.
        covariances = 5 * 8 * images * d * d * (2 if self.contrast else 1)
        return 3 * descriptors + covariances + min(_BYTES_AT_A_TIME, query[0] * _bytes_per_query(query[1:]))

    def _queries_at_a_time(self, query: Tensor) -> int:
        return max(1, _BYTES_AT_A_TIME // (len(query) * _bytes_per_query(tuple(query.shape[2:]))))

    def _gaussians(self, moments: "_Moments") -> "_Gaussians":
        number, mean, scatter = moments
        identity = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
        # A single descriptor has no covariance of its own.
        covariance = scatter / (number - 1).clamp(min=1)[..., None, None] + self.ridge * identity
        return _Gaussians(mean, covariance)

    def _log_determinants(self, gaussians: "_Gaussians", descriptors: Tensor) -> Tensor:
        """Of the covariances of descriptors ``(e, n, r, d)``: ``(e, n)``.

        XᵀX and XXᵀ have the same eigenvalues apart from zeros, so the smaller of them is factorised. The gradient of
        the larger factor would take a third of the time of a training step of this classifier.
        """
        r, d = descriptors.shape[-2:]
        if r >= d:
            return _log_determinant(torch.linalg.cholesky(gaussians.covariance))
        centred = descriptors - gaussians.mean.unsqueeze(-2)
        identity = torch.eye(r, dtype=centred.dtype, device=centred.device)
        products = centred @ centred.transpose(-2, -1) / max(1, r - 1) + self.ridge * identity
        return _log_determinant(torch.linalg.cholesky(products)) + (d - r) * math.log(self.ridge)


class _Moments(NamedTuple):
    """Of sets of descriptors."""

    number: Tensor
    """Of descriptors, ``(...)``."""
    mean: Tensor
    """``(..., d)``."""
    scatter: Tensor
    """Σ_i (x_i - μ)(x_i - μ)ᵀ, ``(..., d, d)``."""


class _Gaussians(NamedTuple):
    mean: Tensor
    """``(e, n, d)``."""
    covariance: Tensor
    """``(e, n, d, d)``."""


class _Factors(NamedTuple):
    """What KL needs of the classes, from the Cholesky factor Σ = L Lᵀ."""

    mean: Tensor
    """``(e, way, d)``."""
    whitening: Tensor
    """L⁻¹ ``(e, way, d, d)``."""
    precision: Tensor
    """Σ⁻¹ = L⁻ᵀ L⁻¹, ``(e, way, d, d)``."""
    log_determinant: Tensor
    """Of Σ, ``(e, way)``."""


def _moments(descriptors: Tensor, present: Tensor | None = None) -> _Moments:
    """Moments of descriptors ``(..., n, d)``, of which only those count that are ``present`` ``(..., n)``."""
    if present is None:
        number = descriptors.new_tensor(float(descriptors.shape[-2])).expand(descriptors.shape[:-2])
        mean = descriptors.mean(dim=-2)
        centred = descriptors - mean.unsqueeze(-2)
    else:
        weights = present.to(descriptors.dtype).unsqueeze(-1)
        number = weights.sum(dim=(-2, -1))
        mean = (weights * descriptors).sum(dim=-2) / number.unsqueeze(-1)
        centred = weights * (descriptors - mean.unsqueeze(-2))
    return _Moments(number, mean, centred.transpose(-2, -1) @ centred)


def _of_the_others(classes: _Moments) -> _Moments:
    """For each class ``(e, way)``, the moments of the descriptors of all other classes together."""
    number, mean, scatter = classes
    way = number.shape[-1]
    if way < 2:
        raise UserError("contrast compares a class with all others: it needs at least two classes, got 1")
    others = 1 - torch.eye(way, dtype=mean.dtype, device=mean.device)
    weights = others * number.unsqueeze(-2)  # (e, way, way)
    numbers = weights.sum(dim=-1)
    means = weights @ mean / numbers.unsqueeze(-1)
    apart = mean.unsqueeze(-3) - means.unsqueeze(-2)  # (e, way, way, d)
    within = (others @ scatter.flatten(-2)).unflatten(-1, scatter.shape[-2:])
    return _Moments(numbers, means, within + (weights.unsqueeze(-1) * apart).transpose(-2, -1) @ apart)


def _beside(first: _Gaussians, second: _Gaussians) -> _Gaussians:
    return _Gaussians(*(torch.cat(pair, dim=1) for pair in zip(first, second, strict=True)))


def _factors(classes: _Gaussians) -> _Factors:
    lower = torch.linalg.cholesky(classes.covariance)
    identity = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
    whitening = torch.linalg.solve_triangular(lower, identity.expand_as(lower), upper=False)
    return _Factors(classes.mean, whitening, whitening.transpose(-2, -1) @ whitening, _log_determinant(lower))


def _log_determinant(lower: Tensor) -> Tensor:
    """ln det L Lᵀ, ``(..., d, d) -> (...)``."""
    return 2 * lower.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)


def _divergences(queries: _Gaussians, of_queries: Tensor, classes: _Factors) -> Tensor:
    """KL(query ‖ class), ``(e, q, way)``; ``of_queries`` are the logarithms of their determinants, ``(e, q)``."""
    mean, whitening, precision, of_classes = classes
    # tr(Σ_c⁻¹ Σ_q) is the sum of the products of their entries: one product for all queries and classes.
    traces = queries.covariance.flatten(2) @ precision.flatten(2).transpose(-2, -1)
    white_query = queries.mean.unsqueeze(1) @ whitening.transpose(-2, -1)  # (e, way, q, d)
    white_class = mean.unsqueeze(-2) @ whitening.transpose(-2, -1)  # (e, way, 1, d)
    squares = (white_query - white_class).square().sum(dim=-1).transpose(-2, -1)
    return (traces + squares + of_classes.unsqueeze(-2) - of_queries.unsqueeze(-1) - mean.shape[-1]) / 2


def _distances(queries: _Gaussians, classes: _Gaussians) -> Tensor:
    """‖μ_q - μ_c‖ / d + ‖Σ_q - Σ_c‖_F / d², ``(e, q, way)``."""
    d = queries.mean.shape[-1]
    exact = "donot_use_mm_for_euclid_dist"
    of_means = torch.cdist(queries.mean, classes.mean, compute_mode=exact)
    of_covariances = torch.cdist(queries.covariance.flatten(2), classes.covariance.flatten(2), compute_mode=exact)
    return of_means / d + of_covariances / d**2


def _bytes_per_query(query: tuple[int, ...]) -> int:
    """Memory of the descriptors of one query ``(d, h, w)`` and of its covariance, with copies, in float64."""
    d, height, width = query
    return 8 * (3 * d * height * width + 4 * d * d)


def _descriptors(maps: Tensor) -> Tensor:
    """The vectors at all positions: ``(e, n, d, h, w) -> (e, n, h · w, d)``."""
    return maps.flatten(3).transpose(-2, -1)
