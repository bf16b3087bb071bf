"""Decode image files of any common format and mode into 8-bit RGB, with readable errors."""

import io
import math
import os
import stat
import struct
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepbdc._optional import require
from deepbdc.errors import MissingPackage, UserError

if TYPE_CHECKING:
    from PIL import Image

IMAGE_SUFFIXES = frozenset(
    {".avif", ".bmp", ".gif", ".heic", ".heif", ".hif", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif"}
    | {".tiff", ".webp"}
)
MOST_PIXELS = 100_000_000
"""The most pixels of a decoded image, unless the environment variable `LIMIT` says otherwise."""
LIMIT = "DEEPBDC_MEGAPIXELS"
LARGER_BEFORE = 10
"""How many times as large an image may be before it is decoded at a reduced size."""
_HEIF_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"})


class BadImage(UserError):
    """A file is not a readable image; the message names it."""


def load_image(
    source: str | Path | bytes,
    most_pixels: int | None = None,
    title: str | None = None,
    at_least: int | None = None,
) -> "Image.Image":
    """Decode an image file, or its bytes, into an 8-bit RGB image.

    The EXIF orientation is applied, transparent pixels become white, and an animation gives its first frame. HEIC files
    need the package pillow-heif.

    Args:
        source: The path of the file, or its content.
        most_pixels: Refuse larger images, which may be decompression bombs (default: `pixel_limit`).
        title: What errors call the image (default: the path).
        at_least: If given, a JPEG whose sides are much longer than this many pixels is decoded at a half, a quarter or
            an eighth of its size, which is faster; the limit of pixels then counts what is decoded.

    Raises:
        FileNotFoundError: The file does not exist.
        BadImage: The file is empty, truncated, a pipe or a device, is not an image, or has too many pixels.
    """
    from PIL import ImageOps, UnidentifiedImageError

    name = title or ("image bytes" if isinstance(source, bytes) else str(source))
    _check_file(source, name)
    try:
        with _open(source, name) as image:
            size = image.size
            if at_least is not None and image.format in ("JPEG", "MPO"):
                image.draft(None, (2 * at_least, 2 * at_least))
            # A progressive JPEG is read as a whole before it is made smaller.
            decoded = size if "progressive" in image.info else image.size
            pixels = max(math.prod(decoded), math.prod(size) // LARGER_BEFORE)
            check_pixels(name, size, most_pixels, pixels)
            return to_rgb(ImageOps.exif_transpose(image))
    except FileNotFoundError:
        raise
    except UserError:
        raise
    except UnidentifiedImageError as error:
        raise BadImage(f"{name}: not a readable image (unknown format)") from error
    except Exception as error:  # decoders can raise nearly any error on damaged files
        raise BadImage(f"{name}: not a readable image ({error})") from error


def pixel_limit() -> int:
    """The most pixels of a decoded image: 100 million, or what the environment variable DEEPBDC_MEGAPIXELS says."""
    given = os.environ.get(LIMIT)
    if not given:
        return MOST_PIXELS
    try:
        megapixels = float(given)
        if not 0 < megapixels < math.inf:
            raise ValueError
    except ValueError:
        raise UserError(f"the environment variable {LIMIT} must be a number like 300, got {given!r}") from None
    return round(megapixels * 1e6)


def check_pixels(name: str, size: tuple[int, int], most: int | None = None, decoded: int | None = None) -> None:
    """Refuse an image that is too large to decode.

    Args:
        name: What the error calls the image.
        size: Its width and height.
        most: The most pixels to decode (default: `pixel_limit`; the error then tells how to raise it).
        decoded: How many pixels will be decoded (default: all).
    """
    width, height = size
    limit = pixel_limit() if most is None else most
    if (width * height if decoded is None else decoded) > limit:
        hint = f". If you trust the file, set {LIMIT}={math.ceil(width * height / 1e6)} in the environment"
        text = f"{name}: refused, {width}×{height} pixels are more than the limit of {limit:,}"
        raise BadImage(text + (hint if most is None else ""))


def _check_file(source: str | Path | bytes, name: str) -> None:
    """Refuse a pipe or device, which could be endless or never give anything, and an empty file."""
    if isinstance(source, bytes):
        size = len(source)
    else:
        state = os.stat(source)
        if not stat.S_ISREG(state.st_mode) and not stat.S_ISDIR(state.st_mode):
            raise BadImage(f"{name}: a pipe or device, not a file")
        size = state.st_size
    if size == 0:
        raise BadImage(f"{name}: an empty file (0 bytes)")


def _open(source: str | Path | bytes, name: str) -> "Image.Image":
    """Open an image of any size; nothing is decoded yet. Pillow's own limit does not count, see `pixel_limit`."""
    from PIL import Image, UnidentifiedImageError

    def stream() -> Any:
        return io.BytesIO(source) if isinstance(source, bytes) else source

    _no_warnings_of_size()
    try:
        return Image.open(stream())
    except Image.DecompressionBombError:
        return _open_large(source if isinstance(source, bytes) else Path(source).read_bytes())
    except UnidentifiedImageError:
        if not _is_heif(source):
            raise
    _read_heif(name)
    return Image.open(stream())


def _open_large(content: bytes) -> "Image.Image":
    """Open an image that is larger than Pillow allows. Its limit is one number for the whole program: we leave it."""
    from PIL import Image

    for factory, accepts in Image.OPEN.values():
        if accepts is None or accepts(content[:16]) is True:
            with suppress(SyntaxError, IndexError, TypeError, struct.error):  # what Pillow takes for "another format"
                return factory(io.BytesIO(content), "")
    raise BadImage("unknown format")


@cache
def _no_warnings_of_size() -> None:
    """Silence Pillow's own warning about large images, because `load_image` has its own limit.

    Cached, so that it runs only once: changing warning filters is not thread-safe.
    """
    from PIL import Image

    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def _is_heif(source: str | Path | bytes) -> bool:
    """Whether the first bytes are those of a HEIC or HEIF file."""
    if isinstance(source, bytes):
        head = source[:12]
    else:
        with open(source, "rb") as file:
            head = file.read(12)
    return head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS


def _read_heif(name: str) -> None:
    """Let Pillow read HEIC files; a missing package becomes the error of the image ``name``."""
    try:
        require("pillow_heif", "heic").register_heif_opener()
    except MissingPackage as error:
        raise BadImage(f"{name}: a HEIC picture; {error}") from error


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
