"""What all requests to the page share: the visitors, their work on disk, and a few threads for slow work."""

import asyncio
import io
import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from deepbdc.app import uploads
from deepbdc.app.example import draw_example
from deepbdc.app.learning import LabelledImages
from deepbdc.app.limits import AppLimits
from deepbdc.app.pictures import NewPicture
from deepbdc.app.storage import Storage
from deepbdc.app.visitor import Visitor
from deepbdc.app.visitors import Visitors
from deepbdc.estimator import EmbeddedImage, FewShotClassifier
from deepbdc.web.protection import Door
from deepbdc.web.refusals import Refused

T = TypeVar("T")
Example = tuple[Sequence[tuple[NewPicture, str]], Sequence[NewPicture]]
"""Pictures with the names of their classes, and pictures to classify."""


class Service:
    """The visitors, their work on disk, and a few threads for slow work.

    Args:
        template: A classifier with the settings for all visitors.
        limits: What the server accepts.
        door: Who may use the server.
        examples: The examples that every visitor starts with.
        storage: Where the work of visitors is kept; None keeps it in memory only.
    """

    def __init__(
        self,
        template: FewShotClassifier,
        limits: AppLimits,
        door: Door,
        examples: LabelledImages = (),
        storage: Storage | None = None,
    ) -> None:
        self.template = template
        self.network = uploads.Network.of(template)
        self.limits = limits
        self.door = door
        self.storage = storage
        self.number = secrets.token_hex(8)  # tells the page that the server was restarted
        self.exporting = Lock()
        self._examples = examples
        self._example: Example | None = None
        self._example_lock = Lock()
        self.visitors = Visitors(self._create, limits, restore=self._restore, release=self._release)
        # One thread per core: more would only keep more decoded pictures in memory at once.
        self.threads = ThreadPoolExecutor(max(2, os.cpu_count() or 2), thread_name_prefix="embed")

    async def work(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a slow function in a thread. Functions start in the order of the requests."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, partial(function, *arguments))

    def check_storage(self) -> None:
        """Refuse a picture if the files of all visitors are as large as they may be."""
        if self.storage is not None and not self.storage.has_room():
            raise Refused("The server has no room for more pictures. Delete some work first.", status=507)

    def _create(self, visitor_id: str) -> Visitor:
        shelf = None if self.storage is None else self.storage.shelf(visitor_id)
        return Visitor(self.template, self.limits, self._examples, shelf)

    def _restore(self, visitor_id: str) -> Visitor | None:
        visitor = self._create(visitor_id)
        return visitor if visitor.restore(self._embed_again) else None

    def _release(self, visitor: Visitor) -> None:
        if visitor.shelf is not None and self.storage is not None and not self.storage.lasting:
            visitor.shelf.clear()

    def _embed_again(self, image: EmbeddedImage, original: Callable[[], bytes]) -> EmbeddedImage | None:
        """The picture with features of this server's network. Another version, or other settings, had another one."""
        if image.network == self.network.fingerprint:
            return image
        try:
            return uploads.embed(self.template, original() or image.thumbnail, image.name, self.limits)
        except Refused:
            return None

    def example(self) -> Example:
        """The bundled example: labelled pictures, and pictures to classify. It is made once for all visitors."""
        with self._example_lock:
            if self._example is None:
                drawn = draw_example()
                embedded = self.template.embed([picture.image for picture in drawn])
                pairs = [
                    (NewPicture(replace(image, name=picture.name), _as_png(picture.image)), picture.label)
                    for image, picture in zip(embedded, drawn, strict=True)
                ]
                examples = [(new, label) for new, label in pairs if label is not None]
                self._example = examples, [new for new, label in pairs if label is None]
            return self._example


def _as_png(picture: Any) -> bytes:
    content = io.BytesIO()
    picture.save(content, "PNG")
    return content.getvalue()
