"""CovNet: the nearest mean of second-moment matrices."""

from typing import Literal

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.prototype import Similarity
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.methods._prototypes import PrototypesByShot
from deepbdc.methods.base import methods
from deepbdc.pooling import CovarianceRootPool, Pool, SecondMomentPool
from deepbdc.preprocessing import Preprocessing


@methods.named("covnet")
class CovNet(PrototypesByShot):
    """Wertheimer, Hariharan, "Few-Shot Learning with Localization in Realistic Settings", CVPR 2019.

    ProtoNet with second-order pooling. The representation of an image is R, the signed square root of each entry of
    the second moment M = (1/hw) Σ_j x_j x_jᵀ of its feature vectors; s_c(q) = -‖R_q - mean of R over class c‖².

    This is the covariance pooling of that paper, without its localisation and its batch folding. As in the DeepBDC
    paper's rerun (supplement S2), it is pre-trained with cross-entropy, a 1×1 convolution may reduce the channels (best
    width for ResNet-12: 256), and one shot is scored by the inner product, because the Frobenius distance did poorly.
    That paper does not say whether its matrices were centred: its text writes so, the original does not (``center``).
    Nor does it say whether scores had a scale (``scale``), or what follows the convolution: here batch norm and ReLU,
    as in DeepBDC. Representations are upper triangles with √2 off the diagonal, which have the distances and inner
    products of the original's whole matrices. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class that `classifier` is made for; `classify` looks at the task itself.
        preprocessing: How images are prepared, if not as the backbone says.
        reduce_to: Channels after the 1×1 reduction (None: no reduction).
        center: Subtract the mean of the positions, so that M is the covariance.
        normalisation: ``"signed_root"`` of each entry; or ``"matrix_root"``, M^(1/2) by iterations (MPN-COV, which the
            DeepBDC paper names as covariance pooling outside few-shot learning), see `CovarianceRootPool`.
        similarity: One for all numbers of shots.
        scale: Start of a learnable factor on the scores, the parameter group ``scale`` (None: no factor).
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        reduce_to: int | None = None,
        center: bool = False,
        normalisation: Literal["signed_root", "matrix_root"] = "signed_root",
        similarity: Similarity | None = None,
        scale: float | None = None,
    ) -> None:
        kinds = {"signed_root": SecondMomentPool, "matrix_root": CovarianceRootPool}
        if normalisation not in kinds:
            raise UserError(f"normalisation must be one of {', '.join(kinds)}, got {normalisation!r}")
        pool: Pool = kinds[normalisation](backbone.out_channels, reduce_to, center=center)
        super().__init__(Embedding(backbone, pool, preprocessing), shot, similarity, scale=scale)
