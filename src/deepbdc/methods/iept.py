"""IEPT: episodes that are seen from four sides, with tasks that need no labels."""

from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from deepbdc._modes import full_precision, separate_random_numbers
from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.integrated_prototype import IntegratedPrototypeClassifier
from deepbdc.classifiers.prototype import class_means, similarities
from deepbdc.errors import UserError
from deepbdc.methods._heads import linear_head
from deepbdc.methods._rotations import RotatedEmbedding
from deepbdc.methods.base import EpisodicMethod, Head, at_least_float, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing
from deepbdc.stages import Classification, EpisodeTraining, Inputs, Loss, TrainingEpisode
from deepbdc.stages.formulas import classification_loss, distillation_loss
from deepbdc.stages.losses import RotationHead, feature_count, rotation_loss


class PretextTasks(EpisodeTraining):
    """The loss of IEPT, with the head that recognises turns, which is needed in training only."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        with separate_random_numbers():
            self.turns = RotationHead(feature_count(inputs.method), relu=True)

    def own_loss(self, episode: TrainingEpisode) -> Loss:
        """The loss without those that the recipe adds."""
        assert isinstance(self.method, IEPT)
        return self.method.pretext_loss(self.turns, episode, self.label_smoothing)


@methods.named("iept")
class IEPT(EpisodicMethod):
    """Zhang et al., "IEPT: Instance-Level and Episode-Level Pretext Tasks for Few-Shot Learning", ICLR 2021.

    Every image is seen turned by 0, 90, 180 and 270 degrees. Attention fuses the four representations of an image to a
    vector z, and s_c(q) = -‖z_q - p_c‖² / T with the class means p_c of these vectors; only this classifier is used at
    test time (see `IntegratedPrototypeClassifier`). In training, l_g are the scores of a ProtoNet for turn g, with the
    same T:

    loss = cross-entropy of s + w₁ · cross-entropy of the l_g + w₂ · cross-entropy of the turns (instance level)
    + w₃ · mean over g of KL(softmax(l_g) ‖ softmax(mean of all l)) (episode level).

    As in the released code, KL is also divided by the number of classes, the scores of the turns pass a ReLU, and the
    three weights are equal; the paper has three weights, whose values we have not checked. The authors start from a
    pre-trained network; how they trained it we do not know, and take ordinary training. They do not flip or jitter
    images (``augmentation: none``). Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        temperature: T. The authors have 512 for ResNet-12 and 12 for Conv4.
        auxiliary_weight: w₁. The authors have 0.2 for ResNet-12 and 0.5 for Conv4, as for the next two.
        instance_weight: w₂.
        episode_weight: w₃.
        heads: Heads of the attention, whose weights are the parameter group ``attention``.
        dropout: Probability of dropout on the output of the attention.
    """

    objectives: ClassVar = {"pretrain": Classification, "meta": PretextTasks}
    embedding: RotatedEmbedding

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        temperature: float = 512.0,
        auxiliary_weight: float = 0.2,
        instance_weight: float = 0.2,
        episode_weight: float = 0.2,
        heads: int = 10,
        dropout: float = 0.5,
    ) -> None:
        weights = {
            "auxiliary_weight": auxiliary_weight,
            "instance_weight": instance_weight,
            "episode_weight": episode_weight,
        }
        if min(weights.values()) < 0:
            raise UserError(f"weights must not be negative, got {weights}")
        embedding = RotatedEmbedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        classifier = IntegratedPrototypeClassifier(
            backbone.out_channels, heads=heads, dropout=dropout, temperature=temperature
        )
        super().__init__(embedding, classifier, **weights)
        self.temperature = temperature

    def head(self, classes: int) -> nn.Module:
        """A linear head on the representation of upright images."""
        return linear_head(self.embedding.backbone.out_channels, classes)

    def features(self, images: Tensor) -> Tensor:
        """The representation of upright images."""
        return self.embedding.upright(images)

    def pretext_loss(self, turns: Head, episode: TrainingEpisode, label_smoothing: float = 0.0) -> Loss:
        """The cross-entropy of the fused images of an episode, and the three other terms.

        Args:
            turns: From representations of turned images ``(n, features)`` to scores of the four turns.
            episode: The images.
            label_smoothing: Of the cross-entropies of classes.
        """
        rows = self.embed(episode.images)
        support, query = episode.split(rows)
        fused = classification_loss(
            self.classify(support, episode.support_labels, query), episode.query_labels, label_smoothing
        )
        with full_precision(rows):
            by_turn = at_least_float(rows).unflatten(1, (4, -1)).transpose(0, 1)  # (4, n, features)
            rotation = rotation_loss(turns(by_turn.flatten(0, 1)))
            scores = self.scores_by_turn(by_turn, episode)
            labels = episode.query_labels.repeat(4)
            auxiliary = cross_entropy(scores.flatten(0, 1), labels, label_smoothing=label_smoothing)
            apart = disagreement(scores)
        value = (
            fused.value
            + self.settings["auxiliary_weight"] * auxiliary
            + self.settings["instance_weight"] * rotation.value
            + self.settings["episode_weight"] * apart
        )
        numbers = {"auxiliary": auxiliary.detach(), "disagreement": apart.detach()}
        return Loss(value, {**fused.numbers, **rotation.numbers, **numbers})

    def scores_by_turn(self, by_turn: Tensor, episode: TrainingEpisode) -> Tensor:
        """The scores of a ProtoNet for each turn: ``(4, n, features) -> (4, q, way)``."""
        support, query = by_turn.split([len(episode.support_labels), len(episode.query_labels)], dim=1)
        prototypes = class_means(support, episode.support_labels.expand(4, -1), len(episode.classes))
        return similarities(query, prototypes, "euclidean") / self.temperature


def disagreement(scores: Tensor) -> Tensor:
    """Mean over g of KL(softmax(l_g) ‖ softmax(l̄)) with l̄ the mean of the l_g, per class: ``(g, q, way) -> ()``."""
    views, _, way = scores.shape
    mean = scores.mean(dim=0).repeat(views, 1)
    return distillation_loss(mean, scores.flatten(0, 1), temperature=1.0) / way
