"""SimpleShot: the nearest mean of centred and normalised features."""

from typing import Literal, get_args

from torch import Tensor
from torch.nn.functional import normalize

from deepbdc._modes import full_precision
from deepbdc.backbones.base import Backbone
from deepbdc.classifiers import create_classifier
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.methods._base_features import mean_of_rows
from deepbdc.methods.base import TrainingClasses, TransferMethod, at_least_float, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing

Transform = Literal["CL2N", "L2N", "UN"]


@methods.named("simpleshot")
class SimpleShot(TransferMethod):
    """Wang et al., "SimpleShot: Revisiting Nearest-Neighbor Classification for Few-Shot Learning", arXiv 2019.

    Ordinary training on all classes, then the nearest class mean of transformed features: t(x) = (x - μ) / ‖x - μ‖ with
    μ the mean of all training images (not augmented), and s_c(q) = -‖t(q) - mean of t(x) in class c‖². The means are
    not normalised again. μ is kept with the weights. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        transform: What t is: ``"CL2N"`` as above, ``"L2N"`` without μ, ``"UN"`` nothing.
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        transform: Transform = "CL2N",
    ) -> None:
        if transform not in get_args(Transform):
            raise UserError(f"transform must be one of {', '.join(get_args(Transform))}, got {transform!r}")
        embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        super().__init__(embedding, create_classifier("prototype", similarity="euclidean"), transform=transform)
        self.transform = transform

    def remember(self, base: TrainingClasses) -> None:
        """Keep the mean of the training images."""
        if self.transform == "CL2N":
            self.memory["mean"] = mean_of_rows(base.source(self), len(base.dataset))

    def classify(self, support: Tensor, support_labels: Tensor, query: Tensor) -> Tensor:
        """Transform, then compare with class means."""
        return super().classify(self._transformed(support), support_labels, self._transformed(query))

    def _transformed(self, representations: Tensor) -> Tensor:
        if self.transform == "UN":
            return representations
        with full_precision(representations):
            representations = at_least_float(representations)
            if self.transform == "CL2N":
                representations = representations - self.memory["mean"].to(representations)
            return normalize(representations, dim=-1)
