"""Decodes pictures that were sent to a server. They are not trusted."""

import io
from typing import TYPE_CHECKING

from deepbdc.data.images import BadImage, load_image
from deepbdc.web.refusals import Refused

if TYPE_CHECKING:
    from PIL import Image

FILE_BYTES = 10 * 2**20
"""The largest picture file that a server accepts."""
PIXELS = 50_000_000
"""The most pixels of a picture after decoding."""
MESSAGE_BYTES = 64 * 1024
"""The largest body of a request that sends no picture."""
# Only formats that Pillow decodes itself. For others, like EPS, it would start external programs.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM")


def decode(content: bytes, name: str, most_pixels: int = PIXELS) -> "Image.Image":
    """Decode a picture file. If that fails, the error `Refused` names the picture."""
    from PIL import Image, UnidentifiedImageError

    try:
        Image.init()
        known = [name for name in FORMATS if name in Image.OPEN]
        Image.open(io.BytesIO(content), formats=known).close()
        return load_image(content, most_pixels=most_pixels, title=name)
    except BadImage as error:
        raise Refused(str(error), status=422) from error
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise Refused(f"{name}: not a readable image. Use JPEG, PNG, WebP, GIF or TIFF files.", status=422) from error
