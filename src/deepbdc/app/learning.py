"""What a visitor's examples teach: the fitted classifier, its answers, and how often they should be right."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from deepbdc.estimator import EmbeddedImage, FewShotClassifier, Prediction
from deepbdc.own_images.checking import ExampleReport, check_examples
from deepbdc.own_images.suggesting import alike, choose_alike, unsureness_of
from deepbdc.web.refusals import Refused

LabelledImages = Sequence[tuple[EmbeddedImage, str]]
"""Pictures, each with the name of its class."""
_FOLDS = 5


def like(template: FewShotClassifier) -> FewShotClassifier:
    """A new classifier with the same settings. It shares the network, which scikit-learn's ``clone`` would copy."""
    return FewShotClassifier(**template.get_params(deep=False))


@dataclass
class Expectation:
    """How many examples were recognised by a classifier that had not seen them."""

    tested: Counter[str] = field(default_factory=Counter)
    """Held-out examples of each class."""
    right: Counter[str] = field(default_factory=Counter)
    """Those of them whose most likely class is the right one."""
    rejected: int = 0
    """How many of all were taken for none of the classes."""

    def as_json(self) -> dict[str, Any]:
        """The share that is right, with its 95 % interval, and the counts."""
        right, tested = self.right.total(), self.tested.total()
        low, high = wilson(right, tested)
        counts = {name: {"tested": count, "right": self.right[name]} for name, count in self.tested.items()}
        return {
            "right": right,
            "tested": tested,
            "low": low,
            "high": high,
            "rejected": self.rejected,
            "classes": counts,
        }


def wilson(right: int, tested: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share by Wilson's formula, which holds for few observations, too.

    >>> [round(bound, 2) for bound in wilson(9, 10)]
    [0.6, 0.98]
    """
    if not tested:
        return 0.0, 1.0
    share, weight = right / tested, z * z / tested
    middle = (share + weight / 2) / (1 + weight)
    reach = z * math.sqrt(share * (1 - share) / tested + weight / (4 * tested)) / (1 + weight)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def expect(template: FewShotClassifier, examples: LabelledImages) -> Expectation:
    """Hold out each example once, and let a classifier that is fitted to the others recognise it.

    A class with a single example keeps it in every fit, and is not tested. Copies of a picture are left out, because a
    copy would be recognised by the other one.
    """
    found = Expectation()
    distinct = list({image.features.numpy().tobytes(): (image, label) for image, label in examples}.values())
    counts = Counter(label for _, label in distinct)
    if len(counts) < 2:
        return found
    for fold in _folds([label for _, label in distinct], counts):
        images, labels = zip(*(pair for pair, out in zip(distinct, fold, strict=True) if not out), strict=True)
        fitted = like(template).fit(list(images), list(labels))
        asked = [pair for pair, out in zip(distinct, fold, strict=True) if out]
        for (_, label), answer in zip(asked, fitted.classify([image for image, _ in asked]), strict=True):
            found.tested[label] += 1
            found.right[label] += answer.label == label
            found.rejected += answer.rejected
    return found


def _folds(labels: Sequence[str], counts: Mapping[str, int]) -> Iterator[list[bool]]:
    """For each fold, which examples are held out: about the same share of every class that has more than one."""
    number = min(max(counts.values()), _FOLDS)
    seen: Counter[str] = Counter()
    ranks = []
    for label in labels:
        ranks.append(seen[label])
        seen[label] += 1
    for fold in range(number):
        out = [rank % number == fold and counts[label] > 1 for rank, label in zip(ranks, labels, strict=True)]
        if any(out):
            yield out


Examples = Mapping[str, tuple[EmbeddedImage, str]]
"""Pictures with the names of their classes, by their ids."""


class Learner:
    """Fits the classifier when it is first needed after a change of the examples, and remembers its answers.

    Each method is given the examples and their ``lesson``, a number that changes whenever the examples change.

    Args:
        template: A classifier with the settings to use. It need not be fitted.
    """

    def __init__(self, template: FewShotClassifier) -> None:
        self.template = template
        self._lesson = -1
        self._fitted: tuple[FewShotClassifier, list[str]] | None = None
        self._answers: dict[str, Prediction] = {}
        self._expected: tuple[int, Expectation] | None = None
        self._checked: tuple[int, ExampleReport] | None = None
        self._alike: tuple[dict[str, int], Tensor] | None = None

    def _follow(self, lesson: int) -> None:
        """Forget what the examples of an earlier lesson taught."""
        if lesson != self._lesson:
            self._lesson, self._fitted = lesson, None
            self._answers.clear()

    def rest(self) -> None:
        """Drop the fitted classifier to save memory. It can be fitted again quickly."""
        self._fitted = self._alike = None

    def learn(self, lesson: int, examples: Examples) -> tuple[FewShotClassifier, list[str]]:
        """The classifier that is fitted to these examples, and their ids in its order."""
        self._follow(lesson)
        if self._fitted is None:
            if not examples:
                raise Refused("There are no examples yet. Add a picture to a class first.", status=409)
            images, labels = zip(*examples.values(), strict=True)
            self._fitted = like(self.template).fit(list(images), list(labels)), list(examples)
        return self._fitted

    def answers(self, lesson: int, examples: Examples, asked: Mapping[str, EmbeddedImage]) -> dict[str, Prediction]:
        """The answers for pictures, by their ids; none if there are no examples yet."""
        self._follow(lesson)
        if not examples:
            return {}
        waiting = {key: image for key, image in asked.items() if key not in self._answers}
        if waiting:
            found = self.learn(lesson, examples)[0].classify(list(waiting.values()))
            self._answers.update(zip(waiting, found, strict=True))
        return {key: self._answers[key] for key in asked}

    def expected(self, lesson: int, examples: Examples) -> Expectation:
        """How often the answers should be right."""
        if self._expected is None or self._expected[0] != lesson:
            self._expected = lesson, expect(self.template, list(examples.values()))
        return self._expected[1]

    def suggest(
        self,
        fitted: FewShotClassifier,
        images: Mapping[str, EmbeddedImage],
        answers: Mapping[str, Prediction],
        count: int,
    ) -> list[str]:
        """The ids of the pictures whose labels would teach most.

        Args:
            fitted: The classifier that `learn` fitted to the examples.
            images: All pictures. The similarities between them are remembered, so that each is represented once.
            answers: The answers for the pictures to choose from. The others count as labelled: nothing like them is
                chosen.
            count: How many to choose.
        """
        if self._alike is None or not images.keys() <= self._alike[0].keys():
            similarities = alike(fitted.represent(list(images.values()))).cpu()
            self._alike = {key: place for place, key in enumerate(images)}, similarities
        places, similarities = self._alike
        rows = similarities[[places[key] for key in answers]]
        columns = ([places[key] for key in answers], [places[key] for key in images if key not in answers])
        inside, outside = (rows[:, column] for column in columns)
        found = choose_alike(inside, outside, unsureness_of(list(answers.values())), count)
        return [list(answers)[index] for index, _ in found]

    def checked(self, lesson: int, fitted: FewShotClassifier, examples: Examples) -> ExampleReport:
        """What a check of the examples found. ``fitted`` is the classifier that `learn` fitted to them."""
        if self._checked is None or self._checked[0] != lesson:
            images, labels = zip(*examples.values(), strict=True)
            self._checked = lesson, check_examples(fitted, images, labels)
        return self._checked[1]
