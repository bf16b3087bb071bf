"""The limits of the web page."""

from dataclasses import dataclass

from deepbdc.web.pictures import FILE_BYTES, MESSAGE_BYTES, PIXELS

MEGABYTE = 2**20


@dataclass(frozen=True)
class AppLimits:
    """What the web page accepts. It keeps a small copy of every picture in memory, so
    these numbers bound the memory that it needs."""

    pictures: int = 200
    """Pictures per visitor."""
    classes: int = 50
    """Classes per visitor."""
    name_length: int = 60
    """Characters in the name of a class."""
    file_bytes: int = FILE_BYTES
    """Size of one uploaded picture file."""
    pixels: int = PIXELS
    """Pixels of one picture after decoding."""
    classifier_bytes: int = 64 * MEGABYTE
    """Size of an uploaded classifier."""
    message_bytes: int = MESSAGE_BYTES
    """Size of the body of any other request."""
    visitors: int = 100
    """Visitors that the server remembers. Further ones replace those who have been away longest."""
    fitted: int = 20
    """Visitors whose fitted classifier stays in memory. For others it is fitted again when they return."""
    idle_seconds: float = 6 * 3600
    """The server forgets a visitor who sends no request for this long, unless their work is kept on disk."""
    undo_steps: int = 30
    """Actions that a visitor can undo."""
    stored_bytes: int = 4 * 1024 * MEGABYTE
    """Size of all files of all visitors on disk."""
    keep_days: float = 365
    """Work on disk is deleted after so many days without a visit."""


AT_HOME = AppLimits(pictures=500, stored_bytes=20 * 1024 * MEGABYTE)
"""For a page that only this computer can open: the visitors are the person who owns it."""
