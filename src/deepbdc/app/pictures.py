"""A picture of a visitor, and what the page knows about it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from deepbdc.estimator import EmbeddedImage

NONE = "none"
"""The verdict that a picture shows none of the classes."""


@dataclass(frozen=True)
class Picture:
    """A picture of a visitor."""

    image: EmbeddedImage
    class_id: str | None
    """The class that the picture is an example of; None for a picture to classify."""
    asked: bool
    """Whether it was once a picture to classify. This stays true when the visitor moves it into a class."""
    verdict: str | None = None
    """What the visitor says that a picture to classify shows: the id of a class, or `NONE`. Nothing is learnt of it."""
    kept: tuple[str, ...] = ()
    """The findings of a check of the examples that the visitor has seen, and keeps the example nevertheless."""

    def facts(self) -> dict[str, Any]:
        """Everything but the image, as JSON values."""
        return {"class_id": self.class_id, "asked": self.asked, "verdict": self.verdict, "kept": list(self.kept)}

    @classmethod
    def from_facts(cls, image: EmbeddedImage, facts: Mapping[str, Any]) -> Self:
        """The picture with these facts. Work of an earlier version has fewer of them."""
        return cls(image, facts["class_id"], facts["asked"], facts.get("verdict"), tuple(facts.get("kept", ())))


@dataclass(frozen=True)
class NewPicture:
    """A picture that is not on the page yet, and the file that it came from (empty if there is none)."""

    image: EmbeddedImage
    original: bytes = b""


EmbedAgain = Callable[[EmbeddedImage, Callable[[], bytes]], EmbeddedImage | None]
"""Is given a picture, and a function that reads the file that it came from. None if the file is of no use."""
