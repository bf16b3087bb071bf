"""Baseline++: a cosine layer that SGD fits to each task."""

from torch import nn

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.base import positive
from deepbdc.classifiers.sgd_head import SGDHeadClassifier
from deepbdc.embedding import Embedding
from deepbdc.methods._heads import ScaledHead
from deepbdc.methods.base import TransferMethod, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing

FEW_CLASSES = 200


@methods.named("baseline++")
class BaselinePlusPlus(TransferMethod):
    """Chen et al., "A Closer Look at Few-shot Classification", ICLR 2019.

    Baseline with cosines in place of inner products, both for all training classes and for each task:
    s_c(q) = scale · g_c · cos(w_c, q), with a learnable gain g_c for each class that starts from the length of w_c. So
    the images of a class get similar directions. A task's layer is trained as that of Baseline.

    The authors' Conv4 ends in a flattened map, here every network ends in average pooling. They add 1e-5 to the length
    of a representation before they divide by it; here it is 1e-6 in a task and nothing in training. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        scale: Factor on the scores of a task. The authors have 2, and 4 for one network.
        training_scale: Factor on the scores of the training classes. None is the authors' rule: 2 for at most 200
            classes, else 10.
        epochs: Passes over the support images of a task.
        learning_rate: Of the layer of a task.
        seed: Of the initial weights and of the batches of a task, see `SGDHeadClassifier`.
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        scale: float = 2.0,
        training_scale: float | None = None,
        epochs: int = 100,
        learning_rate: float = 0.01,
        seed: int = 0,
    ) -> None:
        embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        classifier = SGDHeadClassifier("cosine", scale, epochs=epochs, learning_rate=learning_rate, seed=seed)
        super().__init__(embedding, classifier, training_scale=training_scale)
        self.training_scale = None if training_scale is None else positive("training_scale", training_scale)

    def head(self, classes: int) -> nn.Module:
        """Cosines with a gain for each class."""
        scale = self.training_scale or (2.0 if classes <= FEW_CLASSES else 10.0)
        return ScaledHead(self.embedding.out_features, classes, scale, gain=True)
