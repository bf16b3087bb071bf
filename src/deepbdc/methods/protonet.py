"""ProtoNet: the nearest mean of average-pooled features."""

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers import create_classifier
from deepbdc.classifiers.prototype import Similarity
from deepbdc.embedding import Embedding
from deepbdc.methods.base import Method, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing


class ProtoNet(Method):
    """Snell, Swersky, Zemel, "Prototypical Networks for Few-shot Learning", NeurIPS 2017.

    A class is the mean of its support representations; a query's score is minus the squared Euclidean distance to it.
    As in the DeepBDC paper it is pre-trained with cross-entropy before its episodic training, which the original is
    not (``pretrain: null`` in a recipe), and is trained with as many classes an episode as it is tested with.
    """

    stages = ("pretrain", "meta")


@methods.register
def protonet(
    backbone: Backbone, shot: int = 1, preprocessing: Preprocessing | None = None, similarity: Similarity = "euclidean"
) -> Method:
    """Average pooling and prototypes.

    Args:
        backbone: From images to feature maps.
        shot: Labelled images a class; it changes nothing here.
        preprocessing: How images are to be prepared, if not as the backbone says.
        similarity: Of queries and prototypes.
    """
    embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
    return ProtoNet(embedding, create_classifier("prototype", similarity=similarity))
