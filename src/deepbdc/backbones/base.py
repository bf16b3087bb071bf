"""The base class of all backbones, and functions that several of them share."""

import torch
from torch import Tensor, nn

from deepbdc._modes import evaluating
from deepbdc._registry import Registry
from deepbdc.errors import UserError
from deepbdc.preprocessing import Preprocessing


class Backbone(nn.Module):
    """A network from images to feature maps, with the number of its output channels and its pre-processing."""

    def __init__(self, out_channels: int, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.out_channels = out_channels
        self.preprocessing = preprocessing

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
