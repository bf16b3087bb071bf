"""Backbones: from images ``(n, 3, h, w)`` to feature maps ``(n, out_channels, h', w')``."""

from functools import partial
from typing import Any

from deepbdc._registry import call_checked
from deepbdc.backbones.base import Backbone, backbones
from deepbdc.backbones.conv4 import conv4
from deepbdc.backbones.dropblock import DropBlock
from deepbdc.backbones.efficientnet_lite0 import efficientnet_lite0, efficientnet_lite0_fine
from deepbdc.backbones.resnet import resnet10, resnet18, resnet34
from deepbdc.backbones.resnet12 import resnet12, resnet34s
from deepbdc.backbones.timm_models import timm_backbone
from deepbdc.preprocessing import Preprocessing

__all__ = [
    "Backbone",
    "DropBlock",
    "Preprocessing",
    "conv4",
    "create_backbone",
    "efficientnet_lite0",
    "efficientnet_lite0_fine",
    "list_backbones",
    "resnet10",
    "resnet12",
    "resnet18",
    "resnet34",
    "resnet34s",
]

_TIMM = "timm/"


def list_backbones() -> list[str]:
    """Names that `create_backbone` knows, besides ``timm/<name>`` for the models of timm."""
    return backbones.names()


def create_backbone(name: str, removed_downsamplings: int | None = None, **options: Any) -> Backbone:
    """A backbone by its name.

    Our own take ``removed_downsamplings`` (default 1: the paper removes the last one, for a larger map) and
    ``width``, a multiplier of all channel numbers that makes thin versions for laptops; ``resnet12`` and
    ``resnet34s`` also take ``drop_rate``. ``timm/<name>`` takes ``pretrained`` and ``removed_downsamplings``
    (default 0). ``efficientnet_lite0`` and ``efficientnet_lite0_fine``, its map before the last, have weights from
    ImageNet, which come with the installation (``pretrained=False`` for random ones).

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
