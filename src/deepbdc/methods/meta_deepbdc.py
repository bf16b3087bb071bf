"""Meta DeepBDC: the nearest mean of BDC matrices."""

from typing import Literal

from torch import Tensor, nn

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.prototype import PrototypeForm, Similarity
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.methods._heads import linear_head
from deepbdc.methods._prototypes import PrototypesByShot
from deepbdc.methods.base import methods
from deepbdc.pooling import BDCPool, KeepMap
from deepbdc.pooling.bdc import Observations
from deepbdc.preprocessing import Preprocessing


@methods.named("meta_deepbdc")
class MetaDeepBDC(PrototypesByShot):
    """Xie et al., "Joint Distribution Matters: Deep Brownian Distance Covariance", CVPR 2022, Sec. 3.3, Eq. 8.

    ProtoNet with BDC pooling. The released code scores by the inner product with one shot and by minus the squared
    Euclidean distance with more, and the published numbers are of that; the paper writes the inner product for both.
    ``similarity`` overrides the choice. The loss is the mean over queries where the paper writes a sum. Inductive.

    With another ``prototype`` than the mean, the representation of an image is its feature map ``(d, h, w)`` after the
    reduction, and the classifier computes BDC matrices. The weights then have other names than those for the mean.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class that `classifier` is made for; `classify` looks at the task itself.
        preprocessing: How images are prepared, if not as the backbone says.
        reduce_to: Channels after the 1×1 reduction (None: no reduction).
        output: The vector of the BDC matrix, see `BDCPool`.
        similarity: One for all numbers of shots.
        observations: What the BDC matrix compares: ``"channels"``, or ``"positions"`` for the paper's ablation in
            Sec. 4.2, with (h·w)×(h·w) matrices.
        prototype: ``"mean"`` of the BDC matrices of a class, or a variant of supplement S3-1: the BDC matrix of the
            mean of their feature maps (``"mean_features"``), or of all their maps beside each other
            (``"concatenated_features"``, only with channels as observations).
        scale: Start of a learnable factor on the scores, the parameter group ``scale`` (None: no factor, as in the
            paper). A cosine needs one: between -1 and 1 the softmax of the scores is nearly flat.
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        reduce_to: int | None = None,
        output: Literal["triangle", "weighted"] = "triangle",
        similarity: Similarity | None = None,
        observations: Observations = "channels",
        prototype: PrototypeForm = "mean",
        scale: float | None = None,
    ) -> None:
        if observations == "positions" and prototype == "concatenated_features":
            raise UserError(
                "prototype='concatenated_features' has more positions than a query, so with observations='positions' "
                "their BDC matrices cannot be compared: choose observations='channels', or another prototype"
            )
        channels = backbone.out_channels
        if prototype == "mean":
            pool = BDCPool(channels, reduce_to, observations=observations, output=output)
            super().__init__(Embedding(backbone, pool, preprocessing), shot, similarity, scale=scale)
        else:
            maps = KeepMap(channels, reduce_to)
            pool = BDCPool(maps.dimensions, observations=observations, output=output)
            embedding = Embedding(backbone, maps, preprocessing)
            super().__init__(embedding, shot, similarity, prototype=prototype, pool=pool, scale=scale)

    def head(self, classes: int) -> nn.Module:
        """A linear head on the BDC matrix."""
        pool = self.classifier.pool
        if not isinstance(pool, BDCPool):
            return super().head(classes)
        return linear_head(pool.out_features_for(*self.embedding.map_size), classes)

    def features(self, images: Tensor) -> Tensor:
        """The BDC matrices, also where the representations are maps."""
        pool, representations = self.classifier.pool, super().features(images)
        return representations if pool is None else pool(representations)
