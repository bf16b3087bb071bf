"""Pictures for the tests: red discs, blue stripes and green crosses, each a little different."""

import io
import random

from PIL import Image, ImageDraw


def picture(kind: str, seed: int, side: int = 96, file_format: str = "PNG") -> bytes:
    """The file of a drawn picture: a ``disc``, ``stripes`` or a ``cross``."""
    chance = random.Random(f"{kind} {seed}")
    shade = chance.randint(0, 60)
    image = Image.new("RGB", (side, side), (225 + chance.randint(0, 30),) * 3)
    draw = ImageDraw.Draw(image)
    left, top = (chance.randint(5, 20) for _ in range(2))
    right, bottom = (side - chance.randint(5, 20) for _ in range(2))
    if kind == "disc":
        draw.ellipse((left, top, right, bottom), fill=(190 + shade, shade, shade))
    elif kind == "stripes":
        for x in range(left % 12, side, 12):
            draw.line((x, 0, x, side), fill=(shade, shade, 190 + shade), width=6)
    elif kind == "cross":
        draw.line((left, top, right, bottom), fill=(shade, 150, shade), width=14)
        draw.line((left, bottom, right, top), fill=(shade, 150, shade), width=14)
    else:
        raise ValueError(kind)
    content = io.BytesIO()
    image.save(content, file_format)
    return content.getvalue()
