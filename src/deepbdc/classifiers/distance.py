"""The nearest class mean by a scaled distance."""

from typing import Literal, get_args

import torch
from torch import Tensor

from deepbdc.classifiers._scale import Scale
from deepbdc.classifiers.base import Classifier, positive
from deepbdc.classifiers.prototype import class_means, similarities
from deepbdc.errors import UserError

Distance = Literal["euclidean", "squared"]


class DistanceClassifier(Classifier):
    """Scores are s_c(q) = -α ‖q - p_c‖, with p_c the mean of the support images of class c and a learnable α.

    The metric scaling of TADAM (Oreshkin et al., NeurIPS 2018). The gradient of the distance is 0 where a query is
    equal to a mean.

    Args:
        scale: Start of α, the parameter group ``scale``.
        distance: ``"euclidean"``, or ``"squared"`` for ‖q - p_c‖².
    """

    named_parameter_groups = {"scale": ("scale.scale",)}  # noqa: RUF012

    def __init__(self, scale: float = 7.5, distance: Distance = "euclidean") -> None:
        super().__init__(scale=scale, distance=distance)
        if distance not in get_args(Distance):
            raise UserError(f"distance must be one of {', '.join(get_args(Distance))}, got {distance!r}")
        self.distance = distance
        self.scale = Scale(positive("scale", scale))

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, features), (e, s), (e, q, features) -> (e, q, way)``."""
        means = class_means(support, support_labels, way)
        if self.distance == "squared":
            scores = similarities(query, means, "euclidean")
        else:
            scores = -torch.cdist(query, means, compute_mode="donot_use_mm_for_euclid_dist")
        scaled: Tensor = self.scale(scores)
        return scaled
