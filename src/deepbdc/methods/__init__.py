"""Methods: an embedding and a classifier under one name, and the stages that train them. One file each."""

from typing import Any

from deepbdc.backbones import Backbone, create_backbone
from deepbdc.errors import UserError
from deepbdc.methods.base import Method, methods
from deepbdc.methods.good_embed import good_embed
from deepbdc.methods.meta_deepbdc import meta_deepbdc
from deepbdc.methods.protonet import protonet
from deepbdc.methods.stl_deepbdc import stl_deepbdc
from deepbdc.preprocessing import Preprocessing

__all__ = [
    "Method",
    "create_method",
    "good_embed",
    "list_methods",
    "meta_deepbdc",
    "protonet",
    "stl_deepbdc",
]


def list_methods() -> list[str]:
    """Names that `create_method` knows."""
    return methods.names()


def create_method(
    name: str,
    backbone: str | Backbone = "resnet12",
    shot: int = 1,
    preprocessing: Preprocessing | None = None,
    **options: Any,
) -> Method:
    """A method by its name, untrained.

    Args:
        name: One of `list_methods`.
        backbone: A name of `list_backbones`, or a backbone.
        shot: Labelled images a class, for methods that then classify in another way.
        preprocessing: How images are to be prepared, if not as the backbone says.
        options: Of the method, see its function in `deepbdc.methods`.

    >>> method = create_method("meta_deepbdc", backbone="conv4", shot=1)
    >>> method.classifier.similarity, method.for_shot(5).classifier.similarity
    ('inner_product', 'euclidean')
    """
    if shot < 1:
        raise UserError(f"shot must be at least 1, got {shot}")
    network = create_backbone(backbone) if isinstance(backbone, str) else backbone
    return methods.create(name, backbone=network, shot=shot, preprocessing=preprocessing, **options)
