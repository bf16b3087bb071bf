"""A factor on scores that decides how sharp the softmax over them is."""

import torch
from torch import Tensor, nn


class Scale(nn.Module):
    """Multiplies scores by a number that is learnt. ``initial=None`` leaves scores as they are.

    Cosines lie in [-1, 1], so their softmax is nearly uniform: training with cross-entropy needs a factor of about 10.
    """

    def __init__(self, initial: float | None) -> None:
        super().__init__()
        self.scale: nn.Parameter | None = None
        if initial is not None:
            self.scale = nn.Parameter(torch.tensor(float(initial)))

    def forward(self, scores: Tensor) -> Tensor:
        """Scaled scores, of the same shape."""
        return scores if self.scale is None else scores * self.scale.to(scores.dtype)

    @property
    def factor(self) -> float:
        """The number itself."""
        return 1.0 if self.scale is None else self.scale.item()
