"""Choose the characters that are the classes of the embedded data set ``glyphs``, and the font faces that draw each.

The characters are letters that several of matplotlib's text fonts contain. Each script belongs to one split as a whole.
Of letters that look alike in any two faces, only one is kept, even across splits: Latin A, Cyrillic А and Greek Α look
the same, so they must not be three classes, nor occur both in training and in a test.
"""

import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Array = np.ndarray[Any, np.dtype[Any]]

SCRIPTS = {
    "test": ("armenian", "hebrew", "arabic"),
    "val": ("georgian", "lao"),
    "train": ("latin", "cyrillic", "greek", "canadian"),
}
MOST_PER_SCRIPT = 115
FEWEST_FACES = 4
LIKENESS_LIMIT = 0.82
FONT_SIZE = 80

_CANONICAL_SIDE = 24
_CANONICAL_LEVELS = 15
_ROWS_AT_ONCE = 512
_SMALLEST = 0.39  # of the em; smaller shapes are marks rather than letters
_SLIMMEST = 0.2  # of the longer side; slimmer shapes are mere strokes or dashes
_LAST_CODE = 0x2DFF  # higher code points are medieval abbreviations and Arabic presentation forms


@dataclass(frozen=True)
class Face:
    """One font face: the name of its file without the suffix, and the font at 80 pixels per em."""

    name: str
    font: ImageFont.FreeTypeFont

    @property
    def is_bold(self) -> bool:
        """Whether the face is bold."""
        return "Bol" in self.name

    @property
    def is_distinct(self) -> bool:
        """Whether the face is upright and not bold; bold and oblique faces have the shapes of upright ones."""
        return not self.is_bold and "Oblique" not in self.name


@dataclass(frozen=True)
class Character:
    """One class: a letter, its script, the split of the script, and the faces that contain it, sorted by name."""

    letter: str
    script: str
    split: str
    faces: tuple[Face, ...]

    @property
    def distinct_faces(self) -> tuple[Face, ...]:
        """The upright faces that are not bold."""
        return tuple(face for face in self.faces if face.is_distinct)

    @property
    def name(self) -> str:
        """The class name, unique and valid as a file name: script, hexadecimal code point, short Unicode name.

        >>> Character("ж", "cyrillic", "train", ()).name
        'cyrillic_0436_zhe'
        """
        words = unicodedata.name(self.letter).lower().replace("-", " ").split()
        left_out = {"letter", "small", "syllabics", *self.script.split("_")}
        short = "_".join(word for word in words if word not in left_out)
        return f"{self.script}_{ord(self.letter):04x}_{short}"


def font_files() -> tuple[Path, ...]:
    """List the text fonts that matplotlib ships, sorted by name: three DejaVu families and STIX, four faces each.

    Other fonts are left out: LastResort draws placeholders for everything, the Computer Modern fonts and the other STIX
    fonts have symbols at the code points of other characters, and the Display fonts contain only a few letters.
    """
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    texts = (path for pattern in ("DejaVu*.ttf", "STIXGeneral*.ttf") for path in folder.glob(pattern))
    files = sorted(path for path in texts if "Display" not in path.stem)
    if len(files) < FEWEST_FACES:
        raise FileNotFoundError(
            f"the data set 'glyphs' is drawn with the fonts that matplotlib ships, but {folder} has only {len(files)} "
            "of its text fonts. Some distributions remove them: install matplotlib from PyPI with pip."
        )
    return tuple(files)


def script_of(letter: str) -> str:
    """Return the script of a letter, such as ``"cyrillic"``: the first word of its Unicode name, in lower case."""
    return unicodedata.name(letter, "unnamed").split()[0].lower()


def candidates() -> list[Character]:
    """List all letters of the chosen scripts that enough faces contain, ordered by precedence among look-alikes.

    The test split comes first and the train split last, because train has letters to spare. Composed letters (é)
    and compatibility forms are left out, because they are other letters with small marks.
    """
    from matplotlib.ft2font import FT2Font

    faces: dict[int, list[Face]] = {}
    for path in font_files():
        # The basic layout draws a character the same way whether or not Pillow was built with a shaping library.
        font = ImageFont.truetype(str(path), FONT_SIZE, layout_engine=ImageFont.Layout.BASIC)
        for code in FT2Font(str(path)).get_charmap():
            faces.setdefault(code, []).append(Face(path.stem, font))
    order = [(split, script) for split, scripts in SCRIPTS.items() for script in scripts]
    split_of = {script: split for split, script in order}
    rank = {script: place for place, (_, script) in enumerate(order)}
    found = [
        Character(chr(code), script_of(chr(code)), split_of[script_of(chr(code))], tuple(drawing))
        for code, drawing in faces.items()
        if len(drawing) >= FEWEST_FACES
        and any(face.is_distinct for face in drawing)
        and _is_plain_letter(chr(code))
        and script_of(chr(code)) in split_of
    ]
    return sorted(found, key=lambda character: (rank[character.script], ord(character.letter)))


def choose_characters() -> list[Character]:
    """Choose the classes of the data set: no two look alike, at most ``MOST_PER_SCRIPT`` per script; sorted by name."""
    characters = [character for character in candidates() if is_drawable(character)]
    # The first pass compares only the distinct faces; it finds most look-alikes, so the full second pass is small.
    for in_all_faces in (False, True):
        pictures = [
            canonical_pictures(character.letter, character.faces if in_all_faces else character.distinct_faces)
            for character in characters
        ]
        characters = [characters[place] for place in without_look_alikes(likeness(pictures))]
    of_script: dict[str, list[Character]] = {}
    for character in characters:
        of_script.setdefault(character.script, []).append(character)
    kept = [character for group in of_script.values() for character in group[:MOST_PER_SCRIPT]]
    return sorted(kept, key=lambda character: character.name)


def without_look_alikes(similarities: Array, limit: float = LIKENESS_LIMIT) -> list[int]:
    """From the likeness ``(n, n)``, return the indices to keep: a character like an earlier kept one is dropped."""
    kept: list[int] = []
    for place in range(len(similarities)):
        if not (similarities[place, kept] > limit).any():
            kept.append(place)
    return kept


def likeness(pictures: Iterable[Array]) -> Array:
    """Maximum correlation between any face of one character and any face of another: ``n × (faces, p) -> (n, n)``.

    The products are sums of small integers, which float32 computes exactly in any order, so that the choice of classes
    does not depend on the processor.
    """
    stacks = list(pictures)
    starts = np.cumsum([0, *(len(stack) for stack in stacks)])
    rows = np.concatenate(stacks).astype(np.float32)
    pixels = rows.shape[1]
    sums, squares = rows.sum(axis=1, dtype=np.float64), (rows**2).sum(axis=1, dtype=np.float64)
    norms = np.sqrt(pixels * squares - sums**2)
    by_face = np.empty((len(rows), len(stacks)))
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        own = slice(start, start + _ROWS_AT_ONCE)
        products = (rows[own] @ rows.T).astype(np.float64)
        correlations = (pixels * products - np.outer(sums[own], sums)) / np.outer(norms[own], norms)
        by_face[own] = np.maximum.reduceat(correlations, starts[:-1], axis=1)
    return np.maximum.reduceat(by_face, starts[:-1], axis=0)


def canonical_pictures(letter: str, faces: Sequence[Face]) -> Array:
    """Draw a letter in each face, scaled to fit, centred and blurred, in integers from 0 to 135: ``(faces, 24 · 24)``.

    Without the blur, strokes that differ by one pixel would count as different. An example is Ж and Җ, whose extra
    stroke makes the rest of the letter smaller.
    """
    sharp = np.stack([np.asarray(_centred(draw_mask(letter, face))) for face in faces]).astype(np.int64)
    padded = np.pad((sharp * _CANONICAL_LEVELS + 127) // 255, ((0, 0), (1, 1), (1, 1)))
    rows = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    blurred: Array = rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:]
    return blurred.reshape(len(sharp), -1)


def _centred(mask: Image.Image) -> Image.Image:
    # The square root reduces differences in aspect ratio, because images are stretched at random anyway.
    width, height = (round((_CANONICAL_SIDE - 2) * math.sqrt(side / max(mask.size))) for side in mask.size)
    canvas = Image.new("L", (_CANONICAL_SIDE, _CANONICAL_SIDE))
    small = mask.resize((width, height), Image.Resampling.BOX)
    canvas.paste(small, ((_CANONICAL_SIDE - width) // 2, (_CANONICAL_SIDE - height) // 2))
    return canvas


def draw_mask(letter: str, face: Face, stroke: int = 0) -> Image.Image:
    """Draw a letter at 80 pixels per em, cropped to its bounding box, its outline grown by ``stroke`` pixels."""
    left, top, right, bottom = (round(side) for side in face.font.getbbox(letter, stroke_width=stroke))
    mask = Image.new("L", (max(right - left, 1), max(bottom - top, 1)))
    ImageDraw.Draw(mask).text((-left, -top), letter, fill=255, font=face.font, stroke_width=stroke)
    box = mask.getbbox()
    return mask.crop(box) if box else mask


def is_drawable(character: Character) -> bool:
    """Whether a letter is recognisable at 32 pixels: not empty, a small mark, a mere stroke or a dash."""
    shorter, longer = sorted(draw_mask(character.letter, character.distinct_faces[0]).size)
    return longer >= _SMALLEST * FONT_SIZE and shorter >= _SLIMMEST * longer


def _is_plain_letter(letter: str) -> bool:
    is_letter = unicodedata.category(letter) in ("Lu", "Ll", "Lo") and ord(letter) <= _LAST_CODE
    return is_letter and not unicodedata.decomposition(letter)
