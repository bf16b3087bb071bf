"""Finding a person's pictures, and moving them into folders without losing one; each sorting can be undone."""

from deepbdc.sorting.arrivals import Arrivals
from deepbdc.sorting.finding import Found, find_pictures, is_inside, is_picture, not_there
from deepbdc.sorting.moving import Sorter, copy, move
from deepbdc.sorting.names import folder_names, numbered, safe_folder_name
from deepbdc.sorting.undoing import Undone, find_log, undo

__all__ = [
    "Arrivals",
    "Found",
    "Sorter",
    "Undone",
    "copy",
    "find_log",
    "find_pictures",
    "folder_names",
    "is_inside",
    "is_picture",
    "move",
    "not_there",
    "numbered",
    "safe_folder_name",
    "undo",
]
