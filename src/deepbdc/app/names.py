"""Cleans the names that people give to classes, and those of their files."""

import unicodedata
from collections.abc import Sequence

from deepbdc.estimator import NONE_OF_THESE

_LONGEST_TITLE = 100
_LONGEST_FOLDER = 300


def tidy_name(name: str, most: int) -> str:
    """The name on one line, without control characters, cut to ``most`` characters."""
    seen = "".join(
        character if unicodedata.category(character)[0] != "C" else " "
        for character in unicodedata.normalize("NFC", name)
    )
    return " ".join(seen.split())[:most].strip()


def distinct_names(names: Sequence[str], most: int) -> dict[str, str]:
    """A tidied name for each given name. All are distinct even without regard to case."""
    found: dict[str, str] = {}
    for name in dict.fromkeys(names):
        taken = {other.casefold() for other in [*found.values(), NONE_OF_THESE]}
        short = tidy_name(name, most - len(" (999)")) or "class"
        whole = tidy_name(name, most) or "class"
        candidates = (whole, *(f"{short} ({number})" for number in range(2, 1000)))
        found[name] = next(candidate for candidate in candidates if candidate.casefold() not in taken)
    return found


def title_of(name: str, folder: str = "") -> str:
    """The name of a picture: the last part of its path, cleaned for display, after the folder that it was chosen from.

    >>> title_of("C:\\\\photos\\\\wren.jpg"), title_of("wren.jpg", "birds/../small")
    ('wren.jpg', 'birds/small/wren.jpg')
    """
    title = tidy_name(_parts(name)[-1] if _parts(name) else "", _LONGEST_TITLE) or "picture"
    place = "/".join(filter(None, (tidy_name(part, _LONGEST_TITLE) for part in _parts(folder))))
    return f"{place}/{title}" if place and len(place) <= _LONGEST_FOLDER else title


def _parts(path: str) -> list[str]:
    return [part for part in path.replace("\\", "/").split("/") if part.strip(" .")]
