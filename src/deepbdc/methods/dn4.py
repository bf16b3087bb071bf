"""DN4: local descriptors and their nearest neighbours in each class."""

from torch import nn

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.image_to_class import ImageToClassClassifier
from deepbdc.embedding import Embedding
from deepbdc.methods._heads import AverageThen
from deepbdc.methods.base import EpisodicMethod, methods
from deepbdc.pooling import KeepMap
from deepbdc.preprocessing import Preprocessing


@methods.named("dn4")
class DN4(EpisodicMethod):
    """Li et al., "Revisiting Local Descriptor Based Image-to-Class Measure for Few-Shot Learning", CVPR 2019.

    The representation of an image is its feature map ``(d, h, w)``, a set of h·w local descriptors. The score of a
    class adds, over the descriptors of the query, their k largest cosines with all descriptors of the class:
    s_c(q) = Σ_i Σ_{j in top-k_c(i)} cos(q_i, x_j).

    The original has no pre-training and its own Conv4 with 21×21 positions; as in the DeepBDC paper's rerun it is
    pre-trained here with cross-entropy on the average of the map (``pretrain: null`` leaves that out). The original has
    no scale; its scores grow with the number of positions. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        neighbours: k.
        scale: Start of a learnable factor on the scores, the parameter group ``scale`` (None: no factor).
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        neighbours: int = 3,
        scale: float | None = None,
    ) -> None:
        embedding = Embedding(backbone, KeepMap(backbone.out_channels), preprocessing)
        super().__init__(embedding, ImageToClassClassifier(neighbours, scale))

    def head(self, classes: int) -> nn.Module:
        """A linear head on the average of the map."""
        return AverageThen(super().head(classes))
