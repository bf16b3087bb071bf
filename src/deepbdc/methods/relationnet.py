"""RelationNet: a small network compares the feature maps of classes and queries."""

from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn.functional import mse_loss, one_hot

from deepbdc._modes import separate_random_numbers
from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.relation import ClassMap, RelationClassifier
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.methods._heads import AverageThen
from deepbdc.methods.base import EpisodicMethod, methods
from deepbdc.pooling import KeepMap
from deepbdc.preprocessing import Preprocessing
from deepbdc.stages import Loss, TrainingEpisode
from deepbdc.stages.objectives import classification_loss, percent_right

EpisodeLoss = Literal["mse", "cross_entropy"]


@methods.named("relationnet")
class RelationNet(EpisodicMethod):
    """Sung et al., "Learning to Compare: Relation Network for Few-Shot Learning", CVPR 2018.

    The map of a class is the sum of its support maps ``(d, h, w)``. A relation module g (see `RelationClassifier`)
    scores it together with the map of a query: r_c(q) = sigmoid(g([Σ x_c ; q])). Training minimises the mean squared
    error Σ (r_c(q) - [q is of class c])². `classify` gives g without the sigmoid, which does not change the answers.

    Differences from the original: any backbone and any map size, where it has a Conv4 with maps of 19×19; batch norm
    uses running statistics with the usual momentum, and at test time only these, where the original uses the statistics
    of the test queries (and so is transductive). Recipes for two cores pre-train the backbone with cross-entropy on the
    average of the map. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        hidden: Channels of the relation module.
        units: Width of its first fully connected layer.
        class_map: ``"sum"`` or ``"mean"`` of the support maps of a class. A network that is used with several numbers
            of shots needs the mean.
        loss: ``"mse"`` of the sigmoid as in the original, or ``"cross_entropy"`` of the scores, which Chen et al.
            (ICLR 2019) found better for many classes.
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        hidden: int = 64,
        units: int = 8,
        class_map: ClassMap = "sum",
        loss: EpisodeLoss = "mse",
    ) -> None:
        if loss not in get_args(EpisodeLoss):
            raise UserError(f"loss must be one of {', '.join(get_args(EpisodeLoss))}, got {loss!r}")
        embedding = Embedding(backbone, KeepMap(backbone.out_channels), preprocessing)
        with separate_random_numbers():
            classifier = RelationClassifier(backbone.out_channels, hidden, units, class_map)
        super().__init__(embedding, classifier, loss=loss)

    def head(self, classes: int) -> nn.Module:
        """A linear head on the average of the map."""
        return AverageThen(super().head(classes))

    def episode_loss(self, episode: TrainingEpisode, label_smoothing: float = 0.0) -> Loss:
        """The mean squared error of the relations of all pairs of class and query, or the cross-entropy."""
        support, query = episode.split(self.embed(episode.images))
        scores = self.classify(support, episode.support_labels, query)
        if self.settings["loss"] == "cross_entropy":
            return classification_loss(scores, episode.query_labels, label_smoothing)
        return relation_loss(scores, episode.query_labels, label_smoothing)


def relation_loss(scores: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Loss:
    """Mean squared error between sigmoids of scores ``(n, way)`` and one-hot labels, and the accuracy in percent."""
    way = scores.shape[1]
    targets = one_hot(labels, way).to(scores.dtype) * (1 - label_smoothing) + label_smoothing / way
    return Loss(mse_loss(scores.sigmoid(), targets), {"accuracy": percent_right(scores, labels)})
