"""Pooling layers: from a map of features ``(n, channels, h, w)`` to one representation per image."""

from deepbdc.pooling.average import AveragePool, Flatten, GridPool, KeepMap
from deepbdc.pooling.base import Pool
from deepbdc.pooling.bdc import BDCPool
from deepbdc.pooling.covariance import CovarianceRootPool, SecondMomentPool
from deepbdc.pooling.power import PowerFlatten

__all__ = [
    "AveragePool",
    "BDCPool",
    "CovarianceRootPool",
    "Flatten",
    "GridPool",
    "KeepMap",
    "Pool",
    "PowerFlatten",
    "SecondMomentPool",
]
