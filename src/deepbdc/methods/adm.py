"""ADM: Gaussians of local descriptors, compared by the Kullback-Leibler divergence."""

from torch import nn

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.gaussian import GaussianClassifier, Measure
from deepbdc.embedding import Embedding
from deepbdc.methods._heads import AverageThen
from deepbdc.methods.base import EpisodicMethod, methods
from deepbdc.pooling import KeepMap
from deepbdc.preprocessing import Preprocessing


@methods.named("adm")
class ADM(EpisodicMethod):
    """Li et al., "Asymmetric Distribution Measure for Few-shot Learning", IJCAI 2020.

    The representation of an image is its feature map ``(d, h, w)``, a sample of h·w local descriptors. A query and a
    class are Gaussians of their descriptors, and the score is minus the divergence of the query from the class:
    s_c(q) = -KL(N(μ_q, Σ_q) ‖ N(μ_c, Σ_c)), see `GaussianClassifier`.

    This is ADM as the DeepBDC paper compares itself with it: the divergence alone, after a 1×1 reduction of channels,
    with a learnable scale. Supplement S2 describes under "ADM" a fusion with DN4, but Sec. 4.3 gives other numbers for
    "ADM+DN4" than the tables for "ADM", so the fusion is the method ``adm+dn4`` here. The paper does not say how the
    network is pre-trained (here with a linear head on the average of the reduced map), where the scale starts, and
    whether batch norm and ReLU follow the convolution (here they do, as in BDC pooling).

    The original has no reduction, no pre-training and no scale (``reduce_to=None``, ``scale=None`` and, in a recipe,
    ``pretrain: null``). Its five heads are the two measures, each also with ``contrast``, and a learned fusion with DN4
    that is tied to five classes and is not offered. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        reduce_to: Channels after the 1×1 reduction (None: no reduction).
        measure: ``"kl"``, or ``"wasserstein"``, the original's substitute for the Wasserstein distance.
        contrast: Compare with all other classes as well, the original's contrastive measure strategy.
        ridge: Added to the diagonal of each covariance.
        scale: Start of a learnable factor on the scores, the parameter group ``scale`` (None: no factor).
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        reduce_to: int | None = None,
        measure: Measure = "kl",
        contrast: bool = False,
        ridge: float = 0.01,
        scale: float | None = 1.0,
    ) -> None:
        embedding = Embedding(backbone, KeepMap(backbone.out_channels, reduce_to), preprocessing)
        super().__init__(embedding, GaussianClassifier(measure, contrast, ridge, scale))

    def head(self, classes: int) -> nn.Module:
        """A linear head on the average of the map."""
        return AverageThen(super().head(classes))
