"""Trained layers inside a classifier, applied to representations of any precision."""

from typing import Any

from torch import Tensor, nn
from torch.func import functional_call


def applied(layer: nn.Module, x: Tensor, *more: Any) -> Any:
    """``layer(x, *more)`` with the weights of the layer in the precision of x. Gradients reach the weights."""
    weights = dict(layer.named_parameters())
    if all(value.dtype == x.dtype for value in weights.values()):
        return layer(x, *more)
    return functional_call(layer, {name: value.to(x.dtype) for name, value in weights.items()}, (x, *more))
