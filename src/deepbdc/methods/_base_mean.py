"""What methods share that subtract the mean representation of the training images."""

import numpy as np
from torch import Tensor

from deepbdc.methods.base import Method, TrainingClasses

_IMAGES_AT_A_TIME = 4096


def mean_of_training_images(method: Method, base: TrainingClasses) -> Tensor:
    """The mean representation of all training images, ``(features,)``."""
    source, count = base.source(method), len(base.dataset)
    sums = [
        source.rows(np.arange(start, min(start + _IMAGES_AT_A_TIME, count))).double().sum(dim=0)
        for start in range(0, count, _IMAGES_AT_A_TIME)
    ]
    total = sums[0]
    for part in sums[1:]:
        total = total + part
    return (total / count).float()
