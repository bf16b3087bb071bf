"""``glyphs``, the embedded data set: letters of many scripts, drawn on first use with the fonts that matplotlib ships.

Each class is one letter, with 40 colour images of 32×32 pixels, and the splits have different scripts. It needs no
download and is drawn in seconds. See docs/glyphs.md.
"""

import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from deepbdc._files import temporary
from deepbdc.data.glyph_characters import Array, Character, choose_characters, font_files
from deepbdc.data.glyph_rendering import SIDE, draw_class
from deepbdc.errors import UserError

FILE_NAME = "glyphs.npz"
IMAGES_PER_CLASS = 40

# Increase this number when a change in a glyph module changes the images; cached files are then drawn again.
RECIPE = 1

# `fingerprint(make_glyphs())` and `made_with()`, recorded with the versions in constraints.txt.
FINGERPRINT = "1afee7d45ca620542607dc2c12d5dc7600e020344538b5bb1b700ec12b49ddac"
MADE_WITH = {
    "recipe": "1",
    "matplotlib": "3.11.2",
    "pillow": "12.3.0",
    "freetype": "2.14.3",
    "numpy": "2.4.6",
    "fonts": "f488aa4d6cc83c52",
}

_KEYS = ("images", "labels", "class_names", "class_split")


def make_glyphs(
    seed: int = 0, images_per_class: int = IMAGES_PER_CLASS, progress: bool = False
) -> dict[str, np.ndarray]:
    """Draw the data set.

    Args:
        seed: Seed of everything random in the images (face, position, size, colours, ...). The classes do not depend
            on it.
        images_per_class: The number of images of each class.
        progress: Show a progress bar if the error stream is a terminal.

    Returns:
        ``images`` (n, 32, 32, 3) in uint8; ``labels`` (n,), which index ``class_names``; ``class_names``, sorted; and
        ``class_split`` ("train", "val" or "test" for each class).
    """
    if images_per_class < 1:
        raise UserError(f"images_per_class must be at least 1, got {images_per_class}")
    if seed < 0:
        raise UserError(f"seed must not be negative, got {seed}")
    characters = choose_characters()
    images = np.empty((len(characters), images_per_class, SIDE, SIDE, 3), dtype=np.uint8)
    for place, character in enumerate(_watched(characters, progress)):
        # Each letter has its own generator, so that its images do not depend on the other classes.
        generator = np.random.default_rng([seed, ord(character.letter)])
        images[place] = draw_class(character, images_per_class, generator)
    return {
        "images": images.reshape(-1, SIDE, SIDE, 3),
        "labels": np.repeat(np.arange(len(characters), dtype=np.int64), images_per_class),
        "class_names": np.array([character.name for character in characters]),
        "class_split": np.array([character.split for character in characters]),
    }


def glyphs_file(root: Path) -> Path:
    """Return the cached data set in the folder ``root``; draw it if it is missing, damaged or of an older recipe.

    The ``.npz`` file holds the arrays of `make_glyphs`, their ``fingerprint``, and ``made_with``, the versions of the
    libraries as JSON. It is written atomically.
    """
    path = Path(root) / FILE_NAME
    if path.exists():
        problem = _problem_with(path)
        if problem is None:
            return path
        warnings.warn(f"{path} {problem}: it is drawn again, which takes some seconds.", stacklevel=2)
    arrays = make_glyphs(progress=True)
    found = fingerprint(arrays)
    warn_if_different(found)
    with temporary(path) as part, part.open("wb") as file:
        about = {"fingerprint": np.array(found), "made_with": np.array(json.dumps(made_with()))}
        np.savez(file, allow_pickle=False, **arrays, **about)
    return path


def fingerprint(arrays: Mapping[str, Array]) -> str:
    """Hash the four arrays of the data set; return 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for key in _KEYS:
        array = np.ascontiguousarray(arrays[key])
        digest.update(f"{key} {array.dtype.str} {array.shape} ".encode())
        digest.update(array.data if array.dtype.kind != "U" else array.tobytes())
    return digest.hexdigest()


def made_with() -> dict[str, str]:
    """Return everything that the images depend on: recipe number, library versions, and a hash of the font files."""
    import matplotlib
    import PIL
    from PIL import features

    fonts = hashlib.sha256()
    for path in font_files():
        fonts.update(path.name.encode() + path.read_bytes())
    return {
        "recipe": str(RECIPE),
        "matplotlib": matplotlib.__version__,
        "pillow": PIL.__version__,
        "freetype": str(features.version("freetype2")),
        "numpy": np.__version__,
        "fonts": fonts.hexdigest()[:16],
    }


def warn_if_different(found: str) -> None:
    """Warn if newly drawn images differ from the recorded ones, because results are then not quite comparable."""
    if found == FINGERPRINT:
        return
    now = made_with()
    changed = [f"{name} {now[name]} instead of {before}" for name, before in MADE_WITH.items() if now[name] != before]
    reason = ", ".join(changed) or "the versions are the same; perhaps the processor or the build of Pillow differs"
    warnings.warn(
        f"the images of 'glyphs' drawn here differ from the recorded ones (fingerprint {found[:12]} instead of "
        f"{FINGERPRINT[:12]}): {reason}. They are just as usable, but accuracies are comparable only between equal "
        "fingerprints. To get the recorded images, install the versions in constraints.txt.",
        stacklevel=3,
    )


def contact_sheet(arrays: Mapping[str, Array], path: Path, columns: int = 16) -> Path:
    """Save an overview image with one row per class: 8 classes of train, 4 of val, 6 of test."""
    rows = [
        label for split, count in (("train", 8), ("val", 4), ("test", 6)) for label in _spread(arrays, split, count)
    ]
    text_width, step = 290, SIDE + 2
    sheet = Image.new("RGB", (text_width + columns * step, len(rows) * step), "white")
    draw = ImageDraw.Draw(sheet)
    for row, label in enumerate(rows):
        draw.text((4, row * step + 10), str(arrays["class_split"][label]), fill="black")
        draw.text((40, row * step + 10), str(arrays["class_names"][label]), fill="black")
        for column, place in enumerate(np.flatnonzero(arrays["labels"] == label)[:columns]):
            sheet.paste(Image.fromarray(arrays["images"][place]), (text_width + column * step, row * step + 1))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path, optimize=True)
    return path


def _spread(arrays: Mapping[str, Array], split: str, count: int) -> list[int]:
    """Return at most ``count`` labels of a split, evenly spaced."""
    labels = np.flatnonzero(arrays["class_split"] == split)
    return [int(labels[place * len(labels) // count]) for place in range(min(count, len(labels)))]


def _watched(characters: list[Character], progress: bool) -> Iterable[Character]:
    """Iterate over the characters, with a progress bar on the error stream if it is a terminal and one is wanted."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(
        characters, "drawing glyphs", console=console, transient=True, disable=not (progress and console.is_terminal)
    )


def _problem_with(path: Path) -> str | None:
    """Return what is wrong with a cached file, or None. Its content must match the fingerprint stored in it."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in _KEYS}
            recorded, recipe = str(stored["fingerprint"]), json.loads(str(stored["made_with"]))["recipe"]
    except Exception as error:  # a damaged file can raise nearly any error
        return f"is damaged ({type(error).__name__})"
    if fingerprint(arrays) != recorded:
        return "is damaged (its checksum is wrong)"
    return None if recipe == str(RECIPE) else f"was made by an older recipe ({recipe}, now {RECIPE})"
