"""Meta-Baseline: the nearest mean by scaled cosine."""

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers import create_classifier
from deepbdc.embedding import Embedding
from deepbdc.methods.base import EpisodicMethod, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing


@methods.named("meta_baseline")
class MetaBaseline(EpisodicMethod):
    """Chen et al., "Meta-Baseline: Exploring Simple Meta-Learning for Few-Shot Learning", ICCV 2021.

    Ordinary training on all classes, then episodes with the cosine to the mean of a class, times a learnable scale:
    s_c(q) = τ · cos(q, p_c), τ starting at 10. Representations are averaged first and normalised then. Without the
    second stage (``meta: null`` in a recipe) it is the paper's Classifier-Baseline. The original has 80-pixel images
    and a narrower ResNet-12. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        scale: Start of τ, the parameter group ``scale``.
    """

    def __init__(
        self, backbone: Backbone, shot: int = 1, preprocessing: Preprocessing | None = None, scale: float = 10.0
    ) -> None:
        embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        super().__init__(embedding, create_classifier("prototype", similarity="cosine", scale=scale))
