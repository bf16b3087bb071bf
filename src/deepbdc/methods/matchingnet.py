"""Matching networks: a vote of all support images."""

from deepbdc._modes import separate_random_numbers
from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.matching import MatchingClassifier
from deepbdc.embedding import Embedding
from deepbdc.methods.base import EpisodicMethod, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing


@methods.named("matchingnet")
class MatchingNet(EpisodicMethod):
    """Vinyals et al., "Matching Networks for One Shot Learning", NeurIPS 2016.

    A soft nearest neighbour: each support image votes for its class with a weight that grows with its cosine c_i to the
    query, p_c = Σ_{i in c} softmax_i(τ · c_i), and the score is log p_c. See `MatchingClassifier`.

    ``full_context`` adds the full context embeddings of the paper, LSTMs over the support set. With them the scores
    depend on the order of the support images, so they are off by default. Their equations, and the number of steps, are
    as we remember the appendix of the paper, without having checked it.

    Differences from the original: it has no τ, so its softmax is nearly uniform; 100 is the value of a later
    reproduction ("A Closer Look at Few-shot Classification", ICLR 2019), which keeps it fixed (freeze the group
    ``scale``). The log-probability is exact, where that reproduction adds 1e-6 to p. The original has no pre-training
    (``pretrain: null`` in a recipe) and flattens the features of Conv4, which are averaged here. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        scale: Start of τ, the parameter group ``scale`` (None: 1, not learnt).
        normalise_query: Compare by the cosine. Meta-Dataset's version brings only the support to length 1 (with
            ``scale`` None), and its authors say that this matters.
        full_context: Use full context embeddings; their weights are the parameter group ``context``.
        steps: Steps of the LSTM for queries (None: as many as there are support images).
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        scale: float | None = 100.0,
        normalise_query: bool = True,
        full_context: bool = False,
        steps: int | None = 5,
    ) -> None:
        embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        with separate_random_numbers():
            classifier = MatchingClassifier(embedding.out_features, scale, normalise_query, full_context, steps)
        super().__init__(embedding, classifier)
