"""Pictures in every form that people have them: files, bytes, PIL images, arrays, tensors, or already embedded."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from deepbdc.data.images import BadImage, check_pixels, load_image, to_rgb
from deepbdc.errors import WrongType

if TYPE_CHECKING:
    from PIL import Image

THUMBNAIL = 224
"""Longest side of a thumbnail, in pixels."""
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True, eq=False)
class EmbeddedImage:
    """A picture that has gone through the network. It can be given wherever a picture is expected."""

    name: str
    features: Tensor
    """The reduced feature map ``(d, h, w)``."""
    thumbnail: bytes
    """The upright RGB picture as JPEG. Its longest side is at most 224 pixels."""
    network: str
    """Fingerprint of the network that made the features."""
    parts: Tensor | None = None
    """The feature maps ``(2, d, h, w)`` of two parts of the picture, if they were asked for."""


ImageLike = Any
"""A path, the bytes of a file, an open file, a PIL image, an array, a tensor, or an `EmbeddedImage`."""


def as_list(images: Any) -> Sequence[ImageLike]:
    """The pictures as a sequence. A single picture becomes a list of one."""
    from PIL import Image

    if isinstance(images, (str, Path, bytes, Image.Image, EmbeddedImage)) or _is_open_file(images):
        return [images]
    images = one_column(images)
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


def either(images: Any, X: Any) -> Any:
    """What was given as ``images`` or, by the name in scikit-learn, as ``X``."""
    if (images is None) == (X is None):
        raise WrongType("give the pictures as images, or as X" + (", not both" if X is not None else ""))
    return X if images is None else images


def one_column(values: Any) -> Any:
    """The only column of a DataFrame, whose iteration would give the names of its columns; anything else as it is."""
    columns = getattr(values, "columns", None)
    if columns is None or not hasattr(values, "iloc"):
        return values
    if len(columns) != 1:
        raise WrongType(
            f"give one column of the table, like table[{columns[0] if len(columns) else 'path'!r}]: it has "
            f"{len(columns)} ({', '.join(map(str, columns[:5]))})"
        )
    return values.iloc[:, 0]


def _is_open_file(image: Any) -> bool:
    """Whether this is an open binary file, like `io.BytesIO`."""
    return callable(getattr(image, "read", None)) and callable(getattr(image, "seek", None))


def name_of(image: ImageLike, position: int) -> str:
    """The name of a picture in answers and errors: its path, if known, otherwise its position."""
    if isinstance(image, EmbeddedImage):
        return image.name
    if isinstance(image, (str, Path)):
        return str(image)
    named = getattr(image, "filename", "") or (getattr(image, "name", "") if _is_open_file(image) else "")
    return named if isinstance(named, str) and named else f"image {position}"


def decode(image: ImageLike, position: int, size: int | None = None) -> "Image.Image":
    """Decode any picture to RGB. Errors name the picture: `BadImage`, or FileNotFoundError if there is no such file.

    Args:
        image: The picture.
        position: Its index among the given pictures. It is the name of a picture that has no other.
        size: The length that the shorter side needs at least. Large JPEG files are then decoded at a reduced size.
    """
    from PIL import Image, ImageOps

    name = name_of(image, position)
    if _is_open_file(image) and not isinstance(image, Image.Image):
        image.seek(0)  # it may have been read before
        image = image.read()
    if isinstance(image, (str, Path, bytes)):
        source = Path(image) if isinstance(image, str) else image
        if isinstance(source, Path) and source.is_dir():
            raise IsADirectoryError(f"{name} is a folder, not a picture")
        if isinstance(source, Path) and not source.exists():
            raise FileNotFoundError(f"there is no picture {name}")
        return load_image(source, title=name, at_least=size)
    if isinstance(image, Image.Image):
        try:
            check_pixels(name, image.size)
            return to_rgb(ImageOps.exif_transpose(image))
        except (OSError, SyntaxError) as error:  # Pillow reads the file only now
            raise BadImage(f"{name}: not a readable image ({error})") from error
    if isinstance(image, Tensor):
        return _from_array(image.detach().cpu().numpy(), name, channels_first=True)
    if isinstance(image, np.ndarray):
        return _from_array(image, name, channels_first=False)
    raise BadImage(
        f"{name}: must be a path, bytes, an open file, a PIL image, an array or a tensor, got {type(image).__name__}"
    )


def thumbnail(picture: "Image.Image") -> bytes:
    """A small JPEG of a picture."""
    small = picture.copy()
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    content = io.BytesIO()
    small.save(content, "JPEG", quality=88)
    return content.getvalue()


def folder_examples(folder: str | Path) -> tuple[list[Path], list[str]]:
    """The picture files in a folder that holds one folder per class, and the label of each file."""
    from deepbdc.data.loading import class_folders

    files, labels = [], []
    for name, found in class_folders(Path(folder)).items():
        files += found
        labels += [name] * len(found)
    return files, labels


def find_pictures(images: Any) -> Sequence[ImageLike]:
    """Pictures as a sequence; for a folder, the picture files in it and in the folders below."""
    if isinstance(images, (str, Path)) and Path(images).is_dir():
        from deepbdc.data.loading import is_image

        return sorted(file for file in Path(images).rglob("*") if is_image(file))
    return as_list(images)


def _from_array(values: Any, name: str, channels_first: bool) -> "Image.Image":
    from PIL import Image

    shape = values.shape
    if values.ndim == 3:
        first, last = shape[0] in _CHANNELS, shape[-1] in _CHANNELS
        if first and (channels_first or not last):
            values = np.moveaxis(values, 0, -1)
        elif not last:
            raise BadImage(f"{name}: the first or last dimension must be 1, 3 or 4 channels, got the shape {shape}")
        values = values[..., 0] if values.shape[-1] == 1 else values
    if values.ndim not in (2, 3) or 0 in values.shape:
        raise BadImage(f"{name}: the shape must be (h, w), (h, w, channels) or (channels, h, w), got {shape}")
    return to_rgb(Image.fromarray(np.ascontiguousarray(_as_bytes(values, name))))


def _as_bytes(values: Any, name: str) -> Any:
    """Convert colours to uint8, from 0 to 255."""
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * 255
    if values.dtype == np.uint16:
        return (values // 257).astype(np.uint8)
    low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)) or low < 0 or high > 255:
        raise BadImage(
            f"{name}: colours must be from 0 to 1 or from 0 to 255, but are from {low:g} to {high:g}: "
            "give the picture as it was before normalisation"
        )
    if values.dtype.kind == "f" and high <= 1:
        values = values * 255
    return np.round(values).astype(np.uint8)
