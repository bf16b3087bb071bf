"""What ADM+DN4 and Meta DeepBDC+DN4 share: two branches on one feature map, trained together."""

from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from deepbdc._modes import full_precision
from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.fusion import FusionClassifier, fused
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.methods._heads import linear_head
from deepbdc.methods.base import EpisodicMethod, at_least_float, shots_of
from deepbdc.pooling import KeepMap
from deepbdc.preprocessing import Preprocessing
from deepbdc.stages import Loss, TrainingEpisode
from deepbdc.stages.objectives import classification_loss, percent_right

FusionLoss = Literal["fused", "branches"]


class FusionMethod(EpisodicMethod):
    """A feature map with several branches. Ordinary training trains the pooling layer of the first branch as well.

    Args:
        backbone: From images to feature maps.
        preprocessing: How images are prepared, if not as the backbone says.
        classifier: The branches.
        loss: Of an episode: ``"fused"``, the cross-entropy of the averaged probabilities; ``"branches"``, the sum of
            the cross-entropies of the branches.
        settings: Further options of the method.
    """

    classifier: FusionClassifier

    def __init__(
        self,
        backbone: Backbone,
        preprocessing: Preprocessing | None,
        classifier: FusionClassifier,
        loss: FusionLoss,
        **settings: Any,
    ) -> None:
        if loss not in get_args(FusionLoss):
            raise UserError(f"loss must be one of {', '.join(get_args(FusionLoss))}, got {loss!r}")
        embedding = Embedding(backbone, KeepMap(backbone.out_channels), preprocessing)
        super().__init__(embedding, classifier, loss=loss, **settings)

    def head(self, classes: int) -> nn.Module:
        """A linear head on the representation of the first branch."""
        return linear_head(cast(int, self.classifier.pools[0].out_features), classes)

    def features(self, images: Tensor) -> Tensor:
        """The representation of the first branch."""
        representations: Tensor = self.classifier.pools[0](self.embedding(images))
        return representations

    def episode_loss(self, episode: TrainingEpisode, label_smoothing: float = 0.0) -> Loss:
        """The loss that the option ``loss`` names."""
        if self.settings["loss"] == "fused":
            return super().episode_loss(episode, label_smoothing)
        support, query = episode.split(self.embed(episode.images))
        labels = episode.support_labels
        with full_precision(support):
            classifier = self.classifier_for(shots_of(labels))
            maps = at_least_float(support)[None], labels[None], at_least_float(query)[None]
            scores = [one[0] for one in classifier.branch_scores(*maps, way=len(episode.classes))]
        losses = [classification_loss(one, episode.query_labels, label_smoothing).value for one in scores]
        return Loss(torch.stack(losses).sum(), {"accuracy": percent_right(fused(scores), episode.query_labels)})

    def classifier_for(self, shot: int) -> FusionClassifier:
        """The branches for tasks with ``shot`` support images per class: by default the same for all."""
        return self.classifier
