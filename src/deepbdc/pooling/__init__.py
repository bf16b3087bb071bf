"""Pooling layers: from a map of features ``(n, channels, h, w)`` to one representation per image."""

from deepbdc.pooling.average import AveragePool, Flatten, KeepMap
from deepbdc.pooling.base import Pool
from deepbdc.pooling.bdc import BDCPool

__all__ = ["AveragePool", "BDCPool", "Flatten", "KeepMap", "Pool"]
