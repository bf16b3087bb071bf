"""Any timm model that returns feature maps, as a backbone."""

from difflib import get_close_matches
from typing import Any

from torch import Tensor, nn

from deepbdc.backbones.base import Backbone, downsampling_stages
from deepbdc.errors import UserError
from deepbdc.preprocessing import Preprocessing


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


def timm_backbone(model: str, pretrained: bool = False, removed_downsamplings: int = 0) -> Backbone:
    """The timm model called ``model``. Removed down-samplings become dilations, if timm supports that for the model."""
    import timm

    if not timm.is_model(model):
        close = get_close_matches(model, timm.list_models(), n=3)
        guess = f"did you mean {', '.join(close)}? " if close else ""
        raise UserError(f"timm has no model called {model!r}: {guess}timm.list_models() lists all models")
    downsampling_stages(4, removed_downsamplings)  # only to check the number
    options: dict[str, Any] = {"features_only": True, "out_indices": (-1,), "pretrained": pretrained}
    stride = 32 >> removed_downsamplings
    if removed_downsamplings:
        options["output_stride"] = stride
    try:
        network = timm.create_model(model, **options)
    except (RuntimeError, TypeError, NotImplementedError, AttributeError, AssertionError) as error:
        what = f"with removed_downsamplings={removed_downsamplings}" if removed_downsamplings else "with feature maps"
        raise UserError(f"timm cannot create 'timm/{model}' {what}: {error!r}") from error
    if removed_downsamplings and network.feature_info.reduction()[-1] != stride:
        raise UserError(f"timm/{model} does not support removed_downsamplings={removed_downsamplings}: leave it out")
    form = getattr(network, "output_fmt", "NCHW")
    return TimmBackbone(
        network,
        channels_last=str(getattr(form, "value", form)) == "NHWC",
        channels=network.feature_info.channels()[-1],
        preprocessing=_preprocessing(timm.data.resolve_model_data_config(network)),
    )


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
