"""Embeddings for methods whose original classifies the whole feature map as one long vector."""

from typing import Literal, get_args

from deepbdc.backbones.base import Backbone
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.pooling import AveragePool, Flatten
from deepbdc.preprocessing import Preprocessing

Vector = Literal["flatten", "average"]


def vector_embedding(backbone: Backbone, vector: Vector, preprocessing: Preprocessing | None) -> Embedding:
    """Represent an image by all entries of its feature map, or by the average over positions.

    Args:
        backbone: From images to feature maps.
        vector: ``"flatten"`` fixes the size of the images; ``"average"`` takes any.
        preprocessing: How images are prepared, if not as the backbone says.
    """
    if vector not in get_args(Vector):
        raise UserError(f"vector must be one of {', '.join(get_args(Vector))}, got {vector!r}")
    if vector == "average":
        return Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
    size = (preprocessing or backbone.preprocessing).input_size
    return Embedding(backbone, Flatten(backbone.out_channels, *backbone.map_size(size)), preprocessing)
