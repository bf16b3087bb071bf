"""CTM: channels of feature maps weighted by what tells the classes of a task apart."""

from torch import nn

from deepbdc._modes import separate_random_numbers
from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.category_traversal import CategoryTraversalClassifier
from deepbdc.classifiers.prototype import Similarity
from deepbdc.embedding import Embedding
from deepbdc.methods._heads import AverageThen
from deepbdc.methods.base import EpisodicMethod, methods
from deepbdc.pooling import KeepMap
from deepbdc.preprocessing import Preprocessing


@methods.named("ctm")
class CTM(EpisodicMethod):
    """Li et al., "Finding Task-Relevant Features for Few-Shot Learning by Category Traversal", CVPR 2019.

    A module looks at all classes of a task and chooses a mask p of channels and positions, p = softmax(projector(class
    maps of the concentrator)); support and query maps become r(x) ⊙ p, with a reshaper r. A metric then compares them:
    here that of ProtoNet, s_c(q) = -τ ‖r(q) ⊙ p - mean r(x_c) ⊙ p‖² with a learnable τ (see
    `CategoryTraversalClassifier`).

    Differences from the original, whose module sizes we could not verify: the product with the mask is element by
    element, as the paper says and the released code does not; the projector is given mean and maximum over the classes
    in place of their concatenation, so that it takes any number of classes in any order; there is no down-sampling in
    the module; prototypes in place of a sum of distances to all shots. Pre-trained with cross-entropy on the average of
    the map. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        hidden: Channels of concentrator, projector and reshaper, the parameter group ``traversal``.
        blocks: Residual bottleneck blocks in each of the three.
        similarity: Of queries and prototypes.
        scale: Start of τ, the parameter group ``scale``.
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        hidden: int = 64,
        blocks: int = 2,
        similarity: Similarity = "euclidean",
        scale: float = 0.1,
    ) -> None:
        embedding = Embedding(backbone, KeepMap(backbone.out_channels), preprocessing)
        with separate_random_numbers():
            classifier = CategoryTraversalClassifier(backbone.out_channels, hidden, blocks, similarity, scale)
        super().__init__(embedding, classifier)

    def head(self, classes: int) -> nn.Module:
        """A linear head on the average of the map."""
        return AverageThen(super().head(classes))
