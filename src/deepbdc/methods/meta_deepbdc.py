"""Meta DeepBDC: the nearest mean of BDC matrices."""

from typing import Literal

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers import Classifier, create_classifier
from deepbdc.classifiers.prototype import Similarity
from deepbdc.embedding import Embedding
from deepbdc.methods.base import EpisodicMethod, methods
from deepbdc.pooling import BDCPool
from deepbdc.preprocessing import Preprocessing


@methods.named("meta_deepbdc")
class MetaDeepBDC(EpisodicMethod):
    """Xie et al., "Joint Distribution Matters: Deep Brownian Distance Covariance", CVPR 2022, Sec. 3.3, Eq. 8.

    ProtoNet with BDC pooling. The released code scores by the inner product with one shot and by minus the squared
    Euclidean distance with more, and the published numbers are of that; the paper writes the inner product for both.
    ``similarity`` overrides the choice. The loss is the mean over queries where the paper writes a sum. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class that `classifier` is made for; `classify` looks at the task itself.
        preprocessing: How images are prepared, if not as the backbone says.
        reduce_to: Channels after the 1×1 reduction (None: no reduction).
        output: The vector of the BDC matrix, see `BDCPool`.
        similarity: One for all numbers of shots.
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        reduce_to: int | None = None,
        output: Literal["triangle", "weighted"] = "triangle",
        similarity: Similarity | None = None,
    ) -> None:
        pool = BDCPool(backbone.out_channels, reduce_to, output=output)
        classifier = _prototypes(similarity, shot)
        super().__init__(Embedding(backbone, pool, preprocessing), classifier, similarity=similarity)

    def classifier_for(self, shot: int) -> Classifier:
        """Prototypes with the similarity for this number of shots."""
        return _prototypes(self.settings["similarity"], shot)


def _prototypes(similarity: Similarity | None, shot: int) -> Classifier:
    usual: Similarity = "inner_product" if shot == 1 else "euclidean"
    return create_classifier("prototype", similarity=similarity or usual)
