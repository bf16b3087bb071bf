"""Draw the images of one class of ``glyphs``: a letter with random face, position, size, slant, stroke and colours.

The pixels are computed only with FreeType, Pillow and elementary arithmetic in numpy. Matrix products and trigonometric
functions are not used, because their last digits depend on the processor.
"""

import numpy as np
from numpy.random import Generator
from PIL import Image, ImageFilter

from deepbdc.data.glyph_characters import Array, Character, draw_mask

SIDE = 32

_OVERSAMPLING = 2
_SIZES = (17.0, 29.0)  # length of the longer side in pixels
_SLANT = 0.35  # horizontal shift per pixel of height
_TURN = 0.07  # tangent of half the rotation angle, which is about 8 degrees
_STRETCH = 1.2
_STROKES = (-1, 0, 1, 2, 3)  # pixels, at 80 per em, by which the outline grows
_BOLD_STROKES = (-2, -1, 0)  # larger values would fill the enclosed spaces of letters
_CONTRAST = (90.0, 190.0)  # difference in luma between ink and background (of 255), before texture and noise
_TEXTURE = 22.0  # largest change of a pixel by the texture of background or ink
_NOISE = 8.0
_LUMA = np.array([0.299, 0.587, 0.114])


def draw_class(character: Character, count: int, generator: Generator) -> Array:
    """Draw ``count`` images of a character: ``(count, 32, 32, 3)`` in uint8."""
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
    """Draw masks of the letter in random faces and stroke widths."""
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
    """Draw the mask of a letter with its outline grown, or shrunk if ``stroke`` is negative."""
    mask = draw_mask(character.letter, character.faces[face], max(stroke, 0))
    if stroke >= 0:
        return mask
    thinned = mask.filter(ImageFilter.MinFilter(1 - 2 * stroke))
    # The thin strokes of some faces would vanish; such letters are not thinned.
    kept = thinned.getbbox() is not None and np.asarray(thinned).sum() > 0.6 * np.asarray(mask).sum()
    return thinned if kept else mask


def _placed(ink: Image.Image, placement: Array) -> Image.Image:
    """Apply an affine map to a mask: the result is a mask of 32×32 pixels."""
    side = (SIDE * _OVERSAMPLING, SIDE * _OVERSAMPLING)
    placed = ink.transform(side, Image.Transform.AFFINE, placement.tolist(), Image.Resampling.BILINEAR)
    return placed.reduce(_OVERSAMPLING)


def _placements(sizes: Array, generator: Generator) -> Array:
    """Draw random affine maps that place boxes of the given sizes entirely inside the image: ``(n, 2) -> (n, 6)``.

    Pillow needs the inverse maps, from pixels of the result to positions in the source.
    """
    side = SIDE * _OVERSAMPLING
    linear = _linear_maps(len(sizes), generator)
    extents = (np.abs(linear) * sizes[:, None, :]).sum(axis=2)
    scales = generator.uniform(*_SIZES, (len(sizes), 1)) * _OVERSAMPLING / extents.max(axis=1, keepdims=True)
    extents, linear = extents * scales, linear * scales[..., None]
    # A margin of one pixel stays free.
    free = side - 2 * _OVERSAMPLING - extents
    centres = extents / 2 + _OVERSAMPLING + generator.uniform(0, 1, (len(sizes), 2)) * free
    a, b, c, d = linear.reshape(-1, 4).T
    back = np.stack([d, -b, -c, a], axis=1).reshape(-1, 2, 2) / (a * d - b * c)[:, None, None]
    offsets = sizes / 2 - (back * centres[:, None, :]).sum(axis=2)
    return np.concatenate([back, offsets[..., None]], axis=2).reshape(-1, 6)


def _linear_maps(count: int, generator: Generator) -> Array:
    """Draw random maps, a stretch, then a slant, then a small rotation: ``(count, 2, 2)``; the y axis points down."""
    stretch = generator.uniform(1 / _STRETCH, _STRETCH, count)
    slant = generator.uniform(-_SLANT, _SLANT, count)
    half = generator.uniform(-_TURN, _TURN, count)
    cosine, sine = (1 - half * half) / (1 + half * half), 2 * half / (1 + half * half)
    rows = [cosine * stretch, cosine * slant - sine, sine * stretch, sine * slant + cosine]
    return np.stack(rows, axis=1).reshape(count, 2, 2)


def _colours(count: int, generator: Generator) -> tuple[Array, Array]:
    """Draw colours of ink and background, ``(count, 3)`` each. Their luma differs by at least 90, with either sign."""
    contrast = generator.uniform(*_CONTRAST, (count, 1))
    room = 255 - 2 * _TEXTURE - contrast
    dark = _TEXTURE + room * generator.uniform(0, 1, (count, 1))
    swapped = generator.integers(2, size=(count, 1)).astype(bool)
    ink, ground = np.where(swapped, dark, dark + contrast), np.where(swapped, dark + contrast, dark)
    return _with_random_hue(ink, generator), _with_random_hue(ground, generator)


def _with_random_hue(luma: Array, generator: Generator) -> Array:
    """Draw colours ``(count, 3)`` in [0, 255] with the given luma ``(count, 1)``, random hue and random saturation."""
    random = generator.uniform(-255, 255, (len(luma), 3))
    hue = random - (random * _LUMA).sum(axis=1, keepdims=True)
    room = np.where(hue > 0, 255 - luma, luma) / np.maximum(np.abs(hue), 1e-9)
    saturation = generator.uniform(0, 1, (len(luma), 1))
    colours: Array = luma + hue * np.minimum(room.min(axis=1, keepdims=True), 1) * saturation
    return colours


def _texture(count: int, generator: Generator) -> Array:
    """Draw textures ``(count, 32, 32, 1)`` within ±22: each is a ramp, stripes or clouds of random strength."""
    kinds = np.stack([_ramps(count, generator), _stripes(count, generator), _clouds(count, generator)])
    chosen = kinds[generator.integers(len(kinds), size=count), np.arange(count)]
    strength = generator.uniform(0, _TEXTURE, (count, 1, 1))
    return (chosen * strength)[..., None]


def _ramps(count: int, generator: Generator) -> Array:
    """Draw linear gradients of brightness in random directions, in [-1, 1]: ``(count, 32, 32)``."""
    right, down = generator.uniform(-0.5, 0.5, (2, count, 1, 1))
    across = np.linspace(-1, 1, SIDE)
    ramps: Array = right * across[None, None, :] + down * across[None, :, None]
    return ramps


def _stripes(count: int, generator: Generator) -> Array:
    """Draw triangular waves in random directions, with periods of 4 to 16 pixels, in [-1, 1]: ``(count, 32, 32)``."""
    right, down = generator.uniform(-1, 1, (2, count, 1, 1))
    steepness = np.maximum(np.abs(right), np.abs(down))
    period, phase = generator.uniform(4, 16, (count, 1, 1)), generator.uniform(0, 1, (count, 1, 1))
    pixels = np.arange(SIDE)
    waves = (right * pixels[None, None, :] + down * pixels[None, :, None]) / (steepness * period) + phase
    stripes: Array = 4 * np.abs(waves - np.floor(waves) - 0.5) - 1
    return stripes


def _clouds(count: int, generator: Generator) -> Array:
    """Draw random values on a 6×6 grid, interpolated bilinearly, in [-1, 1]: ``(count, 32, 32)``."""
    grid = generator.uniform(-1, 1, (count, 6, 6))
    places = np.linspace(0, 5, SIDE, endpoint=False)
    before = places.astype(np.intp)
    weight = places - before
    rows = grid[:, before] * (1 - weight)[None, :, None] + grid[:, before + 1] * weight[None, :, None]
    return rows[:, :, before] * (1 - weight) + rows[:, :, before + 1] * weight
