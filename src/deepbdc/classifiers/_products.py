"""Inner products between the images of an episode: all that a linear classifier needs to know of its features.

The weights of an L2-regularised linear classifier lie in the span of the support set, so that it can be trained in as
many dimensions as there are support images, whatever the number of features.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from deepbdc.classifiers.base import lengths

NORM_EPSILON = 1e-6


@contextmanager
def one_thread() -> Iterator[None]:
    """Run on one CPU thread, for a long series of small steps.

    Two threads gain little there, and when other programs keep the cores busy, each step waits for the slower of the
    two: that took 10 to 100 times as long.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def support_products(support: Tensor, normalize: bool) -> tuple[Tensor, Tensor]:
    """Inner products ``(e, s, s)`` within the support, and the factor ``(e, s)`` of each image in them, in float64.

    The factor is 1 / (‖v‖ + 1e-6) with ``normalize``, else 1. The features themselves are not copied.
    """
    products = (support @ support.transpose(-2, -1)).double()
    squares = products.diagonal(dim1=-2, dim2=-1)
    factors = 1 / (squares.sqrt() + NORM_EPSILON) if normalize else torch.ones_like(squares)
    return products * factors.unsqueeze(-1) * factors.unsqueeze(-2), factors


def class_weights(support: Tensor, factors: Tensor, coefficients: Tensor) -> Tensor:
    """Weights Σ coefficient · factor · image: ``(e, s, features), (e, s), (e, s, way) -> (e, way, features)``."""
    return (coefficients * factors.unsqueeze(-1)).transpose(-2, -1).to(support.dtype) @ support


def linear_scores(features: Tensor, weights: Tensor, normalize: bool) -> Tensor:
    """Products of images with weights, ``(e, n, features), (e, way, features) -> (e, n, way)``, in float64."""
    products = (features @ weights.transpose(-2, -1)).double()
    return products / (lengths(features).double().unsqueeze(-1) + NORM_EPSILON) if normalize else products
