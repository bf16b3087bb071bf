"""Pooling layers: from a map of features ``(n, channels, h, w)`` to one representation per image."""

from deepbdc.pooling.average import AveragePool, Flatten, GridPool, KeepMap
from deepbdc.pooling.base import Pool
from deepbdc.pooling.bdc import BDCPool
from deepbdc.pooling.covariance import CovarianceRootPool, SecondMomentPool

__all__ = ["AveragePool", "BDCPool", "CovarianceRootPool", "Flatten", "GridPool", "KeepMap", "Pool", "SecondMomentPool"]
