"""Methods: an embedding and a classifier under one name."""

from deepbdc.methods.base import Method

__all__ = ["Method"]
