"""Draw the pictures of one class of ``glyphs``: a letter in random faces, place, size, slant, stroke and colours.

Every pixel is made by FreeType, by Pillow or by additions and multiplications of numpy, never by a matrix product or a
trigonometric function, whose last digits depend on the processor.
"""

import numpy as np
from numpy.random import Generator
from PIL import Image, ImageFilter

from deepbdc.data.glyph_characters import Array, Character, draw_mask

SIDE = 32

_OVERSAMPLING = 2
_SIZES = (17.0, 29.0)  # pixels of the longer side
_SLANT = 0.35  # horizontal shift per pixel of height
_TURN = 0.07  # tangent of half the angle: about 8 degrees
_STRETCH = 1.2
_STROKES = (-1, 0, 1, 2, 3)  # pixels at 80 per em by which the outline moves out
_BOLD_STROKES = (-2, -1, 0)  # more would fill the counters
_CONTRAST = (90.0, 190.0)  # between the luma of ink and ground, of 255, before texture and noise
_TEXTURE = 22.0  # greatest change of a pixel by the texture of the ground or of the ink
_NOISE = 8.0
_LUMA = np.array([0.299, 0.587, 0.114])


def draw_class(character: Character, count: int, generator: Generator) -> Array:
    """``count`` pictures of a character: ``(count, 32, 32, 3)`` in uint8."""
    inks = _inks(character, count, generator)
    placements = _placements(np.array([ink.size for ink in inks], dtype=np.float64), generator)
    masks = np.stack([np.asarray(_placed(ink, placement)) for ink, placement in zip(inks, placements, strict=True)])
    ink, ground = _colours(count, generator)
    inked = ink[:, None, None, :] + _texture(count, generator)
    grounded = ground[:, None, None, :] + _texture(count, generator)
    noise = generator.uniform(-_NOISE, _NOISE, (count, SIDE, SIDE, 3))
    pictures: Array = np.rint(np.clip(grounded + (inked - grounded) * (masks[..., None] / 255) + noise, 0, 255))
    return pictures.astype(np.uint8)


def _inks(character: Character, count: int, generator: Generator) -> list[Image.Image]:
    """Masks of the letter in random faces and stroke widths."""
    drawn: dict[tuple[int, int], Image.Image] = {}
    inks = []
    for face in generator.integers(len(character.faces), size=count).tolist():
        strokes = _BOLD_STROKES if character.faces[face].is_bold else _STROKES
        stroke = strokes[int(generator.integers(len(strokes)))]
        if (face, stroke) not in drawn:
            drawn[face, stroke] = _ink(character, face, stroke)
        inks.append(drawn[face, stroke])
    return inks


def _ink(character: Character, face: int, stroke: int) -> Image.Image:
    """The mask of a letter with its outline moved out, or in when ``stroke`` is negative."""
    mask = draw_mask(character.letter, character.faces[face], max(stroke, 0))
    if stroke >= 0:
        return mask
    thinned = mask.filter(ImageFilter.MinFilter(1 - 2 * stroke))
    # The hairlines of some faces would vanish: they keep their width.
    kept = thinned.getbbox() is not None and np.asarray(thinned).sum() > 0.6 * np.asarray(mask).sum()
    return thinned if kept else mask


def _placed(ink: Image.Image, placement: Array) -> Image.Image:
    """The ink brought to its place in a picture of 32×32 pixels."""
    side = (SIDE * _OVERSAMPLING, SIDE * _OVERSAMPLING)
    placed = ink.transform(side, Image.Transform.AFFINE, placement.tolist(), Image.Resampling.BILINEAR)
    return placed.reduce(_OVERSAMPLING)


def _placements(sizes: Array, generator: Generator) -> Array:
    """Random affine maps that put boxes of the given sizes wholly inside the picture: ``(n, 2) -> (n, 6)``.

    Pillow asks where in the source a pixel of the result comes from, so these are the inverse maps.
    """
    side = SIDE * _OVERSAMPLING
    linear = _linear_maps(len(sizes), generator)
    extents = (np.abs(linear) * sizes[:, None, :]).sum(axis=2)
    scales = generator.uniform(*_SIZES, (len(sizes), 1)) * _OVERSAMPLING / extents.max(axis=1, keepdims=True)
    extents, linear = extents * scales, linear * scales[..., None]
    # A pixel stays free at the borders.
    free = side - 2 * _OVERSAMPLING - extents
    centres = extents / 2 + _OVERSAMPLING + generator.uniform(0, 1, (len(sizes), 2)) * free
    a, b, c, d = linear.reshape(-1, 4).T
    back = np.stack([d, -b, -c, a], axis=1).reshape(-1, 2, 2) / (a * d - b * c)[:, None, None]
    offsets = sizes / 2 - (back * centres[:, None, :]).sum(axis=2)
    return np.concatenate([back, offsets[..., None]], axis=2).reshape(-1, 6)


def _linear_maps(count: int, generator: Generator) -> Array:
    """A stretch, then a slant, then a small turn: ``(count, 2, 2)``, in coordinates whose y points down."""
    stretch = generator.uniform(1 / _STRETCH, _STRETCH, count)
    slant = generator.uniform(-_SLANT, _SLANT, count)
    half = generator.uniform(-_TURN, _TURN, count)
    cosine, sine = (1 - half * half) / (1 + half * half), 2 * half / (1 + half * half)
    rows = [cosine * stretch, cosine * slant - sine, sine * stretch, sine * slant + cosine]
    return np.stack(rows, axis=1).reshape(count, 2, 2)


def _colours(count: int, generator: Generator) -> tuple[Array, Array]:
    """Colours of ink and ground, ``(count, 3)`` each, whose luma differs by at least 90; either may be the darker."""
    contrast = generator.uniform(*_CONTRAST, (count, 1))
    room = 255 - 2 * _TEXTURE - contrast
    dark = _TEXTURE + room * generator.uniform(0, 1, (count, 1))
    swapped = generator.integers(2, size=(count, 1)).astype(bool)
    ink, ground = np.where(swapped, dark, dark + contrast), np.where(swapped, dark + contrast, dark)
    return _with_random_hue(ink, generator), _with_random_hue(ground, generator)


def _with_random_hue(luma: Array, generator: Generator) -> Array:
    """Colours ``(count, 3)`` in [0, 255] of the given luma ``(count, 1)``, as colourful as a random draw says."""
    random = generator.uniform(-255, 255, (len(luma), 3))
    hue = random - (random * _LUMA).sum(axis=1, keepdims=True)
    room = np.where(hue > 0, 255 - luma, luma) / np.maximum(np.abs(hue), 1e-9)
    saturation = generator.uniform(0, 1, (len(luma), 1))
    colours: Array = luma + hue * np.minimum(room.min(axis=1, keepdims=True), 1) * saturation
    return colours


def _texture(count: int, generator: Generator) -> Array:
    """Changes of brightness within ±22, ``(count, 32, 32, 1)``: each a ramp, stripes or clouds, weak or strong."""
    kinds = np.stack([_ramps(count, generator), _stripes(count, generator), _clouds(count, generator)])
    chosen = kinds[generator.integers(len(kinds), size=count), np.arange(count)]
    strength = generator.uniform(0, _TEXTURE, (count, 1, 1))
    return (chosen * strength)[..., None]


def _ramps(count: int, generator: Generator) -> Array:
    """Brightness that changes evenly in a random direction, in [-1, 1]: ``(count, 32, 32)``."""
    right, down = generator.uniform(-0.5, 0.5, (2, count, 1, 1))
    across = np.linspace(-1, 1, SIDE)
    ramps: Array = right * across[None, None, :] + down * across[None, :, None]
    return ramps


def _stripes(count: int, generator: Generator) -> Array:
    """Triangular waves of 4 to 16 pixels in a random direction, in [-1, 1]: ``(count, 32, 32)``."""
    right, down = generator.uniform(-1, 1, (2, count, 1, 1))
    steepness = np.maximum(np.abs(right), np.abs(down))
    period, phase = generator.uniform(4, 16, (count, 1, 1)), generator.uniform(0, 1, (count, 1, 1))
    pixels = np.arange(SIDE)
    waves = (right * pixels[None, None, :] + down * pixels[None, :, None]) / (steepness * period) + phase
    stripes: Array = 4 * np.abs(waves - np.floor(waves) - 0.5) - 1
    return stripes


def _clouds(count: int, generator: Generator) -> Array:
    """Random values on a grid of 6×6, interpolated, in [-1, 1]: ``(count, 32, 32)``."""
    grid = generator.uniform(-1, 1, (count, 6, 6))
    places = np.linspace(0, 5, SIDE, endpoint=False)
    before = places.astype(np.intp)
    weight = places - before
    rows = grid[:, before] * (1 - weight)[None, :, None] + grid[:, before + 1] * weight[None, :, None]
    return rows[:, :, before] * (1 - weight) + rows[:, :, before + 1] * weight
