"""Meta DeepBDC: the nearest mean of BDC matrices."""

from typing import Literal

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers import Classifier, create_classifier
from deepbdc.classifiers.prototype import Similarity
from deepbdc.embedding import Embedding
from deepbdc.methods.base import Method, methods
from deepbdc.pooling import BDCPool
from deepbdc.preprocessing import Preprocessing


class MetaDeepBDC(Method):
    """Xie et al., "Joint Distribution Matters: Deep Brownian Distance Covariance", CVPR 2022, Sec. 3.3, Eq. 8.

    ProtoNet with BDC pooling. The released code scores by the inner product with one shot and by minus the squared
    Euclidean distance with more, and the published numbers are of that; the paper writes the inner product for both.
    ``similarity`` overrides the choice. The mean of the loss over queries is taken where the paper writes a sum.
    """

    stages = ("pretrain", "meta")

    def __init__(self, embedding: Embedding, shot: int, similarity: Similarity | None) -> None:
        self.similarity = similarity  # classifier_for needs it
        super().__init__(embedding, self.classifier_for(shot))

    def classifier_for(self, shot: int) -> Classifier:
        """Prototypes with the similarity for this number of shots."""
        usual: Similarity = "inner_product" if shot == 1 else "euclidean"
        return create_classifier("prototype", similarity=self.similarity or usual)


@methods.register
def meta_deepbdc(
    backbone: Backbone,
    shot: int = 1,
    preprocessing: Preprocessing | None = None,
    reduce_to: int | None = None,
    output: Literal["triangle", "weighted"] = "triangle",
    similarity: Similarity | None = None,
) -> Method:
    """BDC pooling and prototypes.

    Args:
        backbone: From images to feature maps.
        shot: Labelled images a class: 1 means inner products, more mean Euclidean distances.
        preprocessing: How images are to be prepared, if not as the backbone says.
        reduce_to: Channels after the 1×1 reduction (None: no reduction).
        output: The vector of the BDC matrix, see `BDCPool`.
        similarity: One for all numbers of shots.
    """
    pool = BDCPool(backbone.out_channels, reduce_to, output=output)
    return MetaDeepBDC(Embedding(backbone, pool, preprocessing), shot, similarity)
