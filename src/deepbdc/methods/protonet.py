"""ProtoNet: the nearest mean of average-pooled features."""

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers import create_classifier
from deepbdc.classifiers.prototype import Similarity
from deepbdc.embedding import Embedding
from deepbdc.methods.base import EpisodicMethod, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing


@methods.named("protonet")
class ProtoNet(EpisodicMethod):
    """Snell, Swersky, Zemel, "Prototypical Networks for Few-shot Learning", NeurIPS 2017.

    A class is the mean of its support representations, and the score of a query is minus its squared Euclidean distance
    to that mean: s_c(q) = -‖q - p_c‖². As in the DeepBDC paper it is pre-trained with cross-entropy before its episodic
    training, which the original is not (``pretrain: null`` in a recipe), and it is trained with as many classes per
    episode as it is tested with. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        similarity: Of queries and prototypes.
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        similarity: Similarity = "euclidean",
    ) -> None:
        embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        super().__init__(embedding, create_classifier("prototype", similarity=similarity))
