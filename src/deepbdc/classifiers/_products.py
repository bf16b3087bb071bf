"""Inner products between the images of an episode: a linear classifier needs nothing else of its features.

The weights of an L2-regularised linear classifier lie in the span of the support set, so that it can be trained in as
many dimensions as there are support images, whatever the number of features.
"""

import torch
from torch import Tensor

from deepbdc.classifiers.base import lengths

NORM_EPSILON = 1e-6


def support_products(support: Tensor, normalize: bool) -> tuple[Tensor, Tensor]:
    """Inner products ``(e, s, s)`` within the support, and the factor ``(e, s)`` of each image in them, in float64.

    The factor is 1 / (‖v‖ + 1e-6) with ``normalize``, else 1. The features themselves are not copied.
    """
    products = (support @ support.transpose(-2, -1)).double()
    squares = products.diagonal(dim1=-2, dim2=-1)
    factors = 1 / (squares.sqrt() + NORM_EPSILON) if normalize else torch.ones_like(squares)
    return products * factors.unsqueeze(-1) * factors.unsqueeze(-2), factors


def centred(products: Tensor) -> Tensor:
    """The inner products ``(e, s, s)`` of the same images with their mean subtracted."""
    rows = products.mean(dim=-1, keepdim=True)
    columns = products.mean(dim=-2, keepdim=True)
    return products - rows - columns + rows.mean(dim=-2, keepdim=True)


def centred_among(products: Tensor, present: Tensor) -> Tensor:
    """`centred` for those images where ``present`` ``(e, s, 1)`` is 1, not 0. The products of the others become 0."""
    mean = products @ present / present.sum(dim=1, keepdim=True)  # with the mean of those images, (e, s, 1)
    of_mean = (present * mean).sum(dim=1, keepdim=True) / present.sum(dim=1, keepdim=True)
    return (products - mean - mean.transpose(-2, -1) + of_mean) * present * present.transpose(-2, -1)


def class_weights(support: Tensor, factors: Tensor, coefficients: Tensor) -> Tensor:
    """Weights Σ coefficient · factor · image: ``(e, s, features), (e, s), (e, s, way) -> (e, way, features)``."""
    return (coefficients * factors.unsqueeze(-1)).transpose(-2, -1).to(support.dtype) @ support


def linear_scores(features: Tensor, weights: Tensor, normalize: bool) -> Tensor:
    """Products of images with weights, ``(e, n, features), (e, way, features) -> (e, n, way)``, in float64."""
    products = (features @ weights.transpose(-2, -1)).double()
    return products / (lengths(features).double().unsqueeze(-1) + NORM_EPSILON) if normalize else products
