"""TADAM: prototypes by a scaled distance, in a network that is conditioned on the task."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from deepbdc._modes import full_precision, separate_random_numbers
from deepbdc.backbones.base import Backbone, norms_of, transformed_outputs
from deepbdc.classifiers import LinearRule
from deepbdc.classifiers.distance import Distance, DistanceClassifier
from deepbdc.classifiers.prototype import class_means
from deepbdc.data.dataset import Dataset
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.feature_bank import Pictures, Source
from deepbdc.methods._task_conditioning import TaskConditioning
from deepbdc.methods.base import EpisodicMethod, at_least_float, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing
from deepbdc.stages import Classification, Objective
from deepbdc.stages.co_training import CoTraining


@methods.named("tadam")
class TADAM(EpisodicMethod):
    """Oreshkin et al., "TADAM: Task dependent adaptive metric for improved few-shot learning", NeurIPS 2018.

    The support images pass through the network, and the mean of their class means is the code c of the task. From it,
    `TaskConditioning` computes scales γ and shifts β, and the network runs again on support and query images with
    γ ⊙ x + β after each batch norm (FiLM). Prototypes p_c are then compared by a scaled distance:
    s_c(q) = -α ‖q - p_c‖.

    The stage ``meta`` also trains ordinary classification of all training classes, without conditioning, in steps that
    become rarer (`CoTraining`). The network looks at the pictures of each task again, so nothing is embedded
    beforehand: the "representation" of an image is the image, and `classify` takes pictures ``(..., n, 3, h, w)``. All
    images of a task share γ and β.

    The batch norms of the main path of each block are conditioned, those of shortcuts are not. α is learnt, as the
    paper says; the released code keeps it at its start (``groups: {scale: {frozen: true}}`` in a recipe). Not verified,
    so our choice: ReLU in the networks that compute γ and β, after each addition. Differences from the original: the
    losses of the episode and of the classification batch are added in one step, where it takes two steps with two
    optimisers; networks with ReLU or LeakyReLU in place of swish; as many queries of each class. Recipes for two cores
    pre-train the network, which the original does not. Inductive.

    Args:
        backbone: From images to feature maps; it must know its blocks (``conv4`` and the ResNets do).
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        scale: Start of α, the parameter group ``scale``.
        distance: ``"euclidean"`` as in the released code, or ``"squared"`` for ‖q - p_c‖².
    """

    objectives: ClassVar[Mapping[str, type[Objective]]] = {"pretrain": Classification, "meta": CoTraining}

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        scale: float = 7.5,
        distance: Distance = "euclidean",
    ) -> None:
        embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        super().__init__(embedding, DistanceClassifier(scale, distance))
        self.widths = [norm.num_features for norm in self._norms()]
        with separate_random_numbers():
            self.conditioning = TaskConditioning(embedding.out_features, self.widths)

    def embed(self, images: Tensor) -> Tensor:
        """The images themselves: the network is another one for each task."""
        return images

    def source(self, dataset: Dataset, **options: Any) -> Source:
        """The pictures of a data set."""
        return Pictures(dataset, self.embedding.preprocessing)

    def classify(self, support: Tensor, support_labels: Tensor, query: Tensor) -> Tensor:
        """Scores ``(..., query, way)`` from pictures ``(..., n, 3, h, w)``, all episodes at once."""
        batch, count = support_labels.shape[:-1], support_labels.shape[-1]
        labels = support_labels.reshape(-1, count)
        pictures = [images.reshape(len(labels), *images.shape[-4:]) for images in (support, query)]
        codes = self.task_codes(pictures[0], labels)
        representations = self.conditioned(torch.cat(pictures, dim=1), codes)
        scores = super().classify(representations[:, :count], labels, representations[:, count:])
        return scores.reshape(*batch, *scores.shape[1:])

    def task_codes(self, support: Tensor, labels: Tensor) -> Tensor:
        """The mean of the class means of each task, ``(e, s, 3, h, w), (e, s) -> (e, features)``."""
        representations = self.embedding(support.flatten(0, 1)).reshape(*support.shape[:2], -1)
        with full_precision(support):
            rows = at_least_float(representations)
            return class_means(rows, labels.long(), int(labels.max()) + 1).mean(dim=1)

    def conditioned(self, images: Tensor, codes: Tensor) -> Tensor:
        """Representations in the network of each task, ``(e, n, 3, h, w), (e, features) -> (e, n, features)``."""
        transforms = self.conditioning.transforms(codes, images.shape[1])
        with transformed_outputs(self._norms(), transforms):
            representations: Tensor = self.embedding(images.flatten(0, 1))
        return representations.reshape(*images.shape[:2], -1)

    def rule(self, support: Tensor, support_labels: Tensor, way: int) -> LinearRule:
        """There is none: the representations of the queries depend on the task, too."""
        raise UserError("TADAM conditions its network on each task")

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """About four maps per image that are as large as the first of the network."""
        return 4 * 4 * (support[0] + query[0]) * self.widths[0] * support[-2] * support[-1]

    def _norms(self) -> list[_BatchNorm]:
        """The batch norms that are conditioned, in the order of the data."""
        return [norm for block in self.embedding.backbone.blocks_in_order() for norm in norms_of(block).main]
