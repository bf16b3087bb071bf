"""The embedding of methods that look at each image from four sides."""

import torch
from torch import Tensor

from deepbdc.embedding import Embedding
from deepbdc.stages.formulas import in_layout_of, quarter_turns


class RotatedEmbedding(Embedding):
    """Represents an image by its four quarter turns beside each other: ``(n, 3, s, s) -> (n, 4 · features)``.

    Each turn of a batch goes through the network alone, so that batch norm has statistics of its own for each.
    """

    @property
    def out_features(self) -> int:
        """Numbers in the representation of an image, over all turns."""
        return 4 * super().out_features

    def upright(self, images: Tensor) -> Tensor:
        """The representation of the images as they are, ``(n, 3, s, s) -> (n, features)``."""
        return self.pool.represent(self._reduced(images))

    def reduced_map(self, images: Tensor) -> Tensor:
        """The maps of the four turns beside each other, ``(n, 4 · d, h, w)``."""
        return torch.cat([self._reduced(in_layout_of(images, turned)) for turned in quarter_turns(images)], dim=1)

    def represent(self, reduced: Tensor) -> Tensor:
        """From the maps that `reduced_map` gave to representations."""
        return torch.cat([self.pool.represent(one) for one in reduced.chunk(4, dim=1)], dim=1)

    def _reduced(self, images: Tensor) -> Tensor:
        return self.pool.reduce(self.backbone(images))
