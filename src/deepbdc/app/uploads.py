"""Decodes the pictures and classifiers that visitors upload. Uploads are not trusted."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from deepbdc import weight_files
from deepbdc.app.learning import LabelledImages, like
from deepbdc.app.limits import AppLimits
from deepbdc.app.names import title_of
from deepbdc.data.images import BadImage
from deepbdc.estimator import EmbeddedImage, FewShotClassifier
from deepbdc.own_images.pictures import thumbnail
from deepbdc.web.pictures import decode
from deepbdc.web.refusals import Refused

_FILE = Path("the file")
_OTHER_NETWORK = "This classifier was made with another network, or with other settings, than this server uses."


def embed(
    classifier: FewShotClassifier, content: bytes, name: str, limits: AppLimits, example: bool = False
) -> EmbeddedImage:
    """Decode a picture file and send the picture through the network; of an ``example``, also two parts."""
    picture = decode(content, name, limits.pixels)
    try:
        (embedded,) = classifier.embed([picture], parts=example and classifier.looks_at_parts)
    except BadImage as error:
        raise Refused(f"{name}: {picture.width}×{picture.height} pixels cannot be used.", status=422) from error
    return replace(embedded, name=name)


@dataclass(frozen=True)
class Network:
    """Identifies the network of this server. Only classifiers made with the same network can be opened."""

    description: Mapping[str, Any]
    fingerprint: str
    map_shape: torch.Size

    @classmethod
    def of(cls, template: FewShotClassifier) -> Self:
        """Load the network of a classifier's settings and describe it. The first visitor then need not wait for it."""
        from PIL import Image

        fitted = like(template).fit([Image.new("RGB", (32, 32))], ["blank"])
        _, header = weight_files.from_bytes(fitted.to_bytes(), _FILE)
        (example,) = fitted.examples_
        return cls(header["embedding"], example.network, example.features.shape)


def saved_examples(network: Network, content: bytes, limits: AppLimits) -> LabelledImages:
    """The examples of a saved classifier."""
    try:
        _check_saved(network, content, limits)
        loaded = FewShotClassifier.load(content)
        pairs = zip(loaded.examples_, loaded.example_labels_.tolist(), strict=True)
        if any(example.network != network.fingerprint for example in loaded.examples_):
            raise Refused(_OTHER_NETWORK, status=422)
        return [(_checked(example, limits), str(label)) for example, label in pairs]
    except Refused:
        raise
    except Exception as error:  # a forged file can cause any error
        raise Refused("This file is not a classifier that was saved here, or it is damaged.", status=422) from error


def _check_saved(network: Network, content: bytes, limits: AppLimits) -> None:
    """Check a file before building the network that it describes, which could be of any kind and size."""
    tensors, header = weight_files.from_bytes(content, _FILE)
    if len(header["labels"]) > limits.pictures or len(set(header["labels"])) > limits.classes:
        raise Refused(f"This file holds more than {limits.pictures} pictures or {limits.classes} classes.", status=413)
    maps = [tensors["features"], *([tensors["parts"]] if "parts" in tensors else [])]
    if header["embedding"] != network.description or any(one.shape[1:] != network.map_shape for one in maps):
        raise Refused(_OTHER_NETWORK, status=422)


def _checked(example: EmbeddedImage, limits: AppLimits) -> EmbeddedImage:
    """Check that the features of an example are finite, and encode its thumbnail again."""
    maps = [example.features, *([] if example.parts is None else [example.parts])]
    if not all(bool(one.isfinite().all()) for one in maps):
        raise Refused("This classifier contains NaN or infinite numbers.", status=422)
    name = title_of(example.name)
    return replace(example, name=name, thumbnail=thumbnail(decode(example.thumbnail, name, limits.pixels)))
