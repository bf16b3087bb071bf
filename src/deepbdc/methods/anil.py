"""ANIL: a learnt starting point for the last layer, adapted to each task."""

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.adapted_linear import AdaptedLinearClassifier
from deepbdc.embedding import Embedding
from deepbdc.methods.base import EpisodicMethod, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing


@methods.named("anil")
class ANIL(EpisodicMethod):
    """Raghu et al., "Rapid Learning or Feature Reuse? Towards Understanding the Effectiveness of MAML", ICLR 2020.

    MAML whose inner loop adapts only the last, linear layer: W ← W - α ∇ L_support(W), J times. The outer loss, the
    cross-entropy of the queries after these steps, trains the network. It stays the same for all tasks, so every image
    is embedded once.

    Differences from the original: by default the last layer starts from 0, so that the method works for any number and
    order of classes (``slots`` gives the original, see `AdaptedLinearClassifier`); features are averaged over
    positions, where the original flattens them; batch norm uses its running statistics at test time, so the method is
    inductive. ``rate`` belongs to a loss that is the mean over the support set.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        steps: Inner steps in training.
        test_steps: Inner steps at test time.
        rate: α.
        first_order: Treat the gradients of the inner steps as constants in the backward pass.
        slots: Number of classes with learnt start weights (None: start from 0).
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        steps: int = 5,
        test_steps: int = 10,
        rate: float = 0.1,
        first_order: bool = False,
        slots: int | None = None,
    ) -> None:
        embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        head = AdaptedLinearClassifier(embedding.out_features, slots, steps, test_steps, rate, first_order)
        super().__init__(embedding, head)
