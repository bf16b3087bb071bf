"""Pictures that are easily told apart, and folders of them."""

import random
from pathlib import Path

from PIL import Image, ImageDraw

CLASSES = ("circle", "stripes", "triangle")
SIDE = 96


def draw(kind: str, seed: int) -> Image.Image:
    """A red circle, blue stripes or a green triangle on a light ground; anything else is noise."""
    chance = random.Random(f"{kind} {seed}")
    picture = Image.new("RGB", (SIDE, SIDE), tuple(chance.randrange(200, 256) for _ in range(3)))
    pen = ImageDraw.Draw(picture)
    x, y, size = chance.randrange(30, 66), chance.randrange(30, 66), chance.randrange(18, 28)
    if kind == "circle":
        pen.ellipse((x - size, y - size, x + size, y + size), fill=(chance.randrange(180, 256), 30, 30))
    elif kind == "triangle":
        pen.polygon(
            [(x, y - size), (x - size, y + size), (x + size, y + size)], fill=(30, chance.randrange(130, 200), 40)
        )
    elif kind == "stripes":
        for left in range(0, SIDE, chance.randrange(10, 16)):
            pen.rectangle((left, 0, left + 5, SIDE), fill=(30, 40, chance.randrange(160, 256)))
    else:
        picture = Image.frombytes("RGB", (SIDE, SIDE), chance.randbytes(3 * SIDE * SIDE))
    return picture


def save(path: Path, kind: str, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(kind, seed).save(path)
    return path


def examples(folder: Path, count: int = 3, classes: tuple[str, ...] = CLASSES) -> Path:
    """A folder with a folder for each class."""
    for kind in classes:
        for number in range(count):
            save(folder / kind / f"{number}.png", kind, number)
    return folder
