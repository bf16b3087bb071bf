"""CTX: prototypes that attention aligns with each position of the query."""

from torch import nn

from deepbdc._modes import separate_random_numbers
from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.cross_attention import CrossAttentionClassifier
from deepbdc.embedding import Embedding
from deepbdc.methods._heads import AverageThen
from deepbdc.methods.base import EpisodicMethod, methods
from deepbdc.pooling import KeepMap
from deepbdc.preprocessing import Preprocessing


@methods.named("ctx")
class CTX(EpisodicMethod):
    """Doersch, Gupta, Zisserman, "CrossTransformers: Spatially-Aware Few-Shot Transfer", NeurIPS 2020.

    The representation of an image is its feature map ``(d, h, w)``. Each position i of a query attends to all positions
    of all support images of a class, which gives a prototype t_i aligned with the query, and the score compares values
    position by position: s_c(q) = -1/(h·w) · Σ_i ‖v_i - t_i‖². See `CrossAttentionClassifier`.

    As in the DeepBDC paper's counterparts the network is pre-trained here with cross-entropy on the average of the map;
    the heads of keys and values start with the episodes. The episodes of the original in which every support image is a
    class of its own (SimCLR episodes) are not implemented. The original divides each gradient by its norm; with Adam, a
    small ``clip_norm`` in a recipe does the same. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        dimension: Numbers in a key and in a value. The weights of their heads are the parameter group ``attention``.
    """

    def __init__(
        self, backbone: Backbone, shot: int = 1, preprocessing: Preprocessing | None = None, dimension: int = 128
    ) -> None:
        embedding = Embedding(backbone, KeepMap(backbone.out_channels), preprocessing)
        with separate_random_numbers():
            classifier = CrossAttentionClassifier(backbone.out_channels, dimension)
        super().__init__(embedding, classifier)

    def head(self, classes: int) -> nn.Module:
        """A linear head on the average of the map."""
        return AverageThen(super().head(classes))
