"""FEAT: prototypes that self-attention adapts to each other."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from deepbdc._modes import full_precision, separate_random_numbers
from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.adapted_prototype import AdaptedPrototypeClassifier
from deepbdc.classifiers.base import grouped_by_class, positive
from deepbdc.classifiers.prototype import similarities
from deepbdc.embedding import Embedding
from deepbdc.methods.base import EpisodicMethod, at_least_float, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing
from deepbdc.stages import Loss, TrainingEpisode
from deepbdc.stages.objectives import classification_loss


@methods.named("feat")
class FEAT(EpisodicMethod):
    """Ye et al., "Few-Shot Learning via Embedding Adaptation with Set-to-Set Functions", CVPR 2020.

    ProtoNet whose prototypes ``(way, d)`` are adapted to each other by one layer of self-attention (`SelfAttention`):
    P' = LayerNorm(P + attention(P)), s_c(q) = -‖q - p'_c‖² / T. Queries stay as they are.

    In training the loss has a second term. The same layer adapts all images of each class, support and query, to each
    other; their mean is the centre of the class, and every image of the episode (not adapted) is classified by
    -‖x - centre_c‖² / T₂: loss = cross-entropy of the queries + balance · cross-entropy of all images.

    The defaults of T, T₂ and balance are those of the authors for ResNet-12 with one shot; squared distances grow with
    the number of channels, so a narrow network needs a smaller T. The authors' Conv4 ends in max-pooling, here every
    network ends in average pooling. While the network is pre-trained, the attention has its random first weights, so
    that validation in that stage underrates the network. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        temperature: T.
        contrastive_temperature: T₂.
        balance: Weight of the second term.
        attention_dropout: Probability of dropout on the attention weights.
        dropout: Probability of dropout on the output of the attention. Its weights are the parameter group
            ``attention``, which the authors train with ten times the rate of the network.
    """

    classifier: AdaptedPrototypeClassifier

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        temperature: float = 64.0,
        contrastive_temperature: float = 64.0,
        balance: float = 0.01,
        attention_dropout: float = 0.1,
        dropout: float = 0.5,
    ) -> None:
        embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        with separate_random_numbers():
            classifier = AdaptedPrototypeClassifier(embedding.out_features, temperature, attention_dropout, dropout)
        super().__init__(
            embedding,
            classifier,
            contrastive_temperature=positive("contrastive_temperature", contrastive_temperature),
            balance=balance,
        )
        self.contrastive_temperature = contrastive_temperature
        self.balance = balance

    def episode_loss(self, episode: TrainingEpisode, label_smoothing: float = 0.0) -> Loss:
        """Cross-entropy of the scores of the queries, and the contrastive term."""
        images = self.embed(episode.images)
        support, query = episode.split(images)
        scores = self.classify(support, episode.support_labels, query)
        value, numbers = classification_loss(scores, episode.query_labels, label_smoothing)
        labels = torch.cat([episode.support_labels, episode.query_labels])
        with full_precision(images):
            contrast = cross_entropy(self.centre_scores(at_least_float(images), labels), labels)
        return Loss(value + self.balance * contrast, {**numbers, "contrastive": contrast.detach()})

    def centre_scores(self, images: Tensor, labels: Tensor) -> Tensor:
        """Scores of representations ``(n, d)`` by the centres of their adapted classes -> ``(n, way)``."""
        grouped, present = grouped_by_class(images[None], labels[None], int(labels.max()) + 1)  # (1, way, most, d)
        adapted = self.classifier.attention(grouped, present)
        weights = present / present.sum(dim=-1, keepdim=True)
        centres = (weights.unsqueeze(-1).to(images.dtype) * adapted).sum(dim=2)
        return similarities(images[None], centres, "euclidean")[0] / self.contrastive_temperature
