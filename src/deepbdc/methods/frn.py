"""FRN: how well the positions of a class reconstruct those of a query."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from deepbdc._modes import full_precision
from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.base import positive
from deepbdc.classifiers.reconstruction import (
    ReconstructionClassifier,
    error_operators,
    reconstruction_errors,
    rows_of_classes,
)
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.methods.base import EpisodicMethod, Head, at_least_float, methods
from deepbdc.pooling import KeepMap
from deepbdc.preprocessing import Preprocessing
from deepbdc.stages import Loss, TrainingEpisode
from deepbdc.stages.objectives import classification_loss

Norm = Literal["global", "rows"]


@methods.named("frn")
class FRN(EpisodicMethod):
    """Wertheimer, Tang, Hariharan, "Few-Shot Classification with Feature Map Reconstruction Networks", CVPR 2021.

    The representation of an image is its feature map ``(d, h, w)``. Ridge regression reconstructs each position of a
    query from all positions S_c of a class, Q̄ = ρ Q S_cᵀ (S_c S_cᵀ + λ I)⁻¹ S_c, and the score is minus the mean
    squared error: s_c(Q) = -γ/(h·w) · ‖Q̄ - Q‖². See `ReconstructionClassifier` for λ, ρ and γ.

    Pre-training classifies with one learnable map per training class in the place of its support images, with
    λ and ρ fixed at α = β = 0 (`DummyMaps`). The loss of an episode has an auxiliary term, Σ_{i<j} ‖S_i S_jᵀ‖², which
    moves classes apart. The released code divides S by the norm of the whole support first, and so does the default
    here. Division of each row by its own norm is how we remember the text of the paper, without having checked it.

    The released code divides the features of ResNets by √d and leaves those of Conv4 as they are. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        scale: Start of γ, the parameter group ``scale``.
        divide_features: Divide features by √d.
        auxiliary_weight: Weight of the auxiliary term.
        auxiliary_norm: What the auxiliary term divides S by: ``"global"`` or ``"rows"``.
        dummy_scale: Standard deviation of the learnable maps at the start of pre-training; the released code has 1.
            Maps of a small network learn faster from 0.1, as a gradient step turns them further.
    """

    classifier: ReconstructionClassifier

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        scale: float = 1.0,
        divide_features: bool = True,
        auxiliary_weight: float = 0.03,
        auxiliary_norm: Norm = "global",
        dummy_scale: float = 1.0,
    ) -> None:
        if auxiliary_norm not in ("global", "rows"):
            raise UserError(f"auxiliary_norm must be 'global' or 'rows', got {auxiliary_norm!r}")
        embedding = Embedding(backbone, KeepMap(backbone.out_channels), preprocessing)
        classifier = ReconstructionClassifier(scale, divide_features)
        super().__init__(
            embedding,
            classifier,
            auxiliary_weight=auxiliary_weight,
            auxiliary_norm=auxiliary_norm,
            dummy_scale=positive("dummy_scale", dummy_scale),
        )
        self.auxiliary_weight = auxiliary_weight
        self.auxiliary_norm: Norm = auxiliary_norm
        self.dummy_scale = dummy_scale

    def head(self, classes: int) -> nn.Module:
        """A learnable map for each training class."""
        height, width = self.embedding.backbone.map_size(self.embedding.preprocessing.input_size)
        start = self.dummy_scale * torch.randn(classes, height * width, self.embedding.out_features)
        return DummyMaps(start, self.classifier.rows)

    def class_scores(self, head: Head, features: Tensor) -> Tensor:
        """γ times minus the errors with which the maps of the classes reconstruct those of the images."""
        scores: Tensor = self.classifier.scale(head(features))
        return scores

    def episode_loss(self, episode: TrainingEpisode, label_smoothing: float = 0.0) -> Loss:
        """Cross-entropy of the scores of the queries, and the auxiliary term."""
        support, query = episode.split(self.embed(episode.images))
        scores = self.classify(support, episode.support_labels, query)
        value, numbers = classification_loss(scores, episode.query_labels, label_smoothing)
        with full_precision(support):
            rows = self.classifier.rows(at_least_float(support))
            overlap = class_overlap(rows, episode.support_labels, self.auxiliary_norm)
        return Loss(value + self.auxiliary_weight * overlap, {**numbers, "auxiliary": overlap.detach()})


class DummyMaps(nn.Module):
    """Scores of all training classes, each represented by the rows of a learnable map.

    Args:
        start: Rows of all classes before the first step, ``(classes, r, d)``.
        rows: From feature maps ``(n, d, h, w)`` to rows ``(n, h · w, d)``.
    """

    def __init__(self, start: Tensor, rows: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.maps = nn.Parameter(start)
        self.rows = rows

    def forward(self, features: Tensor) -> Tensor:
        """Minus the reconstruction errors with α = β = 0, in float32: ``(n, d, h, w) -> (n, classes)``."""
        with full_precision(features):
            rows = self.rows(at_least_float(features))
            maps = self.maps.to(rows.dtype)
            counts = torch.full((len(maps),), maps.shape[1], device=maps.device)
            return -reconstruction_errors(error_operators(maps, counts, 0.0, 0.0)[None], rows[None])[0]


def class_overlap(rows: Tensor, labels: Tensor, norm: Norm) -> Tensor:
    """Σ_{i<j} ‖S_i S_jᵀ‖²_F over pairs of classes: rows ``(s, r, d)`` with labels ``(s,)`` -> ``()``.

    ‖S_i S_jᵀ‖² is computed as the inner product of S_iᵀ S_i and S_jᵀ S_j.
    """
    if norm == "global":
        rows = rows / torch.linalg.vector_norm(rows).clamp(min=torch.finfo(rows.dtype).tiny)
    else:
        rows = nn.functional.normalize(rows, dim=-1)
    of_classes = rows_of_classes(rows[None], labels[None], int(labels.max()) + 1)[0]
    moments = (of_classes.transpose(-2, -1) @ of_classes).flatten(1)
    return (moments @ moments.T).triu(diagonal=1).sum()
