"""STL DeepBDC: logistic regression on BDC matrices."""

from collections.abc import Mapping
from typing import Literal

from deepbdc.backbones.base import Backbone
from deepbdc.embedding import Embedding
from deepbdc.methods._transfer import LogisticTransfer
from deepbdc.methods.base import methods
from deepbdc.pooling import BDCPool
from deepbdc.pooling.bdc import Observations
from deepbdc.preprocessing import Preprocessing


@methods.named("stl_deepbdc")
class STLDeepBDC(LogisticTransfer):
    """Xie et al., "Joint Distribution Matters: Deep Brownian Distance Covariance", CVPR 2022, Sec. 3.3.

    Good-Embed with BDC pooling ("simple transfer learning"): ordinary training, self-distillation, then logistic
    regression on the normalised upper triangle of the BDC matrix for each task. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class: chooses among several C.
        preprocessing: How images are prepared, if not as the backbone says.
        reduce_to: Channels after the 1×1 reduction (None: no reduction; the paper's choice for ResNet-12 is 128).
        output: The vector of the BDC matrix, see `BDCPool`.
        C: Inverse strength of the penalty, one number or one for each number of shots, ``{1: 0.1, 5: 2.0}``.
        observations: What the BDC matrix compares: ``"channels"``, or ``"positions"`` for the paper's ablation in
            Sec. 4.2, with (h·w)×(h·w) matrices.
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        reduce_to: int | None = None,
        output: Literal["triangle", "weighted"] = "triangle",
        C: float | Mapping[int, float] = 1.0,
        observations: Observations = "channels",
    ) -> None:
        pool = BDCPool(backbone.out_channels, reduce_to, observations=observations, output=output)
        super().__init__(Embedding(backbone, pool, preprocessing), shot, C)
