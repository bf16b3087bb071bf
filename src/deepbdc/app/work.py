"""The work of one visitor: classes with their example pictures, and pictures to classify."""

import hashlib
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from threading import RLock

from deepbdc.app.history import History, Step
from deepbdc.app.learning import LabelledImages
from deepbdc.app.limits import AppLimits
from deepbdc.app.names import distinct_names, tidy_name
from deepbdc.app.pictures import NONE, EmbedAgain, NewPicture, Picture
from deepbdc.app.storage import Shelf
from deepbdc.estimator import NONE_OF_THESE, EmbeddedImage
from deepbdc.web.refusals import Refused


class Work:
    """The classes and pictures of one visitor. Every method may be called from any thread.

    ``lesson`` counts the changes of the examples: two states with the same number have the same answers. ``touched``
    says whether the visitor has changed anything. Every change is kept on disk before its method returns.

    Args:
        limits: What the server accepts.
        examples: The examples that the visitor starts with.
        shelf: Where to keep the work; None keeps it in memory only.
    """

    def __init__(self, limits: AppLimits, examples: LabelledImages = (), shelf: Shelf | None = None) -> None:
        self.lock = RLock()
        self.touched = False
        self.lesson = 0
        self.classes: dict[str, str] = {}
        self.pictures: dict[str, Picture] = {}
        self.shelf = shelf
        self._limits = limits
        self._history: History[Picture] = History(limits.undo_steps, limits.pictures)
        self._start = _with_ids(examples)
        self._add_start(self._start)

    # Classes

    def add_class(self, name: str, batch: str | None = None) -> str:
        """Add an empty class and return its id."""
        with self.lock:
            name = self._free_name(name)
            if len(self.classes) >= self._limits.classes:
                most = self._limits.classes
                raise Refused(f"There are {most} classes already, the most that are possible. Remove one.", status=409)
            class_id = secrets.token_hex(8)
            with self._action(f"adding {name}", batch=batch):
                self.classes[class_id] = name
            return class_id

    def rename_class(self, class_id: str, name: str) -> None:
        """Give a class another name."""
        with self.lock:
            old, new = self._known_class(class_id), self._free_name(name, besides=class_id)
            with self._action(f"renaming {old}", examples=True):
                self.classes[class_id] = new

    def remove_class(self, class_id: str) -> None:
        """Remove a class and its pictures. Pictures that were once to be classified become so again."""
        with self.lock, self._action(f"removing {self._known_class(class_id)}", examples=True):
            for picture_id, picture in list(self.pictures.items()):
                if picture.class_id == class_id and not picture.asked:
                    del self.pictures[picture_id]
                elif class_id in (picture.class_id, picture.verdict):
                    self.pictures[picture_id] = replace(picture, class_id=None, verdict=None)
            del self.classes[class_id]

    def _free_name(self, name: str, besides: str | None = None) -> str:
        """Tidy the name of a class. Refuse it if it is empty, too long or taken by a class other than ``besides``."""
        if len(name) > self._limits.name_length:
            raise Refused(f"The name has {len(name)} characters. Use at most {self._limits.name_length}.")
        tidied = tidy_name(name, self._limits.name_length)
        if not tidied:
            raise Refused("A class needs a name.")
        if tidied.casefold() == NONE_OF_THESE:
            raise Refused(f"“{tidied}” is the answer for pictures of no class. Choose another name.")
        taken = {other.casefold() for class_id, other in self.classes.items() if class_id != besides}
        if tidied.casefold() in taken:
            raise Refused(f"There is already a class “{tidied}”. Choose another name.", status=409)
        return tidied

    def _known_class(self, class_id: str) -> str:
        if class_id not in self.classes:
            raise Refused("This class no longer exists. Reload the page.", status=404)
        return self.classes[class_id]

    # Pictures

    def check_room(self, class_id: str | None) -> None:
        """Refuse a picture before it is decoded, if there is no room for it or no such class."""
        with self.lock:
            if class_id is not None:
                self._known_class(class_id)
            if len(self.pictures) >= self._limits.pictures:
                most = self._limits.pictures
                raise Refused(
                    f"There are {most} pictures already, the most that are possible. Remove some.", status=409
                )

    def add_picture(
        self, new: NewPicture, class_id: str | None, picture_id: str | None = None, batch: str | None = None
    ) -> str:
        """Add an example of a class, or a picture to classify if ``class_id`` is None. Return its id.

        Args:
            new: The picture.
            class_id: Its class.
            picture_id: The id that it shall have. If there is such a picture already, nothing happens: the page sends a
                picture again if it did not hear that it had arrived.
            batch: Pictures with the same batch are undone together.
        """
        with self.lock:
            picture_id = picture_id or secrets.token_hex(8)
            if picture_id in self.pictures:
                return picture_id
            self.check_room(class_id)
            target = "" if class_id is None else f" to {self.classes[class_id]}"
            with self._action(f"adding pictures{target}", examples=class_id is not None, batch=batch):
                self._put(picture_id, new, Picture(new.image, class_id, asked=class_id is None))
            return picture_id

    def move_picture(self, picture_id: str, class_id: str | None) -> None:
        """Make a picture an example of a class, or a picture to classify if ``class_id`` is None."""
        with self.lock:
            picture = self.picture(picture_id)
            target = "the pictures to classify" if class_id is None else self._known_class(class_id)
            if picture.class_id == class_id and picture.verdict is None:
                return
            with self._action(f"moving {picture.image.name} to {target}", examples=picture.class_id != class_id):
                del self.pictures[picture_id]  # so that it is the last one in its new class
                asked = picture.asked or class_id is None
                self.pictures[picture_id] = Picture(picture.image, class_id, asked)

    def judge(self, verdicts: Mapping[str, str | None]) -> None:
        """Say what pictures show, without making them examples.

        Args:
            verdicts: For each picture the id of a class, or `NONE`, or None to take its verdict back. An example
                becomes a picture to classify again.
        """
        with self.lock:
            judged = {picture_id: self.picture(picture_id) for picture_id in verdicts}
            for verdict in {*verdicts.values()} - {NONE, None}:
                self._known_class(str(verdict))
            if not judged:
                return
            examples = any(picture.class_id is not None for picture in judged.values())
            with self._action(f"checking {_named(judged.values())}", examples=examples):
                for picture_id, picture in judged.items():
                    self.pictures[picture_id] = Picture(picture.image, None, True, verdicts[picture_id])

    def keep_as_they_are(self, picture_ids: Sequence[str], finding: str) -> None:
        """Say that examples are right although a check found something, so that it does not name them again."""
        with self.lock:
            kept = {picture_id: self.picture(picture_id) for picture_id in picture_ids}
            if not kept:
                return
            with self._action(f"keeping {_named(kept.values())}"):
                for picture_id, picture in kept.items():
                    self.pictures[picture_id] = replace(picture, kept=(*picture.kept, finding))

    def remove_picture(self, picture_id: str, batch: str | None = None) -> None:
        """Remove a picture. Removals with the same batch are undone together."""
        with self.lock:
            removed = self.picture(picture_id)
            with self._action(f"removing {removed.image.name}", examples=removed.class_id is not None, batch=batch):
                del self.pictures[picture_id]

    def picture(self, picture_id: str) -> Picture:
        """The picture with this id."""
        with self.lock:
            if picture_id not in self.pictures:
                raise Refused("This picture no longer exists. Reload the page.", status=404)
            return self.pictures[picture_id]

    def original(self, picture_id: str) -> bytes:
        """The file that a picture came from, or its thumbnail if there is none."""
        kept = b"" if self.shelf is None else self.shelf.original(picture_id)
        return kept or self.picture(picture_id).image.thumbnail

    def _put(self, picture_id: str, new: NewPicture, picture: Picture) -> None:
        if self.shelf is not None:
            self.shelf.keep_picture(picture_id, new.image, new.original)
        self.pictures[picture_id] = picture

    # Everything

    def start_over(self) -> None:
        """Go back to the examples that the visitor started with."""
        with self.lock, self._action("starting over", examples=True):
            self.classes, self.pictures = {}, {}
            self._add_start(self._start)

    def replace(self, examples: Sequence[tuple[NewPicture, str]], to_classify: Sequence[NewPicture] = ()) -> None:
        """Replace all classes and pictures by these."""
        with self.lock:
            most, given = self._limits.pictures, len(examples) + len(to_classify)
            if given > most:
                raise Refused(f"These are {given} pictures. At most {most} are possible.", status=413)
            if len({name for _, name in examples}) > self._limits.classes:
                raise Refused(f"These are too many classes. At most {self._limits.classes} are possible.", status=413)
            names = distinct_names([name for _, name in examples], self._limits.name_length)
            with self._action("replacing everything", examples=True):
                ids = {name: secrets.token_hex(8) for name in names}
                self.classes = {ids[name]: tidied for name, tidied in names.items()}
                self.pictures = {}
                for new, name in examples:
                    self._put(secrets.token_hex(8), new, Picture(new.image, ids[name], asked=False))
                for new in to_classify:
                    self._put(secrets.token_hex(8), new, Picture(new.image, None, asked=True))

    def undo(self) -> None:
        """Take back the last action."""
        with self.lock:
            if self._history.last is None:
                raise Refused("There is nothing to undo.", status=409)
            step = self._history.pop()
            self.classes, self.pictures = dict(step.classes), dict(step.pictures)
            self.lesson += 1
            self._keep()
            self._tidy()

    def forget(self) -> None:
        """Delete everything from memory and from the disk, for good."""
        with self.lock:
            self._history.clear()
            self.classes, self.pictures = {}, {}
            self._add_start(self._start)
            self.lesson += 1
            self.touched = False
            if self.shelf is not None:
                self.shelf.clear()

    def _add_start(self, start: Mapping[str, tuple[EmbeddedImage, str]]) -> None:
        """Add examples of the server itself. They are not kept on disk, because the server has them."""
        names = distinct_names([name for _, name in start.values()], self._limits.name_length)
        ids = {name: class_id for class_id, name in self.classes.items()}
        for picture_id, (image, name) in start.items():
            if names[name] not in ids:
                ids[names[name]] = secrets.token_hex(8)
                self.classes[ids[names[name]]] = names[name]
            self.pictures[picture_id] = Picture(image, ids[names[name]], asked=False)

    # Keeping

    @contextmanager
    def _action(self, text: str, examples: bool = False, batch: str | None = None) -> Iterator[None]:
        """Something that the visitor does and can undo. If it cannot be kept on disk, nothing has happened."""
        before = Step(text, dict(self.classes), dict(self.pictures), batch)
        try:
            yield
            self._keep()
        except OSError as error:
            self.classes, self.pictures = dict(before.classes), dict(before.pictures)
            reason = error.strerror or type(error).__name__
            raise Refused(f"This could not be saved on the computer of the server: {reason}.", status=507) from error
        self.lesson += examples
        self._history.add(before, self.pictures)
        self._tidy()

    def _keep(self) -> None:
        self.touched = True
        if self.shelf is not None:
            pictures = [[picture_id, picture.facts()] for picture_id, picture in self.pictures.items()]
            self.shelf.write({"classes": self.classes, "pictures": pictures, "start": list(self._start)})

    def _tidy(self) -> None:
        """Delete the files of pictures that are gone for good."""
        if self.shelf is not None:
            self.shelf.forget_others({*self.pictures, *self._history.pictures()})

    def restore(self, embed_again: EmbedAgain) -> bool:
        """Take up the work that was kept on disk. Return False if there is none.

        Examples that the server has got since are added; those that it no longer has are left out.

        Args:
            embed_again: Makes the features of a picture anew if another network made them.
        """
        kept = None if self.shelf is None else self.shelf.read()
        if self.shelf is None or kept is None:
            return False
        with self.lock:
            self.classes, self.pictures = dict(kept["classes"]), {}
            for picture_id, facts in kept["pictures"]:
                if picture_id in self._start:
                    image: EmbeddedImage | None = self._start[picture_id][0]
                else:
                    image = self.shelf.image(picture_id)
                    image = image and embed_again(image, partial(self.shelf.original, picture_id))
                if image is not None:
                    self.pictures[picture_id] = Picture.from_facts(image, facts)
            self._add_start({key: pair for key, pair in self._start.items() if key not in kept["start"]})
            self.touched = True
            self.shelf.touch()
            self._tidy()
        return True


def _named(pictures: Collection[Picture]) -> str:
    return f"{len(pictures)} pictures" if len(pictures) != 1 else next(iter(pictures)).image.name


def _with_ids(examples: LabelledImages) -> dict[str, tuple[EmbeddedImage, str]]:
    """The examples of the server by ids that are the same after a restart."""
    found: dict[str, tuple[EmbeddedImage, str]] = {}
    for image, label in examples:
        digest = hashlib.sha256(f"{label}\n{image.name}\n".encode() + image.thumbnail).hexdigest()[:14]
        number = next(number for number in count() if f"{digest}{number:02x}" not in found)
        found[f"{digest}{number:02x}"] = image, label
    return found
