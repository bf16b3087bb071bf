"""DropBlock: dropout that sets whole squares of a feature map to 0."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from deepbdc.errors import UserError


class DropBlock(nn.Module):
    """In each channel, set random squares of ``block_size`` × ``block_size`` entries to 0, and rescale the others.

    Ghiasi et al., "DropBlock", NeurIPS 2018, with the annealing of MetaOptNet: after n forward passes in training mode,
    an entry is kept with probability max(1 - drop_rate · n / ``anneal_passes``, 1 - drop_rate). Passes in evaluation
    mode do not count. (The released DeepBDC code would count them, but never switches DropBlock on.)
    """

    passes: Tensor

    def __init__(self, drop_rate: float, block_size: int = 5, anneal_passes: int = 40_000) -> None:
        super().__init__()
        if not 0 <= drop_rate < 1:
            raise UserError(f"drop_rate must be at least 0 and below 1, got {drop_rate}")
        if block_size < 1 or anneal_passes < 1:
            raise UserError(f"block_size and anneal_passes must be positive, got {block_size} and {anneal_passes}")
        self.drop_rate = drop_rate
        self.block_size = block_size
        self.anneal_passes = anneal_passes
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))

    def keep_rate(self) -> Tensor:
        """The probability that an entry is kept, at this point of the training."""
        progress = (self.passes / self.anneal_passes).clamp(max=1)
        return 1 - self.drop_rate * progress

    def forward(self, features: Tensor) -> Tensor:
        """Drop blocks of ``(n, channels, h, w)`` in training mode; return the features unchanged in evaluation mode."""
        if not self.training or self.drop_rate == 0:
            return features
        self.passes += 1
        kept = self._kept(features)
        share = kept.mean(dtype=torch.float32).clamp(min=1 / kept.numel())
        return features * (kept / share).to(features.dtype)

    def _kept(self, features: Tensor) -> Tensor:
        """A mask: 0 for dropped entries, 1 for kept ones. Blocks are placed so that they lie inside the map."""
        height, width = features.shape[2:]
        block = min(self.block_size, height, width)
        corners = (height - block + 1, width - block + 1)
        rate = (1 - self.keep_rate()) / block**2 * (height * width) / (corners[0] * corners[1])
        drawn = torch.rand(*features.shape[:2], *corners, device=features.device) < rate
        padded = functional.pad(drawn.float(), [block - 1] * 4)
        return 1 - functional.max_pool2d(padded, block, stride=1)

    def extra_repr(self) -> str:
        """The settings that ``print`` shows."""
        return f"{self.drop_rate}, block_size={self.block_size}, anneal_passes={self.anneal_passes}"
