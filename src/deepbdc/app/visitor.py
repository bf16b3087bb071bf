"""The state of one visitor: classes with their example pictures, and pictures to classify."""

import secrets
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any

from deepbdc.app.limits import AppLimits, Refused
from deepbdc.estimator import NONE_OF_THESE, EmbeddedImage, Explanation, FewShotClassifier, Prediction


@dataclass
class Picture:
    """A picture of a visitor."""

    image: EmbeddedImage
    class_id: str | None
    """The class that the picture is an example of; None for a picture to classify."""
    asked: bool
    """Whether it was once a picture to classify. This stays true when the visitor moves it into a class."""


@dataclass(frozen=True)
class Result:
    """The answer for one picture."""

    name: str
    answer: str
    probabilities: dict[str, float] | None
    """The probability of every class; None if the visitor gave the answer by moving the picture into a class."""


LabelledImages = Sequence[tuple[EmbeddedImage, str]]
"""Pictures, each with the name of its class."""


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


def like(template: FewShotClassifier) -> FewShotClassifier:
    """A new classifier with the same settings. It shares the network, which scikit-learn's ``clone`` would copy."""
    return FewShotClassifier(**template.get_params(deep=False))


class Visitor:
    """The classes and pictures of one visitor. Every method may be called from any thread.

    ``lesson`` counts the changes of the examples: two states with the same number have the same answers. ``touched``
    says whether the visitor has changed anything.

    Args:
        template: A classifier with the settings to use. It need not be fitted.
        limits: What the server accepts.
        examples: The examples that the visitor starts with.
    """

    def __init__(self, template: FewShotClassifier, limits: AppLimits, examples: LabelledImages = ()) -> None:
        self.lock = RLock()
        self.touched = False
        self.lesson = 0
        self.classes: dict[str, str] = {}
        self.pictures: dict[str, Picture] = {}
        self._template = template
        self._limits = limits
        self._start = examples
        self._fitted: tuple[FewShotClassifier, list[str]] | None = None  # with the ids of its examples
        self._predictions: dict[str, Prediction] = {}
        self._add_examples(examples)

    # Classes

    def add_class(self, name: str) -> str:
        """Add an empty class and return its id."""
        with self.lock:
            name = self._free_name(name)
            self._check_room_for_class()
            class_id = secrets.token_hex(8)
            self.classes[class_id] = name
            self._changed()
            return class_id

    def rename_class(self, class_id: str, name: str) -> None:
        """Give a class another name."""
        with self.lock:
            self._known_class(class_id)
            self.classes[class_id] = self._free_name(name, besides=class_id)
            self._changed(examples=True)

    def remove_class(self, class_id: str) -> None:
        """Remove a class and its pictures. Pictures that were once to be classified become so again."""
        with self.lock:
            self._known_class(class_id)
            for picture_id, picture in list(self.pictures.items()):
                if picture.class_id == class_id and picture.asked:
                    picture.class_id = None
                elif picture.class_id == class_id:
                    del self.pictures[picture_id]
            del self.classes[class_id]
            self._changed(examples=True)

    def _check_room_for_class(self) -> None:
        if len(self.classes) >= self._limits.classes:
            raise Refused(f"There are {self._limits.classes} classes already, the most that are possible. Remove one.")

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

    def add_picture(self, image: EmbeddedImage, class_id: str | None) -> str:
        """Add an example of a class, or a picture to classify if ``class_id`` is None. Return its id."""
        with self.lock:
            self.check_room(class_id)
            picture_id = secrets.token_hex(8)
            self.pictures[picture_id] = Picture(image, class_id, asked=class_id is None)
            self._changed(examples=class_id is not None)
            return picture_id

    def move_picture(self, picture_id: str, class_id: str | None) -> None:
        """Make a picture an example of a class, or a picture to classify if ``class_id`` is None."""
        with self.lock:
            picture = self.picture(picture_id)
            if class_id is not None:
                self._known_class(class_id)
            if picture.class_id != class_id:
                picture.class_id = class_id
                picture.asked = picture.asked or class_id is None
                self.pictures[picture_id] = self.pictures.pop(picture_id)  # so that it is the last one in its new class
                self._changed(examples=True)

    def remove_picture(self, picture_id: str) -> None:
        """Remove a picture."""
        with self.lock:
            removed = self.picture(picture_id)
            del self.pictures[picture_id]
            self._predictions.pop(picture_id, None)
            self._changed(examples=removed.class_id is not None)

    def picture(self, picture_id: str) -> Picture:
        """The picture with this id."""
        with self.lock:
            if picture_id not in self.pictures:
                raise Refused("This picture no longer exists. Reload the page.", status=404)
            return self.pictures[picture_id]

    # Everything

    def start_over(self) -> None:
        """Go back to the examples that the visitor started with."""
        with self.lock:
            self._empty()
            self._add_examples(self._start)

    def replace(self, examples: LabelledImages, to_classify: Sequence[EmbeddedImage] = ()) -> None:
        """Replace all classes and pictures by these."""
        with self.lock:
            count = len(examples) + len(to_classify)
            if count > self._limits.pictures:
                raise Refused(
                    f"These are {count} pictures. At most {self._limits.pictures} are possible.",
                    status=413,
                )
            if len({name for _, name in examples}) > self._limits.classes:
                raise Refused(f"These are too many classes. At most {self._limits.classes} are possible.", status=413)
            self._empty()
            self._add_examples(examples)
            for image in to_classify:
                self.add_picture(image, None)

    def _empty(self) -> None:
        self.classes.clear()
        self.pictures.clear()
        self._changed(examples=True)

    def _add_examples(self, examples: LabelledImages) -> None:
        touched, ids = self.touched, {}
        names = distinct_names([name for _, name in examples], self._limits.name_length)
        for image, name in examples:
            if name not in ids:
                ids[name] = self.add_class(names[name])
            self.add_picture(image, ids[name])
        self.touched = touched

    def _changed(self, examples: bool = False) -> None:
        self.touched = True
        if examples:
            self.lesson += 1
            self._fitted = None
            self._predictions.clear()

    # Answers

    def classifier(self) -> FewShotClassifier:
        """The classifier, fitted to the current examples."""
        return self._learn()[0]

    def _learn(self) -> tuple[FewShotClassifier, list[str]]:
        with self.lock:
            if self._fitted is None:
                examples = {key: picture for key, picture in self.pictures.items() if picture.class_id is not None}
                if not examples:
                    raise Refused("There are no examples yet. Add a picture to a class first.", status=409)
                labels = [self.classes[str(picture.class_id)] for picture in examples.values()]
                images = [picture.image for picture in examples.values()]
                self._fitted = like(self._template).fit(images, labels), list(examples)
            return self._fitted

    def predictions(self) -> dict[str, Prediction]:
        """The answers for all pictures to classify, by picture id; empty if there are no examples yet."""
        with self.lock:
            if all(picture.class_id is None for picture in self.pictures.values()):
                return {}
            waiting = {
                picture_id: picture.image
                for picture_id, picture in self.pictures.items()
                if picture.class_id is None and picture_id not in self._predictions
            }
            if waiting:
                answers = self.classifier().classify(list(waiting.values()))
                self._predictions.update(zip(waiting, answers, strict=True))
            return dict(self._predictions)

    def explain(self, picture_id: str) -> Explanation:
        """The explanation of the answer for a picture."""
        return self._explain(picture_id)[0]

    def nearest(self, picture_id: str) -> list[dict[str, Any]]:
        """The most similar examples of a picture, as JSON values."""
        explanation, example_ids = self._explain(picture_id)
        return [
            {"id": example_ids[near.index], "label": str(near.label), "similarity": float(near.similarity)}
            for near in explanation.nearest
        ]

    def _explain(self, picture_id: str) -> tuple[Explanation, list[str]]:
        with self.lock:
            picture, (classifier, example_ids) = self.picture(picture_id), self._learn()
        return classifier.explain(picture.image), example_ids

    def results(self) -> list[Result]:
        """The answers for all pictures that are or once were to be classified."""
        with self.lock:
            predictions = self.predictions()
            found = []
            for picture_id, picture in self.pictures.items():
                if picture.asked and picture.class_id is not None:
                    found.append(Result(picture.image.name, self.classes[picture.class_id], None))
                elif picture_id in predictions:
                    prediction = predictions[picture_id]
                    found.append(Result(picture.image.name, str(prediction.answer), self._probabilities(prediction)))
            return found

    def _probabilities(self, prediction: Prediction) -> dict[str, float]:
        """The probability of every class, the most likely class first."""
        names = [str(name) for name in self.classifier().classes_]
        pairs = zip(names, map(float, prediction.probabilities), strict=True)
        return dict(sorted(pairs, key=lambda pair: -pair[1]))

    def rest(self) -> None:
        """Drop the fitted classifier to save memory. It can be fitted again quickly."""
        if self.lock.acquire(blocking=False):
            self._fitted = None
            self.lock.release()

    # For the page

    def state(self) -> dict[str, Any]:
        """Everything that the page shows, as JSON values."""
        with self.lock:
            predictions, ids = self.predictions(), {name: class_id for class_id, name in self.classes.items()}
            entries: dict[str | None, list[dict[str, Any]]] = {class_id: [] for class_id in (*self.classes, None)}
            for picture_id, picture in self.pictures.items():
                entry: dict[str, Any] = {"id": picture_id, "name": picture.image.name}
                if picture.class_id is None:
                    entry["result"] = self._result(predictions.get(picture_id), ids)
                entries[picture.class_id].append(entry)
            return {
                "lesson": self.lesson,
                "classes": [
                    {"id": class_id, "name": name, "pictures": entries[class_id]}
                    for class_id, name in self.classes.items()
                ],
                "to_classify": entries[None],
                "learnt": any(picture.class_id is not None for picture in self.pictures.values()),
                "has_results": bool(predictions)
                or any(picture.asked and picture.class_id is not None for picture in self.pictures.values()),
            }

    def _result(self, prediction: Prediction | None, ids: dict[str, str]) -> dict[str, Any] | None:
        if prediction is None:
            return None
        probabilities = self._probabilities(prediction)
        return {
            "rejected": prediction.rejected,
            "class": ids[str(prediction.label)],
            "probability": float(prediction.probability),
            "probabilities": [{"class": ids[name], "probability": value} for name, value in probabilities.items()],
        }
