"""A backbone as a short list of convolutions, for fast evaluation: batch norm is part of their weights."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor, nn

Engine = Callable[[Tensor], Tensor]
"""Computes what a backbone computes in evaluation mode, without gradients: images to feature maps."""

_in_use: ContextVar[tuple[nn.Module, Engine] | None] = ContextVar("engine", default=None)


@contextmanager
def computed_by(backbone: nn.Module, engine: Engine | None) -> Iterator[None]:
    """Inside this context, calls of a foldable backbone in this thread are answered by an engine, if there is one."""
    token = _in_use.set(None if engine is None else (backbone, engine))
    try:
        yield
    finally:
        _in_use.reset(token)


def engine_in_use(backbone: nn.Module) -> Engine | None:
    """The engine that `computed_by` named for this backbone."""
    entry = _in_use.get()
    return entry[1] if entry is not None and entry[0] is backbone else None


class FoldedConv(NamedTuple):
    """A convolution with a bias, TensorFlow's "SAME" padding, and ReLU6 after it if ``relu6``."""

    weight: Tensor
    bias: Tensor
    stride: int
    groups: int
    relu6: bool


class FoldedBlock(NamedTuple):
    """Convolutions one after the other. With ``shortcut``, the input of the first is added to the last output."""

    convolutions: Sequence[FoldedConv]
    shortcut: bool = False


@torch.no_grad()
def folded(convolution: nn.Conv2d, norm: nn.BatchNorm2d, relu6: bool) -> FoldedConv:
    """One convolution that computes what a convolution without bias and a batch norm in evaluation mode compute."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert convolution.bias is None
    scale = norm.weight.double() / torch.sqrt(norm.running_var.double() + norm.eps)
    bias = norm.bias.double() - norm.running_mean.double() * scale
    weight = convolution.weight.double() * scale[:, None, None, None]
    return FoldedConv(weight.float(), bias.float(), convolution.stride[0], convolution.groups, relu6)


def same_padding(side: int, kernel: int, stride: int) -> tuple[int, int]:
    """TensorFlow's "SAME" padding before and after a side.

    >>> same_padding(224, 3, 2), same_padding(15, 5, 2), same_padding(14, 5, 1)
    ((0, 1), (2, 2), (2, 2))
    """
    total = max((math.ceil(side / stride) - 1) * stride + kernel - side, 0)
    return total // 2, total - total // 2
