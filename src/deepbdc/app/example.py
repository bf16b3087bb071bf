"""The bundled example of the web page: drawings of fruit to learn from, and of fruit and a boat to classify."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PIL import Image, ImageChops, ImageDraw, ImageFilter

SIDE = 288
_OVERSAMPLING = 2
_CANVAS = SIDE * _OVERSAMPLING
_GROUNDS = ("#e9dcc5", "#d7e3ea", "#e6d9e6", "#dce8d4", "#f1e3d3", "#cfd8dc", "#efe9dd", "#d9d3c7")

Colour = tuple[int, int, int]
Point = tuple[float, float]


@dataclass(frozen=True)
class DrawnPicture:
    """A picture of the example. ``label`` is None for pictures to classify."""

    name: str
    image: Image.Image
    label: str | None


def draw_example(seed: int = 7, examples: int = 4, questions: int = 2) -> list[DrawnPicture]:
    """Draw examples of each fruit, and fruit and a boat to classify. The same seed gives the same pictures.

    Args:
        seed: Seed of the random generator.
        examples: LabelledImages per fruit.
        questions: Pictures to classify per fruit.
    """
    chance = random.Random(seed)
    pictures = [
        DrawnPicture(f"{name} {number + 1}.png", _draw(draw, chance), name)
        for name, draw in FRUIT.items()
        for number in range(examples)
    ]
    asked = [draw for _ in range(questions) for draw in FRUIT.values()]
    asked.insert(len(asked) // 2 + 1, _boat)
    pictures += [
        DrawnPicture(f"picture {number + 1}.png", _draw(draw, chance), None) for number, draw in enumerate(asked)
    ]
    return pictures


class _Brush:
    """Draws shaded shapes on a layer. The origin is its centre, and the unit is 1 % of the side of the picture."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.layer = Image.new("RGBA", (_CANVAS, _CANVAS))

    def ellipse(self, x: float, y: float, wide: float, high: float, colour: Colour, light: float = 0.0) -> None:
        """Draw an ellipse. With ``light`` it is shaded like a ball that is lit from the upper left."""
        steps = [number / 48 * math.tau for number in range(48)]
        self.polygon([(x + wide * math.cos(step), y + high * math.sin(step)) for step in steps], colour, light)

    def polygon(self, points: Sequence[Point], colour: Colour, light: float = 0.0) -> None:
        """Draw a filled polygon."""
        corners = [_pixels(point) for point in points]
        left, top = (math.floor(min(corner[axis] for corner in corners)) for axis in (0, 1))
        right, bottom = (math.ceil(max(corner[axis] for corner in corners)) + 1 for axis in (0, 1))
        mask = Image.new("L", (right - left, bottom - top))
        ImageDraw.Draw(mask).polygon([(x - left, y - top) for x, y in corners], fill=255)
        self.layer.paste(colour, (left, top), mask)
        if light:
            self._light(mask, (left, top), light)

    def line(self, points: Sequence[Point], width: float, colour: Colour) -> None:
        """Draw a line with rounded joints."""
        ImageDraw.Draw(self.layer).line(
            [_pixels(point) for point in points], fill=colour, width=round(width * _CANVAS / 100), joint="curve"
        )

    def _light(self, mask: Image.Image, corner: tuple[int, int], light: float) -> None:
        """Darken a shape at its lower right, and brighten it at its upper left."""
        wide, high = mask.size
        reach = max(wide, high) / 2
        for shift, tone, strength, part in ((0.45, (30, 10, 20), 0.55, 0.75), (-0.42, (255, 255, 240), 0.6, 0.42)):
            x, y, size = wide / 2 + shift * reach, high / 2 + shift * reach, reach * part
            spot = Image.new("L", mask.size)
            ImageDraw.Draw(spot).ellipse((x - size, y - size, x + size, y + size), fill=round(255 * strength * light))
            spot = spot.filter(ImageFilter.BoxBlur(size * 0.4)).filter(ImageFilter.BoxBlur(size * 0.3))
            self.layer.paste(tone, corner, ImageChops.multiply(spot, mask))


def _pixels(point: Point) -> Point:
    return (point[0] + 50) * _CANVAS / 100, (point[1] + 50) * _CANVAS / 100


def _draw(draw: Callable[[_Brush], None], chance: random.Random) -> Image.Image:
    """Draw an object with its shadow on a table. Position, angle and size are random."""
    brush = _Brush(chance)
    draw(brush)
    size = chance.uniform(0.78, 1.05)
    side = round(_CANVAS * size)
    thing = brush.layer.resize((side, side), Image.Resampling.BICUBIC)
    thing = thing.rotate(chance.uniform(-28, 28), Image.Resampling.BICUBIC)
    place = tuple(round((_CANVAS - side) / 2 + chance.uniform(-0.07, 0.07) * _CANVAS) for _ in range(2))
    picture = _table(chance)
    shadow = thing.getchannel("A").point(lambda value: value * 0.35)
    shadow = shadow.filter(ImageFilter.BoxBlur(9 * _OVERSAMPLING))
    picture.paste((40, 30, 40), (place[0] + 7 * _OVERSAMPLING, place[1] + 11 * _OVERSAMPLING), shadow)
    picture.paste(thing, (place[0], place[1]), thing)
    return picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def _table(chance: random.Random) -> Image.Image:
    """Draw a plain background that is darker at the bottom, sometimes with the gaps between boards."""
    ground = Image.new("RGB", (_CANVAS, _CANVAS), chance.choice(_GROUNDS))
    if chance.random() < 0.5:
        draw, gap = ImageDraw.Draw(ground), chance.randint(16, 30) * _CANVAS // 100
        for top in range(chance.randint(0, gap), _CANVAS, gap):
            draw.line((0, top, _CANVAS, top), fill=(196, 184, 170), width=2 * _OVERSAMPLING)
    shade = Image.linear_gradient("L").resize(ground.size).point(lambda value: value * 0.22)
    ground.paste((60, 50, 60), mask=shade)
    return ground


def _apple(brush: _Brush) -> None:
    chance = brush.chance
    colour = chance.choice([(200, 38, 44), (176, 30, 48), (214, 66, 48), (120, 170, 60)])
    wide = chance.uniform(25, 29)
    outline = []
    for step in range(120):
        angle = step / 120 * math.tau
        dent = 1 - 0.2 * math.exp(-8 * (1 + math.sin(angle)))  # the hollow around the stalk
        outline.append((wide * math.cos(angle), 27 * dent * math.sin(angle) + 4))
    brush.polygon(outline, colour, light=0.9)
    brush.line([(0, -18), (1, -26), (chance.uniform(3, 6), -32)], 2.4, (92, 62, 38))
    _leaf(brush, (3, -24), chance.uniform(14, 18))


def _leaf(brush: _Brush, foot: Point, length: float) -> None:
    x, y = foot
    brush.polygon(
        [(x, y), (x + length * 0.35, y - 8), (x + length, y - 7), (x + length * 0.65, y + 1)], (86, 138, 62), light=0.3
    )


def _banana(brush: _Brush) -> None:
    chance = brush.chance
    colour = chance.choice([(243, 205, 60), (236, 192, 48), (248, 218, 92), (214, 204, 70)])
    for turn in range(chance.randint(1, 2)):
        bend, drop = chance.uniform(20, 26), turn * 9
        outer = [(x, bend * (1 - (x / 36) ** 2) + drop) for x in range(-36, 37, 2)]
        inner = [(x, (bend - 15) * (1 - (x / 36) ** 2) + drop - 2) for x in range(36, -37, -2)]
        brush.polygon(outer + inner, colour, light=0.35)
        brush.line([(x, y - 6) for x, y in outer[6:-6]], 0.7, (206, 164, 40))
        brush.line([(-35, drop), (-40, drop - 6)], 4, (120, 96, 40))
        brush.ellipse(36, drop - 1, 2.2, 2.2, (84, 66, 40))


def _grapes(brush: _Brush) -> None:
    chance = brush.chance
    base = chance.choice([(96, 52, 122), (74, 40, 100), (116, 60, 128), (132, 168, 72)])
    brush.line([(0, -22), (1, -38)], 2.2, (110, 84, 48))
    _leaf(brush, (2, -30), chance.uniform(15, 20))
    for row, count in enumerate((5, 4, 4, 3, 2, 1)):
        for place in range(count):
            colour = tuple(max(0, min(255, channel + chance.randint(-12, 12))) for channel in base)
            x = (place - (count - 1) / 2) * 11 + chance.uniform(-1.5, 1.5)
            brush.ellipse(
                x, row * 10 - 20 + chance.uniform(-1, 1), 7, 7.4, (colour[0], colour[1], colour[2]), light=0.9
            )


def _boat(brush: _Brush) -> None:
    brush.polygon([(-2, 14), (-2, -36), (-28, 10)], (244, 244, 240), light=0.2)
    brush.polygon([(3, 12), (3, -30), (24, 10)], (222, 92, 72), light=0.2)
    brush.line([(0, 18), (0, -38)], 1.8, (110, 80, 52))
    brush.polygon([(-34, 16), (34, 16), (24, 32), (-24, 32)], (52, 92, 140), light=0.3)


FRUIT: dict[str, Callable[[_Brush], None]] = {"apple": _apple, "banana": _banana, "grapes": _grapes}
