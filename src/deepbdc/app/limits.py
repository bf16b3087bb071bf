"""The limits of the web page, and the error for requests that exceed them."""

from dataclasses import dataclass

from deepbdc.errors import UserError

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
    file_bytes: int = 10 * MEGABYTE
    """Size of one uploaded picture file."""
    pixels: int = 50_000_000
    """Pixels of one picture after decoding."""
    classifier_bytes: int = 64 * MEGABYTE
    """Size of an uploaded classifier."""
    message_bytes: int = 64 * 1024
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


class Refused(UserError):
    """The server refuses a request. The message tells the visitor why; ``status`` is the HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status
