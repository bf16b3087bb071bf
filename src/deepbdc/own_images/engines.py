"""Engines: what computes the feature maps of pictures on a CPU. All give the same maps up to rounding, at other speeds.

- ``onnxruntime`` is the fastest. It is used if the packages ``onnx`` and ``onnxruntime`` are installed.
- ``torch`` computes the network without its batch norms, in the memory layout that suits its convolutions.
- ``plain`` is no engine: the network is called as it is. This is always so for networks that cannot be folded
  (`Backbone.folded`) and on GPUs.

An engine sends each picture through the network by itself, on one core, and several pictures at the same time. This is
faster than several cores on one picture, and the map of a picture does not depend on the pictures beside it.
"""

import os
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional

from deepbdc._modes import one_thread_workers
from deepbdc._optional import require
from deepbdc.backbones.base import Backbone
from deepbdc.backbones.folding import Engine, FoldedBlock, FoldedConv, same_padding
from deepbdc.errors import UserError

VARIABLE = "DEEPBDC_ENGINE"
ENGINES = ("auto", "onnxruntime", "torch", "plain")

# The engine of each network that is in use, and what it was made for: the choice, and the fingerprint of the weights.
_made: "WeakKeyDictionary[Backbone, tuple[tuple[str, str], Engine | None]]" = WeakKeyDictionary()


def engine_for(backbone: Backbone, fingerprint: str) -> Engine | None:
    """The engine of a network; None if the network itself is to be called.

    An engine is made once and kept until the weights or the choice of the engine change.

    Args:
        backbone: The network.
        fingerprint: Another text whenever the network has other weights.
    """
    choice = chosen_engine()
    known = _made.get(backbone)
    if known is None or known[0] != (choice, fingerprint):
        known = (choice, fingerprint), _make(backbone, choice)
        _made[backbone] = known
    return known[1]


def chosen_engine() -> str:
    """The engine that the environment variable DEEPBDC_ENGINE names; by default, the fastest that is installed."""
    choice = os.environ.get(VARIABLE) or "auto"
    if choice not in ENGINES:
        raise UserError(f"{VARIABLE} must be one of {', '.join(ENGINES)}, got {choice!r}")
    if choice == "auto":
        installed = all(find_spec(package) is not None for package in ("onnx", "onnxruntime"))
        return "onnxruntime" if installed else "torch"
    return choice


def _make(backbone: Backbone, choice: str) -> Engine | None:
    on_cpu = all(value.device.type == "cpu" and value.dtype == torch.float32 for value in backbone.parameters())
    blocks = backbone.folded() if on_cpu and choice != "plain" else None
    if blocks is None:
        return None
    return partial(_one_by_one, onnx_engine(blocks) if choice == "onnxruntime" else torch_engine(blocks))


def _one_by_one(engine: Engine, images: Tensor) -> Tensor:
    """Send each image through an engine by itself, as many at a time as torch would use CPU threads."""

    @torch.no_grad()
    def single(image: Tensor) -> Tensor:
        return engine(image)

    threads, parts = torch.get_num_threads(), images.split(1)
    return torch.cat(list(one_thread_workers(threads).map(single, parts) if threads > 1 else map(single, parts)))


def torch_engine(blocks: Sequence[FoldedBlock]) -> Engine:
    """An engine made of torch's convolutions, for images whose colours lie side by side in memory."""
    layout = torch.channels_last
    prepared = [
        FoldedBlock(
            [conv._replace(weight=conv.weight.to(memory_format=layout)) for conv in block.convolutions], block.shortcut
        )
        for block in blocks
    ]

    def run(images: Tensor) -> Tensor:
        features = images.contiguous(memory_format=layout)
        for block in prepared:
            new = features
            for convolution in block.convolutions:
                new = _convolve(convolution, new)
            features = new.add_(features) if block.shortcut else new
        return features.contiguous()

    return run


def _convolve(convolution: FoldedConv, features: Tensor) -> Tensor:
    kernel, stride = convolution.weight.shape[-1], convolution.stride
    padding = 0
    if stride == 1:
        padding = (kernel - 1) // 2
    else:
        top, bottom = same_padding(features.shape[2], kernel, stride)
        left, right = same_padding(features.shape[3], kernel, stride)
        features = functional.pad(features, (left, right, top, bottom))
    new = functional.conv2d(features, convolution.weight, convolution.bias, stride, padding, groups=convolution.groups)
    return functional.relu6(new, inplace=True) if convolution.relu6 else new


def onnx_engine(blocks: Sequence[FoldedBlock]) -> Engine:
    """An engine made of an ONNX model that onnxruntime runs."""
    onnxruntime: Any = require("onnxruntime", extra="onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only
    session = onnxruntime.InferenceSession(onnx_network(blocks), options, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        (features,) = session.run(None, {"images": images.contiguous().numpy()})
        return torch.from_numpy(features)

    return run


def onnx_network(blocks: Sequence[FoldedBlock]) -> bytes:
    """The content of an ONNX file with the convolutions, from ``images`` to ``features``."""
    onnx: Any = require("onnx", extra="onnx")
    make, numpy_helper = onnx.helper, onnx.numpy_helper
    constants = [make.make_tensor("zero", onnx.TensorProto.FLOAT, [], [0.0])]
    constants.append(make.make_tensor("six", onnx.TensorProto.FLOAT, [], [6.0]))
    nodes: list[Any] = []

    def add(operator: str, inputs: list[str], **attributes: Any) -> str:
        output = f"{operator}_{len(nodes)}"
        nodes.append(make.make_node(operator, inputs, [output], **attributes))
        return output

    features = "images"
    for block in blocks:
        new = features
        for conv in block.convolutions:
            names = [f"weight_{len(constants)}", f"bias_{len(constants)}"]
            for name, value in zip(names, (conv.weight, conv.bias), strict=True):
                constants.append(numpy_helper.from_array(value.contiguous().numpy(), name))
            strides = [conv.stride, conv.stride]
            new = add("Conv", [new, *names], group=conv.groups, strides=strides, auto_pad="SAME_UPPER")
            new = add("Clip", [new, "zero", "six"]) if conv.relu6 else new
        features = add("Add", [new, features]) if block.shortcut else new
    nodes.append(make.make_node("Identity", [features], ["features"]))
    values = [
        make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, sizes)
        for name, sizes in {"images": ["n", 3, "h", "w"], "features": ["n", None, None, None]}.items()
    ]
    graph = make.make_graph(nodes, "network", values[:1], values[1:], constants)
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)
    content: bytes = model.SerializeToString()
    return content
