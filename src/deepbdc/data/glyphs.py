"""``glyphs``, the embedded data set: letters of many scripts, drawn on first use with the fonts that matplotlib ships.

A class is a letter, the splits have different scripts, and there are 40 pictures of 32×32 in colour of each class. It
needs no download, and takes seconds to make. See docs/glyphs.md.
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

# A change of this module, or of the two beside it, that changes the pictures gets a new number: caches are made anew.
RECIPE = 1

# What `make_glyphs()` gave with the versions of constraints.txt: `fingerprint(make_glyphs())` and `made_with()`.
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
        seed: Of faces, places, sizes, colours and all else that varies. The classes do not depend on it.
        images_per_class: How many pictures of each class.
        progress: Show a progress bar, if a person is watching.

    Returns:
        ``images`` (n, 32, 32, 3) in uint8, ``labels`` (n,) that index ``class_names``, which is sorted, and
        ``class_split`` ("train", "val" or "test" per class).
    """
    if images_per_class < 1:
        raise UserError(f"images_per_class must be at least 1, got {images_per_class}")
    if seed < 0:
        raise UserError(f"seed must not be negative, got {seed}")
    characters = choose_characters()
    images = np.empty((len(characters), images_per_class, SIDE, SIDE, 3), dtype=np.uint8)
    for place, character in enumerate(_watched(characters, progress)):
        # A generator for each letter: its pictures stay the same when other letters come or go.
        generator = np.random.default_rng([seed, ord(character.letter)])
        images[place] = draw_class(character, images_per_class, generator)
    return {
        "images": images.reshape(-1, SIDE, SIDE, 3),
        "labels": np.repeat(np.arange(len(characters), dtype=np.int64), images_per_class),
        "class_names": np.array([character.name for character in characters]),
        "class_split": np.array([character.split for character in characters]),
    }


def glyphs_file(root: Path) -> Path:
    """The file of the data set under the folder ``root``, made if it is missing, damaged or of an older recipe.

    It is an ``.npz`` of the arrays of `make_glyphs`, of their ``fingerprint``, and ``made_with``, the versions that
    made it as JSON. Never half a file is found there: it gets its name when it is complete.
    """
    path = Path(root) / FILE_NAME
    if path.exists():
        problem = _problem_with(path)
        if problem is None:
            return path
        warnings.warn(f"{path} {problem}: it is made anew, which takes some seconds.", stacklevel=2)
    arrays = make_glyphs(progress=True)
    found = fingerprint(arrays)
    warn_if_different(found)
    with temporary(path) as part, part.open("wb") as file:
        about = {"fingerprint": np.array(found), "made_with": np.array(json.dumps(made_with()))}
        np.savez(file, allow_pickle=False, **arrays, **about)
    return path


def fingerprint(arrays: Mapping[str, Array]) -> str:
    """A hash of the four arrays of the data set, as 64 hexadecimal digits: equal if and only if all of them are."""
    digest = hashlib.sha256()
    for key in _KEYS:
        array = np.ascontiguousarray(arrays[key])
        digest.update(f"{key} {array.dtype.str} {array.shape} ".encode())
        digest.update(array.data if array.dtype.kind != "U" else array.tobytes())
    return digest.hexdigest()


def made_with() -> dict[str, str]:
    """What the pictures depend on: the recipe, the versions of the libraries, and a hash of the font files."""
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
    """Warn when freshly made data are not those of the recorded versions: results are then not quite comparable."""
    if found == FINGERPRINT:
        return
    now = made_with()
    changed = [f"{name} {now[name]} instead of {before}" for name, before in MADE_WITH.items() if now[name] != before]
    reason = ", ".join(changed) if changed else "the same versions, so perhaps another processor or build of Pillow"
    warnings.warn(
        f"the pictures of 'glyphs' made here differ from the recorded ones (fingerprint {found[:12]} instead of "
        f"{FINGERPRINT[:12]}): {reason}. They are as good, but accuracies on them are only comparable with others of "
        "the same fingerprint. For the recorded ones install the versions in constraints.txt.",
        stacklevel=3,
    )


def contact_sheet(arrays: Mapping[str, Array], path: Path, columns: int = 16) -> Path:
    """Save a picture of some classes, a row each with the name in front: 8 of train, 4 of val, 6 of test."""
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
    """At most ``count`` labels of a split, evenly spaced."""
    labels = np.flatnonzero(arrays["class_split"] == split)
    return [int(labels[place * len(labels) // count]) for place in range(min(count, len(labels)))]


def _watched(characters: list[Character], progress: bool) -> Iterable[Character]:
    """The characters, with a progress bar on the error stream if it is a terminal and a bar is wanted."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(
        characters, "drawing glyphs", console=console, transient=True, disable=not (progress and console.is_terminal)
    )


def _problem_with(path: Path) -> str | None:
    """What is wrong with a cached file, or None: its content must have the fingerprint that stands in it."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in _KEYS}
            recorded, recipe = str(stored["fingerprint"]), json.loads(str(stored["made_with"]))["recipe"]
    except Exception as error:  # noise in a file can raise nearly anything, and always means the same
        return f"is damaged ({type(error).__name__})"
    if fingerprint(arrays) != recorded:
        return "is damaged (its checksum is wrong)"
    return None if recipe == str(RECIPE) else f"was made by an older recipe ({recipe}, now {RECIPE})"
