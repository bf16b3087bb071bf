"""The embedding: from images to one representation an image."""

from typing import cast

from torch import Tensor, nn

from deepbdc.backbones.base import Backbone, Preprocessing


class Embedding(nn.Module):
    """A backbone and a pooling layer: ``(n, 3, h, w) -> (n, ...)``. It knows nothing of classes or tasks.

    >>> import torch
    >>> from deepbdc import BDCPool, create_backbone
    >>> embedding = Embedding(create_backbone("conv4"), BDCPool(64))
    >>> embedding(torch.rand(2, 3, 84, 84)).shape
    torch.Size([2, 2080])
    """

    def __init__(self, backbone: Backbone, pool: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.pool = pool

    @property
    def preprocessing(self) -> Preprocessing:
        """How images are to be prepared."""
        return self.backbone.preprocessing

    @property
    def out_features(self) -> int:
        """Numbers in the representation of an image."""
        return cast(int, self.pool.out_features)

    def forward(self, images: Tensor) -> Tensor:
        """Embed a batch of images."""
        return cast(Tensor, self.pool(self.backbone(images)))
