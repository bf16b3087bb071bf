"""Pooling layers: from a map of features ``(n, channels, h, w)`` to one representation an image."""

from deepbdc.pooling.bdc import BDCPool

__all__ = ["BDCPool"]
