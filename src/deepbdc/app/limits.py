"""How much a visitor of the web page may ask for, and how a request that goes further is answered."""

from dataclasses import dataclass

from deepbdc.errors import UserError

MEGABYTE = 2**20


@dataclass(frozen=True)
class Limits:
    """What the web page accepts. All pictures are kept in memory, so every number here bounds it."""

    pictures: int = 200
    """Of one visitor."""
    classes: int = 50
    """Of one visitor."""
    name_length: int = 60
    """Characters of the name of a class."""
    file_bytes: int = 10 * MEGABYTE
    """Of one picture."""
    pixels: int = 50_000_000
    """Of one picture after decoding."""
    classifier_bytes: int = 64 * MEGABYTE
    """Of a saved classifier that is loaded back."""
    message_bytes: int = 64 * 1024
    """Of any other request."""
    visitors: int = 100
    """Beyond, those are forgotten who were away longest."""
    fitted: int = 20
    """Of the visitors, so many keep what was learnt; others learn it again when they come back, in a moment."""
    idle_seconds: float = 6 * 3600
    """After which a visitor is forgotten."""


class Refused(UserError):
    """A request that is not carried out; the message says in words why, and ``status`` is that of HTTP."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status
