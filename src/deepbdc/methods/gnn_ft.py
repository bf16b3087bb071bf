"""GNN + FT: a graph network on features that are changed at random in training, for tests on other domains."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from deepbdc.backbones.base import Backbone, norms_of, transformed_outputs
from deepbdc.classifiers.graph import GraphClassifier, QueriesPerGraph, Statistics
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.methods.base import EpisodicMethod, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing
from deepbdc.stages import Loss, TrainingEpisode


@methods.named("gnn_ft")
class GNNWithFT(EpisodicMethod):
    """Tseng et al., "Cross-Domain Few-Shot Classification via Learned Feature-Wise Transformation", ICLR 2020.

    A graph network (`GraphClassifier`, from Garcia and Bruna, ICLR 2018) carries the labels of the support images to
    the queries. In episodic training only, a feature-wise transformation follows the last batch norm of each residual
    block and that of its shortcut: x ← γ ⊙ x + β with γ ~ N(1, σ_γ²) and β ~ N(0, σ_β²), drawn anew for each channel in
    each episode, and the same for all its images. The changed features imitate those of another domain.

    This is the form "FT" with fixed σ_γ and σ_β, trained on one domain, as the DeepBDC paper quotes it for miniImageNet
    → CUB. The form "LFT", which learns both by a second loss on a pseudo-unseen domain and has an auxiliary
    classification loss, needs several training domains and is left out. No script of the single-domain form was
    released; we read σ as a standard deviation, and start from a pre-trained network as the authors do. A network
    without residual blocks, such as Conv4, is transformed after each batch norm.

    By default the graph network takes any number of classes, has one query per graph, and uses running statistics in
    its batch norms. With ``slots=5``, ``queries_per_graph="way"`` and ``statistics="batch"`` it is that of the
    original, which is transductive, because queries share graphs and statistics; a graph is then made for one query of
    each class, so that all classes must have equally many. The default is different: Inductive.

    Args:
        backbone: From images to feature maps; it must know its blocks (``conv4`` and the ResNets do).
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        scale_spread: σ_γ.
        shift_spread: σ_β.
        reduce_to: Numbers in a node of the graph, besides the label. The graph network is the parameter group
            ``graph``.
        hidden: Width of the graph network, see `GraphClassifier`.
        slots: The number of classes for one-hot labels as in the original (None: any number of classes).
        queries_per_graph: ``"one"``, or ``"way"``: as many as there are classes.
        statistics: What the batch norms of the graph network normalise by: ``"running"`` averages of the training, or
            those of the ``"batch"``, which is the episode.
    """

    classifier: GraphClassifier

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        scale_spread: float = 0.3,
        shift_spread: float = 0.5,
        reduce_to: int = 128,
        hidden: int = 96,
        slots: int | None = None,
        queries_per_graph: QueriesPerGraph = "one",
        statistics: Statistics = "running",
    ) -> None:
        if scale_spread < 0 or shift_spread < 0:
            raise UserError(f"the spreads must not be negative, got {scale_spread} and {shift_spread}")
        embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        graph = GraphClassifier(embedding.out_features, reduce_to, hidden, slots, queries_per_graph, statistics)
        super().__init__(embedding, graph, scale_spread=scale_spread, shift_spread=shift_spread)
        self.transform = partial(feature_wise, scale_spread, shift_spread)
        self.transformed_norms()  # says so now if the backbone does not know its blocks

    def episode_loss(self, episode: TrainingEpisode, label_smoothing: float = 0.0) -> Loss:
        """The cross-entropy of the scores, with transformed features in training mode."""
        with self.transformation():
            return super().episode_loss(episode, label_smoothing)

    @contextmanager
    def transformation(self) -> Iterator[None]:
        """Inside this context the network transforms its features, if it is in training mode."""
        norms = self.transformed_norms() if self.training else []
        with transformed_outputs(norms, [self.transform] * len(norms)):
            yield

    def transformed_norms(self) -> list[_BatchNorm]:
        """The batch norms whose outputs are transformed."""
        blocks = self.embedding.backbone.blocks_in_order()
        residual = [block for block in blocks if hasattr(block, "downsample")]
        norms = [norms_of(block) for block in residual or blocks]
        return [norm for main, shortcut in norms for norm in (main[-1], *shortcut)]


def feature_wise(scale_spread: float, shift_spread: float, maps: Tensor) -> Tensor:
    """γ ⊙ maps + β with one random γ and β for each channel of ``(n, channels, h, w)``."""
    drawn = torch.randn(2, maps.shape[1], 1, 1, device=maps.device, dtype=maps.dtype)
    scale, shift = drawn.unbind()
    return maps * (1 + scale_spread * scale) + shift_spread * shift
