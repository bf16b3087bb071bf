"""Meta DeepBDC+DN4: BDC matrices and the nearest neighbours of local descriptors, on one network."""

from typing import cast

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.fusion import FusionClassifier
from deepbdc.classifiers.image_to_class import ImageToClassClassifier
from deepbdc.classifiers.prototype import PrototypeClassifier, Similarity, prototype
from deepbdc.methods._fusion import FusionLoss, FusionMethod
from deepbdc.methods._prototypes import usual_similarity
from deepbdc.methods.base import methods
from deepbdc.pooling import BDCPool, KeepMap
from deepbdc.preprocessing import Preprocessing


@methods.named("meta_deepbdc+dn4")
class MetaDeepBDCAndDN4(FusionMethod):
    """The fusion of Meta DeepBDC with DN4 of Xie et al., "Joint Distribution Matters", CVPR 2022, Sec. 4.3 and S2.

    Both are attached to the feature map ``(d, h, w)`` of one network, and each has a learnable scale and a softmax of
    its own; the two softmax outputs are added, and the loss is the cross-entropy of the sum:
    s_c(q) = ln ½ [softmax_c(α sim(A_q, P_c)) + softmax_c(β I2C(q, c))], with A_q the BDC matrix of the query, P_c the
    mean of those of the class, and I2C the measure of DN4, see `ImageToClassClassifier`.

    The paper combines them "similarly" to ADM and DN4, without more details. As there, ``loss="branches"`` is the other
    reading, the sum of the two cross-entropies; DN4 sees the map of the network, before the reduction. As in Meta
    DeepBDC, the similarity is the inner product with one shot and minus the squared Euclidean distance with more, and
    pre-training is cross-entropy of a linear head on the BDC matrix. The number of neighbours is that of DN4, and the
    starts of the scales are our choice. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class that `classifier` is made for; `classify` looks at the task itself.
        preprocessing: How images are prepared, if not as the backbone says.
        reduce_to: Channels after the 1×1 reduction, in the branch of BDC (None: no reduction).
        similarity: Of BDC matrices, one for all numbers of shots.
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
        similarity: Similarity | None = None,
        scale: float = 1.0,
        neighbours: int = 3,
        dn4_scale: float = 0.05,
        loss: FusionLoss = "fused",
    ) -> None:
        bdc = prototype(similarity or usual_similarity(shot), scale=scale)
        dn4 = ImageToClassClassifier(neighbours, dn4_scale)
        pools = [BDCPool(backbone.out_channels, reduce_to), KeepMap(backbone.out_channels)]
        classifier = FusionClassifier([bdc, dn4], pools)
        super().__init__(backbone, preprocessing, classifier, loss, similarity=similarity, scale=scale)

    def classifier_for(self, shot: int) -> FusionClassifier:
        """The same branches, with the similarity of BDC matrices for this number of shots."""
        bdc, dn4 = self.classifier.branches
        similarity = self.settings["similarity"] or usual_similarity(shot)
        if similarity == bdc.similarity:
            return self.classifier
        other = prototype(similarity, scale=self.settings["scale"])
        other.scale = cast(PrototypeClassifier, bdc).scale  # the learnt one
        return FusionClassifier([other, cast(ImageToClassClassifier, dn4)], list(self.classifier.pools))
