"""Centring: subtracts the mean of the pictures to classify, which helps if each class has a single example.

The mean of a folder tells what all its pictures have in common, and a class with one example cannot tell that from what
is special about the class. If the folder shows mostly one class, however, the mean is what is special about this class,
and must stay.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from deepbdc.own_images.pictures import EmbeddedImage, ImageLike
from deepbdc.own_images.reading import embed_batches, represent, stack_maps

if TYPE_CHECKING:
    from deepbdc.estimator import FewShotClassifier

MOST_SHOTS = 2.0
"""With as many examples per class, on average, or more there is nothing to gain."""
FEWEST, FEWEST_PER_CLASS, SAMPLE = 30, 3, 200
"""How many pictures a mean needs, and how many are enough."""
LEAST_BALANCE = 0.7
"""How many classes the pictures must show evenly, as a share of all classes."""


@dataclass(frozen=True)
class Centring:
    """What centring did."""

    images: list[ImageLike]
    """The pictures to classify. Those that went through the network already are embedded."""
    used: int
    """How many pictures the mean is of; 0 if nothing was subtracted."""


def centre(classifier: "FewShotClassifier", images: Sequence[ImageLike]) -> Centring:
    """Subtract the mean of at most `SAMPLE` of the pictures in a fitted classifier, if that can be expected to help.

    It is expected to help if most classes have a single example, no mean was subtracted in the fit, there are enough
    pictures, and they show most of the classes, as far as the answers without the mean tell.
    """
    images, way = list(images), len(classifier.classes_)
    enough = len(images) >= max(FEWEST, FEWEST_PER_CLASS * way)
    if way < 2 or classifier.mean_ is not None or len(classifier.examples_) / way >= MOST_SHOTS or not enough:
        return Centring(images, 0)
    places = np.unique(np.linspace(0, len(images) - 1, SAMPLE).round().astype(int)).tolist()
    sample = _embedded([images[place] for place in places], classifier)
    read = dict(zip((image.name for image in sample), sample, strict=True))
    images = [read.get(str(image), image) for image in images]
    answers = [int(answer.probabilities.argmax()) for answer in classifier.classify(sample)]
    if len(sample) < FEWEST or effective_classes(answers) < LEAST_BALANCE * way:
        return Centring(images, 0)
    embedding, batch_size = classifier.embedding_, int(classifier.batch_size)
    total = sum(represent(embedding, stack_maps([image]), batch_size)[0].double() for image in sample)
    assert isinstance(total, torch.Tensor)
    classifier.subtract((total / len(sample)).float())
    return Centring(images, len(sample))


def effective_classes(answers: Sequence[int]) -> float:
    """As how many classes of equal size the answers are diverse: the exponential of their entropy.

    >>> round(effective_classes([0, 1, 2, 3]), 3), round(effective_classes([0, 0, 0, 0]), 3)
    (4.0, 1.0)
    """
    counts = np.bincount(answers)
    shares = counts[counts > 0] / len(answers)
    return float(np.exp(-(shares * np.log(shares)).sum()))


def _embedded(images: Sequence[ImageLike], classifier: "FewShotClassifier") -> list[EmbeddedImage]:
    """Those of the pictures that can be read."""
    batch_size = int(classifier.batch_size)
    batches = embed_batches(images, classifier.embedding_, batch_size, lambda error: None, thumbnails=False)
    return [image for batch in batches for image in batch]
