"""What an evaluation takes of each image: averaged views, signed powers, the mean of the training images subtracted."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from deepbdc.data.dataset import Dataset
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.feature_bank import Source
from deepbdc.methods._base_features import mean_of_rows
from deepbdc.methods.base import Method, TrainingClasses
from deepbdc.preprocessing import AtTestTime


def prepare_source(
    method: Method, dataset: Dataset, test_time: AtTestTime, base: TrainingClasses | None = None, **options: Any
) -> Source:
    """Where an evaluation takes the representations of a data set from, with the views and the mean that are asked for.

    Args:
        method: Embeds the images.
        dataset: The images.
        test_time: What is made of each image besides the usual.
        base: The training images, for their mean.
        options: As for `build_bank`.
    """
    method.check_test_time(test_time)
    source = method.source(dataset, **options, test_time=test_time)
    if test_time.power != 1:
        source = Powered(source, test_time.power)
    if not test_time.centre:
        return source
    if base is None:
        raise UserError("centre subtracts the mean of the training images, and there are none: leave it out")
    training = prepare_source(method, base.dataset, replace(test_time, centre=False), **options)
    return Centred(source, mean_of_rows(training, len(base.dataset)))


def name_of(method: Method) -> str:
    """The name of a method for a message; that of its classifier, if there is no class for the method."""
    return type(method.classifier if type(method) is Method else method).__name__


class Changed(Source):
    """Representations of another source that are changed in some way.

    Args:
        source: Gives the representations.
        how: What is done to them, in the words of `AtTestTime`.
        test_time: All that is made of each image.
    """

    def __init__(self, source: Source, how: AtTestTime, test_time: AtTestTime) -> None:
        self.source, self.test_time = source, test_time
        self.data_fingerprint = source.data_fingerprint
        self.kept = ", ".join([source.kept, *how.in_words()])

    def check(self, embedding: Embedding, dataset: Dataset) -> None:
        """Raise if this was made of other images, or by another network."""
        self.source.check(embedding, dataset)


class Powered(Changed):
    """Representations whose entries are raised to a power and keep their signs, sign(x) |x|^power.

    Args:
        source: Gives the representations.
        power: The exponent.
    """

    def __init__(self, source: Source, power: float) -> None:
        super().__init__(source, AtTestTime(power=power), replace(source.test_time, power=power))

    def rows(self, indices: NDArray[np.int64]) -> Tensor:
        """Representations of some images, to the power."""
        rows = self.source.rows(indices)
        return rows.sign() * rows.abs() ** self.test_time.power


class Centred(Changed):
    """Representations minus a mean vector, such as that of the training images.

    Args:
        source: Gives the representations.
        mean: The vector, of the shape of one row.
    """

    def __init__(self, source: Source, mean: Tensor) -> None:
        super().__init__(source, AtTestTime(centre=True), replace(source.test_time, centre=True))
        self.mean = mean

    def rows(self, indices: NDArray[np.int64]) -> Tensor:
        """Representations of some images, minus the mean."""
        rows = self.source.rows(indices)
        return rows - self.mean.to(rows)
