"""Decode image files of any common format and mode into 8-bit RGB, with readable errors."""

import io
import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepbdc.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

IMAGE_SUFFIXES = frozenset(
    {".avif", ".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
MOST_PIXELS = 100_000_000


class BadImage(UserError):
    """A file is not a readable image; the message names it."""


def load_image(
    source: str | Path | bytes, most_pixels: int = MOST_PIXELS, title: str | None = None, at_least: int | None = None
) -> "Image.Image":
    """Decode an image file, or its bytes, into an 8-bit RGB image.

    The EXIF orientation is applied, transparent pixels become white, and an animation gives its first frame.

    Args:
        source: The path of the file, or its content.
        most_pixels: Refuse larger images, which may be decompression bombs.
        title: What errors call the image (default: the path).
        at_least: If given, a JPEG whose sides are much longer than this many pixels is decoded at a half, a quarter or
            an eighth of its size, which is faster.

    Raises:
        FileNotFoundError: The file does not exist.
        BadImage: The file is truncated, is not an image, or has more than ``most_pixels`` pixels.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    name = title or ("image bytes" if isinstance(source, bytes) else str(source))
    opened = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        _no_warnings_of_size()
        with Image.open(opened) as image:
            if image.width * image.height > most_pixels:
                size = f"{image.width}×{image.height}"
                raise BadImage(f"{name}: refused, {size} pixels are more than the limit of {most_pixels:,}")
            if at_least is not None and image.format == "JPEG":
                image.draft(None, (2 * at_least, 2 * at_least))
            return to_rgb(ImageOps.exif_transpose(image))
    except FileNotFoundError:
        raise
    except BadImage:
        raise
    except Image.DecompressionBombError as error:
        raise BadImage(f"{name}: refused as a decompression bomb ({error})") from error
    except UnidentifiedImageError as error:
        raise BadImage(f"{name}: not a readable image (unknown format)") from error
    except Exception as error:  # decoders can raise nearly any error on damaged files
        raise BadImage(f"{name}: not a readable image ({error})") from error


@cache
def _no_warnings_of_size() -> None:
    """Silence Pillow's own warning about large images, because `load_image` has its own limit.

    Cached, so that it runs only once: changing warning filters is not thread-safe.
    """
    from PIL import Image

    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def to_rgb(image: "Image.Image") -> "Image.Image":
    """Convert an image of any mode to 8-bit RGB; transparent pixels become white."""
    from PIL import Image

    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        image = Image.fromarray(_to_8_bits(np.asarray(image), image.mode))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        ground = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(ground, image.convert("RGBA"))
    return image.convert("RGB")


def _to_8_bits(values: Any, mode: str) -> Any:
    """Convert grey values to 8 bits, from 16 bits (perhaps stored in 32) or from floats in [0, 1] or [0, 255]."""
    if mode == "F":
        scaled = values * 255 if values.size and values.max() <= 1 else values
        return np.clip(np.nan_to_num(scaled), 0, 255).astype(np.uint8)
    if mode == "I" and values.size and values.max() <= 255:
        return np.clip(values, 0, 255).astype(np.uint8)
    return (np.clip(values, 0, 65535).astype(np.uint32) // 257).astype(np.uint8)
