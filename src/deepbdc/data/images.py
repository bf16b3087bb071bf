"""Decode any picture that people have into plain RGB, or say in words why not."""

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
    """A file that is not a readable image; the message names it."""


def load_image(
    source: str | Path | bytes, most_pixels: int = MOST_PIXELS, title: str | None = None, at_least: int | None = None
) -> "Image.Image":
    """Decode a file (or its bytes) into an RGB picture.

    Turned as its EXIF orientation says; grey, palette, CMYK and 16-bit become 8-bit RGB; what is transparent becomes
    white; of an animation the first frame is taken. Truncated files, other files, and pictures of more than
    ``most_pixels`` (decompression bombs) raise `BadImage`, which names the file (or ``title``). With ``at_least``, a
    JPEG whose sides are much longer is decoded at a half, a quarter or an eighth of its size, which is faster.
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
        raise BadImage(f"{name}: not a readable image (of no known format)") from error
    except Exception as error:  # decoders raise nearly anything on damaged files
        raise BadImage(f"{name}: not a readable image ({error})") from error


@cache
def _no_warnings_of_size() -> None:
    """Pillow warns above a limit of its own; ours is in its place. Once, as filters are not safe in threads."""
    from PIL import Image

    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def to_rgb(image: "Image.Image") -> "Image.Image":
    """An opened picture of any mode in 8-bit RGB, on white where it is transparent."""
    from PIL import Image

    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        image = Image.fromarray(_to_8_bits(np.asarray(image), image.mode))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        ground = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(ground, image.convert("RGBA"))
    return image.convert("RGB")


def _to_8_bits(values: Any, mode: str) -> Any:
    """Grey values of 16 bits (also when stored in 32), or floating-point ones in [0, 1] or [0, 255], as 8 bits."""
    if mode == "F":
        scaled = values * 255 if values.size and values.max() <= 1 else values
        return np.clip(np.nan_to_num(scaled), 0, 255).astype(np.uint8)
    if mode == "I" and values.size and values.max() <= 255:
        return np.clip(values, 0, 255).astype(np.uint8)
    return (np.clip(values, 0, 65535).astype(np.uint32) // 257).astype(np.uint8)
