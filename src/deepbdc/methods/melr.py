"""MELR: two episodes of the same classes read from each other, and their classifiers learn to agree."""

import torch
from torch import Tensor

from deepbdc._modes import full_precision, separate_random_numbers
from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.base import positive
from deepbdc.classifiers.cross_episode import CrossEpisodeClassifier
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.methods.base import EpisodicMethod, at_least_float, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing
from deepbdc.stages import Classification, Loss, PairedEpisodes, TrainingEpisode
from deepbdc.stages.objectives import classification_loss, distillation_loss


@methods.named("melr")
class MELR(EpisodicMethod):
    """Fei et al., "MELR: Meta-Learning via Modeling Episode-Level Relationships for Few-Shot Learning", ICLR 2021.

    A training step has two episodes of the same classes without a common image. All images of each episode read from
    the support set S of the other one, x' = x + softmax(x W_q (S W_k)ᵀ / √d) S W_v, and queries are classified by
    -‖q' - p'_c‖² / T₀ (`CrossEpisodeClassifier`). The loss is the mean cross-entropy of the two episodes plus
    λ · T² · KL(softmax(teacher / T) ‖ softmax(student / T)) over the queries of both. The teacher is the classifier of
    the episode that is right more often, and gets no gradient; the student is the other one.

    There is no public code. Known from the published outline of the algorithm: the pairs of episodes with disjoint
    images, attention across them, the cross-entropy in each, the union of the adapted queries, the more accurate
    episode as teacher, distillation with a temperature, and a weighted sum of the two losses. The rest is our reading.
    The equation of the attention, a residual one with a single head and without norm or dropout, is as we remember it.
    At test time an episode reads from its own support set, as there is no other. The accuracy that chooses the teacher
    is that on the queries of both episodes. The divergence has the factor T², as in other distillations. The
    temperature T₀ of the distances is our addition (1 leaves it out). W_v starts from 0, so that training starts from
    ProtoNet. The values of λ, T and T₀ are our choice. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        temperature: T₀.
        consistency: λ.
        distillation_temperature: T.
    """

    objectives = {"pretrain": Classification, "meta": PairedEpisodes}  # noqa: RUF012
    classifier: CrossEpisodeClassifier

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        temperature: float = 64.0,
        consistency: float = 0.1,
        distillation_temperature: float = 4.0,
    ) -> None:
        if consistency < 0:
            raise UserError(f"consistency must not be negative, got {consistency}")
        embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        with separate_random_numbers():
            classifier = CrossEpisodeClassifier(embedding.out_features, temperature)
        super().__init__(
            embedding, classifier, consistency=consistency, distillation_temperature=distillation_temperature
        )
        self.consistency = consistency
        self.distillation_temperature = positive("distillation_temperature", distillation_temperature)

    def episode_loss(self, episode: TrainingEpisode, label_smoothing: float = 0.0) -> Loss:
        """The loss of a pair of episodes, which `PairedEpisodes` gives as one with twice the images."""
        images = self.embed(episode.images)
        with full_precision(images):
            support, query = episode.split(at_least_float(images))
            return self.pair_loss(
                _halves(support, episode.support_labels), _halves(query, episode.query_labels), label_smoothing
            )

    def pair_loss(self, supports: "Pair", queries: "Pair", label_smoothing: float = 0.0) -> Loss:
        """The loss of two episodes, from the representations and labels of their support and query images."""
        way = int(supports[0][1].max()) + 1
        read = self.classifier.adapted
        others = (supports[1][0], supports[0][0])
        adapted = [read(rows, other) for (rows, _), other in zip(supports, others, strict=True)]
        asked = torch.cat([read(rows, other) for (rows, _), other in zip(queries, others, strict=True)])
        labels = torch.cat([own for _, own in queries])
        scores = [  # of each episode's classifier, for the queries of both
            self.classifier.adapted_scores(rows[None], own[None], asked[None], way)[0]
            for rows, (_, own) in zip(adapted, supports, strict=True)
        ]
        ends = [len(queries[0][1]), len(queries[1][1])]
        losses = [
            classification_loss(found.split(ends)[place], labels.split(ends)[place], label_smoothing)
            for place, found in enumerate(scores)
        ]
        right = [(found.detach().argmax(dim=1) == labels).sum() for found in scores]
        first_teaches = right[0] >= right[1]
        teacher = torch.where(first_teaches, scores[0], scores[1]).detach()
        student = torch.where(first_teaches, scores[1], scores[0])
        agreement = distillation_loss(student, teacher, self.distillation_temperature)
        value = (losses[0].value + losses[1].value) / 2 + self.consistency * agreement
        accuracy = (losses[0].numbers["accuracy"] + losses[1].numbers["accuracy"]) / 2
        return Loss(value, {"accuracy": accuracy, "agreement": agreement.detach()})


Pair = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Representations ``(n, d)`` and labels ``(n,)`` of two episodes."""


def _halves(rows: Tensor, labels: Tensor) -> Pair:
    """Every second image of each class goes to the second episode."""
    of_class = torch.nn.functional.one_hot(labels)
    rank = (of_class.cumsum(dim=0) * of_class).sum(dim=1)  # 1, 2, ... within each class
    first = rank % 2 == 1
    return (rows[first], labels[first]), (rows[~first], labels[~first])
