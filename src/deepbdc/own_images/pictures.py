"""Pictures as people have them, files, bytes, PIL images, arrays or tensors, and what the network made of them."""

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from deepbdc.data.images import MOST_PIXELS, BadImage, load_image, to_rgb
from deepbdc.errors import WrongType

if TYPE_CHECKING:
    from PIL import Image

THUMBNAIL = 224
"""Longest side of a thumbnail, in pixels."""
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True, eq=False)
class EmbeddedImage:
    """A picture that went through the network once. It can stand wherever a picture can."""

    name: str
    features: Tensor
    """The reduced feature map ``(d, h, w)``."""
    thumbnail: bytes
    """The upright RGB picture as JPEG, its longest side at most 224 pixels."""
    network: str
    """Fingerprint of the network that made the features."""


ImageLike = Any
"""A path, the bytes of a file, a PIL image, an array, a tensor, or an `EmbeddedImage`."""


def as_list(images: Any) -> Sequence[ImageLike]:
    """The pictures one by one; a single one is a list of one."""
    from PIL import Image

    if isinstance(images, (str, Path, bytes, Image.Image, EmbeddedImage)):
        return [images]
    if isinstance(images, Tensor):
        single = images.dim() == 2 or (images.dim() == 3 and images.shape[0] in _CHANNELS)
        return [images] if single else list(images)
    if isinstance(images, np.ndarray) and images.dtype.kind not in "OUS":
        single = images.ndim == 2 or (images.ndim == 3 and images.shape[-1] in _CHANNELS)
        return [images] if single else list(images)
    if isinstance(images, Sequence):
        return images
    if isinstance(images, Iterable):
        return list(images)
    raise WrongType(f"images must be a sequence of pictures, got {type(images).__name__}")


def name_of(image: ImageLike, position: int) -> str:
    """What to call a picture in answers and errors."""
    if isinstance(image, EmbeddedImage):
        return image.name
    if isinstance(image, (str, Path)):
        return str(image)
    return str(getattr(image, "filename", "") or f"image {position}")


def decode(image: ImageLike, position: int, size: int | None = None) -> "Image.Image":
    """Any picture as plain RGB; what is none raises `BadImage` (or FileNotFoundError), which names it.

    Args:
        image: The picture.
        position: Its place among the others, to name it by.
        size: The smallest side that is needed: large JPEG files are then decoded at a fraction of their size.
    """
    from PIL import Image, ImageOps

    name = name_of(image, position)
    if isinstance(image, (str, Path, bytes)):
        source = Path(image) if isinstance(image, str) else image
        if isinstance(source, Path) and source.is_dir():
            raise IsADirectoryError(f"{name} is a folder, not a picture")
        if isinstance(source, Path) and not source.exists():
            raise FileNotFoundError(f"there is no picture {name}")
        return load_image(source, title=name, at_least=size)
    if isinstance(image, Image.Image):
        try:
            if image.width * image.height > MOST_PIXELS:
                raise BadImage(f"{name}: refused, {image.width}×{image.height} pixels are too many")
            return to_rgb(ImageOps.exif_transpose(image))
        except (OSError, SyntaxError) as error:  # it is read from its file only now
            raise BadImage(f"{name}: not a readable image ({error})") from error
    if isinstance(image, Tensor):
        return _from_array(image.detach().cpu().numpy(), name, channels_first=True)
    if isinstance(image, np.ndarray):
        return _from_array(image, name, channels_first=False)
    raise BadImage(f"{name}: not a path, bytes, a PIL image, an array or a tensor, but {type(image).__name__}")


def thumbnail(picture: "Image.Image") -> bytes:
    """A small JPEG of a picture."""
    small = picture.copy()
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    content = io.BytesIO()
    small.save(content, "JPEG", quality=88)
    return content.getvalue()


def folder_examples(folder: str | Path) -> tuple[list[Path], list[str]]:
    """The files and labels of a folder with a folder for each class."""
    from deepbdc.data.loading import class_folders

    files, labels = [], []
    for name, found in class_folders(Path(folder)).items():
        files += found
        labels += [name] * len(found)
    return files, labels


def batches(images: Sequence[ImageLike], size: int) -> Iterator[tuple[int, Sequence[ImageLike]]]:
    """Consecutive pictures, at most ``size`` at a time, each batch with the position of its first."""
    for start in range(0, len(images), size):
        yield start, images[start : start + size]


def _from_array(values: Any, name: str, channels_first: bool) -> "Image.Image":
    from PIL import Image

    shape = values.shape
    if values.ndim == 3:
        first, last = shape[0] in _CHANNELS, shape[-1] in _CHANNELS
        if first and (channels_first or not last):
            values = np.moveaxis(values, 0, -1)
        elif not last:
            raise BadImage(f"{name}: an array of shape {shape} has neither 1, 3 nor 4 channels, first or last")
        values = values[..., 0] if values.shape[-1] == 1 else values
    if values.ndim not in (2, 3) or 0 in values.shape:
        raise BadImage(f"{name}: a picture is (h, w), (h, w, channels) or (channels, h, w), got the shape {shape}")
    return to_rgb(Image.fromarray(np.ascontiguousarray(_as_bytes(values, name))))


def _as_bytes(values: Any, name: str) -> Any:
    """Colours as numbers from 0 to 255."""
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * 255
    if values.dtype == np.uint16:
        return (values // 257).astype(np.uint8)
    low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)) or low < 0 or high > 255:
        raise BadImage(
            f"{name}: colours must be from 0 to 1, or from 0 to 255, but are from {low:g} to {high:g}: "
            "give the picture before it is normalised"
        )
    if values.dtype.kind == "f" and high <= 1:
        values = values * 255
    return np.round(values).astype(np.uint8)
