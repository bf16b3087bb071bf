"""Any timm model that returns feature maps or tokens, as a backbone."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from deepbdc.backbones.base import Backbone, downsampling_stages
from deepbdc.errors import UserError
from deepbdc.preprocessing import Preprocessing

# What timm raises if a model cannot be made in the way that we ask for, or does not fit its weights.
_CANNOT = (RuntimeError, TypeError, NotImplementedError, AttributeError, AssertionError, KeyError)


class TimmBackbone(Backbone):
    """A timm model whose last feature map is returned as ``(n, channels, h, w)``, whatever its order in timm."""

    def __init__(self, network: nn.Module, channels_last: bool, channels: int, preprocessing: Preprocessing) -> None:
        super().__init__(channels, preprocessing)
        self.network = network
        self.channels_last = channels_last

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(n, 3, h, w)`` to features."""
        features: Tensor = self.network(images)[-1]
        return features.permute(0, 3, 1, 2) if self.channels_last else features


class TokenBackbone(Backbone):
    """A vision transformer of timm: its tokens are the positions of the map, its class token is its own vector.

    A transformer without a class token is described by the average of its tokens.
    """

    def __init__(self, network: Any, preprocessing: Preprocessing) -> None:
        super().__init__(int(network.num_features), preprocessing)
        self.network = network
        self.prefix = int(network.num_prefix_tokens)  # the class token comes first, then tokens that are only registers
        self.has_class_token = getattr(network, "cls_token", None) is not None
        self.patch: tuple[int, int] = tuple(network.patch_embed.patch_size)

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(n, 3, h, w)`` to their tokens as a map ``(n, channels, h / patch, w / patch)``."""
        return self._map_and_class(images)[0]

    def kept_map(self, images: Tensor) -> Tensor:
        """The map of tokens; with a class token, followed by as many channels that repeat it at each position."""
        tokens, own = self._map_and_class(images)
        return torch.cat([tokens, own[:, :, None, None].expand_as(tokens)], dim=1) if self.has_class_token else tokens

    def two_views(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        """The map of tokens, and the class token (or the average, without one)."""
        return kept[:, : self.out_channels], kept[:, -self.out_channels :].mean(dim=(2, 3))

    def _map_and_class(self, images: Tensor) -> tuple[Tensor, Tensor]:
        tall, wide = (side // patch for side, patch in zip(images.shape[2:], self.patch, strict=True))
        if (tall * self.patch[0], wide * self.patch[1]) != tuple(images.shape[2:]) or tall * wide == 0:
            raise UserError(
                f"this transformer cuts pictures into pieces of {self.patch[0]}×{self.patch[1]} pixels: choose a size "
                f"that is a multiple of {self.patch[0]}, like {16 * self.patch[0]}, not {images.shape[2]}"
            )
        tokens: Tensor = self.network.forward_features(images)  # (n, prefix + h · w, channels)
        positions = tokens[:, self.prefix :].transpose(1, 2)
        return positions.unflatten(2, (tall, wide)), tokens[:, 0]


def timm_backbone(
    model: str,
    pretrained: bool = False,
    removed_downsamplings: int = 0,
    weights: Mapping[str, Tensor] | None = None,
) -> Backbone:
    """The timm model called ``model``. Removed down-samplings become dilations, if timm supports that for the model.

    Args:
        model: The name in timm.
        pretrained: Whether timm downloads the trained weights.
        removed_downsamplings: How many of the last down-samplings to remove.
        weights: The trained weights of the whole model under the names of their publisher, instead of a download.
    """
    import timm

    if not timm.is_model(model):
        close = get_close_matches(model, timm.list_models(), n=3)
        guess = f"did you mean {', '.join(close)}? " if close else ""
        raise UserError(f"timm has no model called {model!r}: {guess}timm.list_models() lists all models")
    downsampling_stages(4, removed_downsamplings)  # only to check the number
    options: dict[str, Any] = {"pretrained": pretrained or weights is not None}
    if weights is not None:
        options["pretrained_cfg_overlay"] = {"state_dict": dict(weights)}
    if _has_tokens(model):
        if removed_downsamplings:
            raise UserError(f"timm/{model} is a transformer without down-samplings: leave out removed_downsamplings")
        network = _create(model, "with tokens", num_classes=0, dynamic_img_size=True, **options)
        return TokenBackbone(network, _preprocessing(timm.data.resolve_model_data_config(network)))
    return _map_backbone(model, removed_downsamplings, options)


def _map_backbone(model: str, removed_downsamplings: int, options: dict[str, Any]) -> Backbone:
    """A model whose last feature map timm gives."""
    import timm

    stride = 32 >> removed_downsamplings
    what = "with feature maps"
    if removed_downsamplings:
        options["output_stride"] = stride
        what = f"with removed_downsamplings={removed_downsamplings}"
    network = _create(model, what, features_only=True, out_indices=(-1,), **options)
    if removed_downsamplings and network.feature_info.reduction()[-1] != stride:
        raise UserError(f"timm/{model} does not support removed_downsamplings={removed_downsamplings}: leave it out")
    form = getattr(network, "output_fmt", "NCHW")
    return TimmBackbone(
        network,
        channels_last=str(getattr(form, "value", form)) == "NHWC",
        channels=network.feature_info.channels()[-1],
        preprocessing=_preprocessing(timm.data.resolve_model_data_config(network)),
    )


def _create(model: str, what: str, **options: Any) -> Any:
    import timm

    given = options.get("pretrained_cfg_overlay", {}).get("state_dict")
    source = "" if given is None else " from your weights"
    try:
        network = timm.create_model(model, **options)
    except _CANNOT as error:
        raise UserError(f"timm cannot create 'timm/{model}' {what}{source}: {str(error)[:300]!r}") from error
    if given is not None and share_found(network.state_dict(), given) < 0.5:
        raise UserError(f"timm cannot create 'timm/{model}' {what}{source}: they are those of another network")
    return network


def share_found(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> float:
    """The share of weights that have the values of some given ones, under whatever name.

    timm leaves layers random for which it finds no weights, and only logs that. It may also change a few weights while
    it loads them, such as the positions of tokens. Constants, which random networks have too, do not count.
    """
    known = {_sum_and_size(value) for value in given.values()}
    varied = [value for value in wanted.values() if value.numel() > 1 and float(value.float().std()) > 0]
    return sum(_sum_and_size(value) in known for value in varied) / max(len(varied), 1)


def _sum_and_size(value: Tensor) -> tuple[float, int]:
    return float(value.double().sum()), value.numel()


def _has_tokens(model: str) -> bool:
    """Whether a model is a vision transformer whose tokens are one grid, for images of any size."""
    import timm

    try:
        with torch.device("meta"):  # without memory for weights
            network = timm.create_model(model, num_classes=0, dynamic_img_size=True)
    except (*_CANNOT, ValueError):
        return False
    return hasattr(network, "num_prefix_tokens") and hasattr(getattr(network, "patch_embed", None), "patch_size")


def _preprocessing(config: dict[str, Any]) -> Preprocessing:
    """The pre-processing that timm's configuration of a model describes."""
    height, size = config["input_size"][1:]
    if height != size or config["crop_mode"] not in ("center", "squash"):
        raise UserError(
            f"this timm model needs {height}×{size} images with the crop mode {config['crop_mode']!r}; "
            "deepbdc supports only square images with the crop mode 'center' or 'squash'"
        )
    return Preprocessing(
        input_size=size,
        resize=round(size / config["crop_pct"]),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        interpolation=config["interpolation"],
        squash=config["crop_mode"] == "squash",
    )
