"""One visitor of the page: their work, and the answers for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from deepbdc.app.findings import Findings
from deepbdc.app.learning import LabelledImages, Learner
from deepbdc.app.limits import AppLimits
from deepbdc.app.pictures import NONE, Picture
from deepbdc.app.storage import Shelf
from deepbdc.app.work import Work
from deepbdc.estimator import NONE_OF_THESE, EmbeddedImage, Explanation, FewShotClassifier, Prediction
from deepbdc.own_images.rejection import USUAL_RATE

CONFIRM = "confirm"
"""Stands for the verdict that the answer of the classifier is right."""
_EXPLANATIONS = 20  # that are kept for a moment


@dataclass(frozen=True)
class Result:
    """The answer for one picture."""

    picture_id: str
    name: str
    answer: str
    by_person: bool
    """Whether the visitor gave the answer, by moving or checking the picture."""
    prediction: Prediction | None
    """The answer of the classifier; None for a picture that is an example by now."""


class Visitor(Work):
    """The work of one visitor and the answers for it. Every method may be called from any thread.

    Args:
        template: A classifier with the settings to use. It need not be fitted.
        limits: What the server accepts.
        examples: The examples that the visitor starts with.
        shelf: Where to keep the work; None keeps it in memory only.
    """

    def __init__(
        self,
        template: FewShotClassifier,
        limits: AppLimits,
        examples: LabelledImages = (),
        shelf: Shelf | None = None,
    ) -> None:
        super().__init__(limits, examples, shelf)
        self._learner = Learner(template)
        self._explaining = Lock()
        self._looking = Lock()  # a check or choice of pictures takes seconds if there are many; one at a time
        self._explanations: dict[tuple[int, str], tuple[Explanation, list[str]]] = {}

    # Answers

    def classifier(self) -> FewShotClassifier:
        """The classifier, fitted to the current examples."""
        return self._learn()[0]

    def answer_names(self) -> list[str]:
        """The classes in the order of the probabilities; empty if there are no examples yet."""
        with self.lock:
            return [str(name) for name in self.classifier().classes_] if self._examples() else []

    def _learn(self) -> tuple[FewShotClassifier, list[str]]:
        with self.lock:
            return self._learner.learn(self.lesson, self._examples())

    def _examples(self) -> dict[str, tuple[EmbeddedImage, str]]:
        return {
            picture_id: (picture.image, self.classes[picture.class_id])
            for picture_id, picture in self.pictures.items()
            if picture.class_id is not None
        }

    def predictions(self) -> dict[str, Prediction]:
        """The answers for all pictures to classify, by picture id; empty if there are no examples yet."""
        with self.lock:
            asked = {key: picture.image for key, picture in self.pictures.items() if picture.class_id is None}
            return self._learner.answers(self.lesson, self._examples(), asked)

    def confirm(self, picture_ids: Sequence[str]) -> None:
        """Say that the answers for these pictures are right."""
        with self.lock:
            answers, ids = self.predictions(), self._ids()
            found = {key: answers[key] for key in picture_ids if self.picture(key).class_id is None and key in answers}
            self.judge({key: NONE if answer.rejected else ids[str(answer.label)] for key, answer in found.items()})

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
        """The page asks for the heat map and for the examples at once; both are parts of one explanation."""
        with self._explaining:
            with self.lock:
                key, picture = (self.lesson, picture_id), self.picture(picture_id)
                classifier, example_ids = self._learn()
            if key not in self._explanations:
                if len(self._explanations) >= _EXPLANATIONS:
                    self._explanations.clear()
                self._explanations[key] = classifier.explain(picture.image), example_ids
            return self._explanations[key]

    def expected(self) -> dict[str, Any]:
        """How often the answers should be right, as JSON values, with the ids of the classes."""
        with self.lock:
            lesson, examples, ids = self.lesson, self._examples(), self._ids()
        found = self._learner.expected(lesson, examples).as_json()
        return {"lesson": lesson, **found, "classes": {ids[name]: counts for name, counts in found["classes"].items()}}

    def suggestions(self, count: int, beside: Sequence[str] = ()) -> dict[str, Any]:
        """The pictures whose labels would teach most, as JSON values.

        Args:
            count: How many there shall be.
            beside: Earlier suggestions. Those that still have no label stay in their places.
        """
        with self._looking:
            with self.lock:
                lesson, fitted, answers = self.lesson, self.classifier(), self.predictions()
                pictures = dict(self.pictures)
            open_ = [key for key in answers if pictures[key].verdict is None]
            stay = [key for key in dict.fromkeys(beside) if key in open_][:count]
            pool = {key: answers[key] for key in open_ if key not in stay}
            found: list[str] = []
            if pool and len(stay) < count:
                images = {key: picture.image for key, picture in pictures.items()}
                found = self._learner.suggest(fitted, images, pool, count - len(stay))
            return {"lesson": lesson, "pictures": stay + found}

    def findings(self) -> dict[str, Any]:
        """What a check of the examples found, as JSON values."""
        with self._looking:
            with self.lock:
                lesson, fitted, pairs, ids = self.lesson, self.classifier(), self._examples(), self._ids()
                examples = {picture_id: self.pictures[picture_id] for picture_id in pairs}
            report = self._learner.checked(lesson, fitted, pairs)
            return {"lesson": lesson, **Findings(report, examples, ids).as_json()}

    def results(self) -> list[Result]:
        """The answers for all pictures that are or once were to be classified."""
        with self.lock:
            predictions = self.predictions()
            found = []
            for picture_id, picture in self.pictures.items():
                answer = self._answer_of(picture, predictions.get(picture_id))
                if picture.asked and answer is not None:
                    by_person = picture.class_id is not None or picture.verdict is not None
                    prediction = predictions.get(picture_id)
                    found.append(Result(picture_id, picture.image.name, answer, by_person, prediction))
            return found

    def _answer_of(self, picture: Picture, prediction: Prediction | None) -> str | None:
        said = picture.class_id or picture.verdict
        if said is not None:
            return NONE_OF_THESE if said == NONE else self.classes[said]
        return None if prediction is None else str(prediction.answer)

    def rest(self) -> None:
        """Drop the fitted classifier to save memory. It can be fitted again quickly."""
        if self.lock.acquire(blocking=False):
            self._learner.rest()
            self._explanations = {}
            self.lock.release()

    # For the page

    def state(self) -> dict[str, Any]:
        """Everything that the page shows, as JSON values."""
        with self.lock:
            predictions, names, ids = self.predictions(), self.answer_names(), self._ids()
            entries: dict[str | None, list[dict[str, Any]]] = {class_id: [] for class_id in (*self.classes, None)}
            for picture_id, picture in self.pictures.items():
                entry: dict[str, Any] = {"id": picture_id, "name": picture.image.name}
                if picture.class_id is None:
                    entry["result"] = self._result(predictions.get(picture_id), names, ids)
                    entry["verdict"] = picture.verdict
                entries[picture.class_id].append(entry)
            return {
                "lesson": self.lesson,
                "classes": [
                    {"id": class_id, "name": name, "pictures": entries[class_id]}
                    for class_id, name in self.classes.items()
                ],
                "to_classify": entries[None],
                "unfamiliar": USUAL_RATE,
                "learnt": any(picture.class_id is not None for picture in self.pictures.values()),
                "has_results": bool(predictions) or any(self._is_judged(picture) for picture in self.pictures.values()),
                "undo": self._history.last,
            }

    @staticmethod
    def _is_judged(picture: Picture) -> bool:
        return picture.asked and (picture.class_id is not None or picture.verdict is not None)

    def _ids(self) -> dict[str, str]:
        return {name: class_id for class_id, name in self.classes.items()}

    @staticmethod
    def _result(prediction: Prediction | None, names: Sequence[str], ids: dict[str, str]) -> dict[str, Any] | None:
        if prediction is None:
            return None
        pairs = sorted(zip(names, map(float, prediction.probabilities), strict=True), key=lambda pair: -pair[1])
        return {
            "rejected": prediction.rejected,
            "familiarity": float(prediction.familiarity),
            "class": ids[str(prediction.label)],
            "probability": float(prediction.probability),
            "probabilities": [{"class": ids[name], "probability": value} for name, value in pairs],
        }
