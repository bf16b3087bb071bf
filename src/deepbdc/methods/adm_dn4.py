"""ADM+DN4: Gaussians of local descriptors and their nearest neighbours, on one network."""

from torch import nn

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.fusion import FusionClassifier
from deepbdc.classifiers.gaussian import GaussianClassifier
from deepbdc.classifiers.image_to_class import ImageToClassClassifier
from deepbdc.methods._fusion import FusionLoss, FusionMethod
from deepbdc.methods._heads import AverageThen
from deepbdc.methods.base import methods
from deepbdc.pooling import KeepMap
from deepbdc.preprocessing import Preprocessing


@methods.named("adm+dn4")
class ADMAndDN4(FusionMethod):
    """The fusion of ADM (IJCAI 2020) and DN4 (CVPR 2019) of Xie et al., "Joint Distribution Matters", CVPR 2022, S2.

    Both are attached to the feature map ``(d, h, w)`` of one network, and each has a learnable scale and a softmax of
    its own; the two softmax outputs are added, and the loss is the cross-entropy of the sum:
    s_c(q) = ln ½ [softmax_c(-α KL(q ‖ c) / d) + softmax_c(β I2C(q, c))], see `GaussianClassifier` and
    `ImageToClassClassifier`.

    We read "separately fed to softmax and are then added for the final cross entropy loss" literally. The other reading
    is the sum of the two cross-entropies, ``loss="branches"``. The paper does not say which map DN4 sees (here that of
    the network, before the reduction), the number of its neighbours (here that of DN4; ADM's code has 1), where the
    scales start, and how the network is pre-trained (here with a linear head on the average of the reduced map).
    ADM's own fusion, batch norm and a weighted sum of scores, is tied to five classes and is not offered. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        reduce_to: Channels after the 1×1 reduction, in the branch of ADM (None: no reduction).
        ridge: Added to the diagonal of each covariance.
        scale: Start of α, in the parameter group ``scale``.
        neighbours: Of each descriptor, in the branch of DN4.
        dn4_scale: Start of β, in the parameter group ``scale``.
        loss: ``"fused"``, or ``"branches"`` for the sum of the cross-entropies of both branches.
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        reduce_to: int | None = None,
        ridge: float = 0.01,
        scale: float = 1.0,
        neighbours: int = 3,
        dn4_scale: float = 0.05,
        loss: FusionLoss = "fused",
    ) -> None:
        branches = [GaussianClassifier(ridge=ridge, scale=scale), ImageToClassClassifier(neighbours, dn4_scale)]
        pools = [KeepMap(backbone.out_channels, reduce_to), KeepMap(backbone.out_channels)]
        super().__init__(backbone, preprocessing, FusionClassifier(branches, pools), loss)

    def head(self, classes: int) -> nn.Module:
        """A linear head on the average of the reduced map."""
        return AverageThen(super().head(classes))
