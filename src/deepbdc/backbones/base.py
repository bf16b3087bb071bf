"""The base class of all backbones, and functions that several of them share."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from deepbdc._modes import evaluating
from deepbdc._registry import Registry
from deepbdc.backbones.folding import FoldedBlock
from deepbdc.errors import UserError
from deepbdc.preprocessing import Preprocessing


class Backbone(nn.Module):
    """A network from images to feature maps, with the number of its output channels and its pre-processing.

    A backbone writes either `blocks_in_order`, and `forward` calls these blocks, or a `forward` of its own.
    """

    def __init__(self, out_channels: int, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.out_channels = out_channels
        self.preprocessing = preprocessing

    def blocks_in_order(self) -> list[nn.Module]:
        """The blocks that map images to features one after the other; `forward` is their composition.

        A block is a residual block, a block of a Conv4, or the stem (the layers before the first residual block). The
        blocks are views of the network: they share its weights and its mode, and have no names of their own in files.
        """
        raise UserError(
            f"{type(self).__name__} cannot be taken apart into blocks, which this method needs: choose conv4 or one of "
            "the ResNets"
        )

    def folded(self) -> list[FoldedBlock] | None:
        """What the backbone computes in evaluation mode, as convolutions without batch norm, or None if it cannot say.

        Programs that only embed pictures make an engine of it, which is faster. It is a copy of the weights as they are
        now. A backbone that gives it must let `engine_in_use` answer its calls.
        """
        return None

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(n, 3, h, w)`` to features."""
        for block in self.blocks_in_order():
            images = block(images)
        return images

    def kept_map(self, images: Tensor) -> Tensor:
        """The map of images that is enough to compute `two_views`: by default the feature map itself."""
        features: Tensor = self(images)
        return features

    def two_views(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        """What a map of `kept_map` tells: the feature map ``(n, out_channels, h, w)``, and the network's own vectors.

        The network's own vectors ``(n, features)`` are those that its own last layer would classify. By default they
        are the average of the feature map.
        """
        return kept, kept.mean(dim=(2, 3))

    @torch.no_grad()
    def map_size(self, input_size: int | None = None) -> tuple[int, int]:
        """Height and width of the feature map for square images of ``input_size``, by default the native input size.

        The backbone maps one image of zeros to find them.
        """
        size = input_size or self.preprocessing.input_size
        like = next(self.parameters(), torch.zeros(()))
        with evaluating(self):
            features: Tensor = self(torch.zeros(1, 3, size, size, device=like.device, dtype=like.dtype))
        return features.shape[2], features.shape[3]


backbones: Registry[Backbone] = Registry("backbone")


class BlockNorms(NamedTuple):
    """The batch norms of a block: those of its main path, in the order of the data, and those of its shortcut."""

    main: list[_BatchNorm]
    shortcut: list[_BatchNorm]


def norms_of(block: nn.Module) -> BlockNorms:
    """The batch norms of a block of `Backbone.blocks_in_order`."""
    norms = BlockNorms([], [])
    for name, module in block.named_modules():
        if isinstance(module, _BatchNorm):
            (norms.shortcut if name.startswith("downsample.") else norms.main).append(module)
    return norms


@contextmanager
def transformed_outputs(
    modules: Sequence[nn.Module], transforms: Sequence[Callable[[Tensor], Tensor]]
) -> Iterator[None]:
    """Inside this context, the output of each module passes through the transform at the same position.

    Only calls in the thread that entered the context are changed.
    """
    with ExitStack() as hooks:
        for module, transform in zip(modules, transforms, strict=True):
            hooks.enter_context(module.register_forward_hook(_hook(transform)))
        yield


def _hook(transform: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
    thread = threading.get_ident()

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return transform(output) if threading.get_ident() == thread else output

    return hook


def scaled_widths(widths: tuple[int, ...], multiplier: float) -> tuple[int, ...]:
    """Multiply the channel numbers of all stages by ``multiplier``, and round them."""
    scaled = tuple(round(width * multiplier) for width in widths)
    if min(scaled) < 1:
        raise UserError(f"width={multiplier} leaves a stage of the backbone without channels: {scaled}")
    return scaled


def downsampling_stages(stages: int, removed: int) -> tuple[bool, ...]:
    """For each of ``stages`` stages, whether it down-samples; the last ``removed`` stages do not."""
    if not isinstance(removed, int) or not 0 <= removed <= stages:
        raise UserError(f"removed_downsamplings must be between 0 and {stages}, got {removed}")
    return tuple(stage < stages - removed for stage in range(stages))


def initialise(network: nn.Module) -> None:
    """Draw the weights of convolutions from N(0, 2 / fan-out), and let batch norm start with weight 1 and bias 0."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
