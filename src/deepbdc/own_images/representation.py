"""The representation of a person's own pictures: the network's own features and BDC, side by side."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from deepbdc.backbones.base import Backbone
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.pooling import AveragePool, BDCPool
from deepbdc.preprocessing import Preprocessing

POOLS = ("both", "own", "bdc", "average")
"""The network's own features and BDC side by side; either of the two alone; or the average of the feature map."""
DEFAULT_POOL = "both"


class OwnFeatures(Embedding):
    """The vectors that the network itself classifies; with ``bdc``, followed by the BDC vector of its feature map.

    Each of the two then has length one, so that neither outweighs the other.

    Args:
        backbone: From images to the two views of `Backbone.two_views`.
        preprocessing: How images are prepared, if not as the backbone says.
        bdc: Whether to add the BDC vector.
    """

    def __init__(self, backbone: Backbone, preprocessing: Preprocessing | None = None, bdc: bool = True) -> None:
        pool = BDCPool(backbone.out_channels) if bdc else AveragePool(backbone.out_channels)
        super().__init__(backbone, pool, preprocessing)
        self.bdc = bdc

    @property
    def settings(self) -> dict[str, Any]:
        """What identifies the embedding besides its parts and weights."""
        return {**super().settings, "bdc": self.bdc}

    @property
    def out_features(self) -> int:
        """Numbers in the representation of an image, found by embedding one image of zeros."""
        size = self.preprocessing.input_size
        like = next(self.parameters(), torch.zeros(()))
        with torch.no_grad():
            return int(self(torch.zeros(1, 3, size, size, device=like.device, dtype=like.dtype)).shape[1])

    def reduced_map(self, images: Tensor) -> Tensor:
        """The map that tells both views of each image."""
        return self.backbone.kept_map(images)

    def represent(self, reduced: Tensor) -> Tensor:
        """From these maps to vectors ``(n, features)``."""
        features, own = self.backbone.two_views(reduced)
        if not self.bdc:
            return own
        return torch.cat([normalize(own, dim=1), normalize(self.pool(features).flatten(1), dim=1)], dim=1)


def embedding_of(backbone: Backbone, pool: str, preprocessing: Preprocessing | None = None) -> Embedding:
    """The embedding with a network and one of `POOLS`."""
    if pool not in POOLS:
        raise UserError(f"pool must be one of {', '.join(POOLS)}, got {pool!r}")
    if pool in ("both", "own"):
        return OwnFeatures(backbone, preprocessing, bdc=pool == "both")
    layer = BDCPool(backbone.out_channels) if pool == "bdc" else AveragePool(backbone.out_channels)
    return Embedding(backbone, layer, preprocessing)
