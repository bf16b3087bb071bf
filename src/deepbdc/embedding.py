"""The embedding: from images to one representation per image."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from deepbdc.backbones.base import Backbone
from deepbdc.errors import UserError
from deepbdc.pooling import Flatten, Pool
from deepbdc.preprocessing import Preprocessing


class Embedding(nn.Module):
    """A backbone and a pooling layer: ``(n, 3, h, w) -> (n, ...)``. It knows nothing of classes or episodes.

    Args:
        backbone: From images to feature maps.
        pool: From feature maps to representations.
        preprocessing: How images are to be prepared, if not as the backbone says (for smaller images, for example).

    >>> import torch
    >>> from deepbdc import BDCPool, create_backbone
    >>> embedding = Embedding(create_backbone("conv4"), BDCPool(64))
    >>> embedding(torch.rand(2, 3, 84, 84)).shape
    torch.Size([2, 2080])
    """

    def __init__(self, backbone: Backbone, pool: Pool, preprocessing: Preprocessing | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.pool = pool
        self.preprocessing = preprocessing or backbone.preprocessing
        # How to build it again, as far as that is known: a name and settings, or a recipe.
        self.description: Mapping[str, Any] = {"kind": "own", "pool": None}

    @property
    def settings(self) -> dict[str, Any]:
        """What identifies an embedding besides its parts and weights."""
        return {"preprocessing": self.preprocessing}

    def extra_repr(self) -> str:
        """The settings that ``print`` shows."""
        return f"preprocessing={self.preprocessing}"

    @property
    def depends_on_batch(self) -> bool:
        """Whether the representation of an image depends on the other images that are embedded with it."""
        norms = (module for module in self.modules() if isinstance(module, _BatchNorm))
        return any(module.running_mean is None for module in norms)

    def check_fixed(self) -> None:
        """Raise if the representation of an image depends on the other images that are embedded with it."""
        if self.depends_on_batch:
            raise UserError(
                "the batch norm of this network has no running statistics, so the representation of an image would "
                "depend on the images beside it: only its own method, which adapts it to each task, can use it"
            )

    @property
    def out_features(self) -> int:
        """Numbers in the representation of an image."""
        return self.pool.out_features_for(*self.map_size) if self.pool.depends_on_map_size else self.pool.out_features

    @property
    def map_size(self) -> tuple[int, int]:
        """Height and width of the feature map of an image that is prepared as `preprocessing` says."""
        return self.backbone.map_size(self.preprocessing.input_size)

    def forward(self, images: Tensor) -> Tensor:
        """Embed a batch of images."""
        return self.represent(self.reduced_map(images))

    def reduced_map(self, images: Tensor) -> Tensor:
        """The first half: the map that the pooling layer turns into a representation. It may be smaller than that."""
        return self.pool.reduce(self.backbone(images))

    def represent(self, reduced: Tensor) -> Tensor:
        """The second half: from the maps that `reduced_map` gave to representations."""
        return self.pool.represent(reduced)


class Pixels(Backbone):
    """No network: the feature map of an image is the image itself. A lower bound for comparisons."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__(3, preprocessing)

    def forward(self, images: Tensor) -> Tensor:
        """The images as they are."""
        return images


def pixel_embedding(size: int) -> Embedding:
    """Represent an image of ``size`` × ``size`` by its raw pixels, ``(n, 3, size, size) -> (n, 3 · size²)``."""
    preprocessing = Preprocessing(input_size=size, resize=size)
    return Embedding(Pixels(preprocessing), Flatten(3, size, size))
