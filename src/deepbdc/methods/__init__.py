"""Methods: an embedding and a classifier under one name, and the stages that train them. One file each."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from deepbdc.backbones import Backbone, create_backbone
from deepbdc.errors import UserError
from deepbdc.methods.base import Method, methods
from deepbdc.preprocessing import Preprocessing

for _module in iter_modules(__path__):  # each file registers its method
    import_module(f"{__name__}.{_module.name}")

__all__ = ["Method", "create_method", "list_methods"]


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
    """A method by its name, with random weights.

    Args:
        name: One of `list_methods`.
        backbone: A name of `list_backbones`, or a backbone.
        shot: Support images per class that ``method.classifier`` is made for. `Method.classify` counts the support
            images of each task itself, and takes the classifier that the method has for their number.
        preprocessing: How images are prepared, if not as the backbone says.
        options: Options of the method: see its class in `deepbdc.methods`.

    >>> method = create_method("meta_deepbdc", backbone="conv4", shot=1)
    >>> method.classifier.similarity, method.classifier_for(5).similarity
    ('inner_product', 'euclidean')
    """
    if shot < 1:
        raise UserError(f"shot must be at least 1, got {shot}")
    network = create_backbone(backbone) if isinstance(backbone, str) else backbone
    return methods.create(name, backbone=network, shot=shot, preprocessing=preprocessing, **options)
