"""FiLM: scales and shifts of the channels of a network, computed from a description of the task."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import relu


class TaskConditioning(nn.Module):
    """From the code of a task to a scale γ and a shift β for each channel of each layer of a network.

    For each layer, two small networks g and h map the code c to vectors as long as the layer has channels:
    γ = 1 + γ₀ · g(c), β = β₀ · h(c). The numbers γ₀ and β₀, one of each per layer, start at 0, so that at first the
    network is not changed. They are the parameter group ``task_scale``; g and h are the group ``task_encoder``.

    Args:
        features: Length of the code.
        widths: Channels of each layer.
    """

    named_parameter_groups = {  # noqa: RUF012
        "task_scale": ("scale_factors", "shift_factors"),
        "task_encoder": ("scales", "shifts"),
    }

    def __init__(self, features: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.scales = nn.ModuleList(ResidualLayers(features, width) for width in widths)
        self.shifts = nn.ModuleList(ResidualLayers(features, width) for width in widths)
        self.scale_factors = nn.Parameter(torch.zeros(len(widths)))
        self.shift_factors = nn.Parameter(torch.zeros(len(widths)))

    def forward(self, codes: Tensor) -> list[tuple[Tensor, Tensor]]:
        """γ and β of each layer, ``(e, features) -> [((e, channels), (e, channels)), ...]``."""
        layers = zip(self.scales, self.shifts, self.scale_factors, self.shift_factors, strict=True)
        return [(1 + factor * scale(codes), shifting * shift(codes)) for scale, shift, factor, shifting in layers]

    def transforms(self, codes: Tensor, images: int) -> list[Callable[[Tensor], Tensor]]:
        """For each layer, the function that scales and shifts its maps ``(e · images, channels, h, w)``.

        The first ``images`` maps belong to the first task, and so on.
        """
        return [
            partial(_scale_and_shift, scale.repeat_interleave(images, dim=0), shift.repeat_interleave(images, dim=0))
            for scale, shift in self(codes)
        ]


def _scale_and_shift(scale: Tensor, shift: Tensor, maps: Tensor) -> Tensor:
    return maps * scale[..., None, None].to(maps.dtype) + shift[..., None, None].to(maps.dtype)


class ResidualLayers(nn.Module):
    """x₁ = relu(W₁ c), x₂ = relu(x₁ + W₂ x₁), out = x₂ + W₃ x₂, each with a bias: ``(e, features) -> (e, width)``."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(size, width) for size in (features, width, width))

    def forward(self, codes: Tensor) -> Tensor:
        """A vector for each code."""
        x = relu(self.first(codes))
        x = relu(x + self.second(x))
        out: Tensor = x + self.third(x)
        return out
