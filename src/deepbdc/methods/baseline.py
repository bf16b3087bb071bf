"""Baseline: a linear layer that SGD fits to each task."""

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.sgd_head import SGDHeadClassifier
from deepbdc.embedding import Embedding
from deepbdc.methods.base import TransferMethod, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing


@methods.named("baseline")
class Baseline(TransferMethod):
    """Chen et al., "A Closer Look at Few-shot Classification", ICLR 2019.

    Ordinary training on all classes, then a new linear layer for each task, s_c(q) = w_c · q + b_c, trained with
    cross-entropy on the support images while the network stays as it is. The layer is trained as the authors do: SGD
    in batches of 4 with momentum 0.9, dampening 0.9 and weight decay 1e-3, from random weights.

    The authors' Conv4 ends in a flattened map, here every network ends in average pooling. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        epochs: Passes over the support images of a task.
        learning_rate: Of the layer of a task.
        seed: Of the initial weights and of the batches of a task, see `SGDHeadClassifier`.
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        epochs: int = 100,
        learning_rate: float = 0.01,
        seed: int = 0,
    ) -> None:
        embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        super().__init__(embedding, SGDHeadClassifier("linear", epochs=epochs, learning_rate=learning_rate, seed=seed))
