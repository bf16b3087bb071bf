"""Statistics of the representations of all training images, for methods that remember them."""

import numpy as np
import torch
from torch import Tensor

from deepbdc.feature_bank import Source

_IMAGES_AT_A_TIME = 4096


def mean_of_rows(source: Source, images: int) -> Tensor:
    """The mean of the rows of images 0 to ``images`` - 1, of the shape of one row, summed in float64."""
    starts = range(0, images, _IMAGES_AT_A_TIME)
    parts = [source.rows(np.arange(start, min(start + _IMAGES_AT_A_TIME, images))) for start in starts]
    return (torch.stack([part.double().sum(dim=0) for part in parts]).sum(dim=0) / images).float()
