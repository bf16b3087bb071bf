"""Neg-Cosine: training with a negative margin, then a cosine layer that SGD fits to each task."""

from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.base import positive
from deepbdc.classifiers.sgd_head import SGDHeadClassifier
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.methods._heads import ScaledHead
from deepbdc.methods.base import TransferMethod, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing
from deepbdc.stages import Loss
from deepbdc.stages.objectives import percent_right

MarginForm = Literal["cosine", "softmax"]


@methods.named("neg_cosine")
class NegCosine(TransferMethod):
    """Liu et al., "Negative Margin Matters: Understanding Margin in Few-shot Classification", ECCV 2020.

    Training on all classes with cross-entropy of s · (θ_c - m · [c = y]), where θ_c = cos(w_c, z) and y is the true
    class. The margin m is a little below 0, which helps the true class: training classes become less compact, and new
    classes are told apart better. Then a new layer without margin for each task, s_c(q) = 5 · cos(w_c, q), trained as
    that of Baseline.

    ``form="softmax"`` is the authors' Neg-Softmax, with θ_c = w_c · z in both places. The authors also subtract the
    smallest θ of each image, which changes neither its loss nor its gradient and is left out. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        form: What θ is: ``"cosine"`` or ``"softmax"``.
        margin: m. The authors have -0.01 to -0.05 for cosines, and -0.005 to -0.3 for inner products.
        scale: s in training. None is the authors' value: 30 for cosines, 5 for inner products (10 with ResNet-12).
        task_scale: s in a task.
        epochs: Passes over the support images of a task.
        learning_rate: Of the layer of a task.
        seed: Of the initial weights and of the batches of a task, see `SGDHeadClassifier`.
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        form: MarginForm = "cosine",
        margin: float = -0.02,
        scale: float | None = None,
        task_scale: float = 5.0,
        epochs: int = 100,
        learning_rate: float = 0.01,
        seed: int = 0,
    ) -> None:
        if form not in get_args(MarginForm):
            raise UserError(f"form must be one of {', '.join(get_args(MarginForm))}, got {form!r}")
        embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        classifier = SGDHeadClassifier(
            "cosine" if form == "cosine" else "linear",
            task_scale,
            bias=False,
            gain=False,
            epochs=epochs,
            learning_rate=learning_rate,
            seed=seed,
        )
        super().__init__(embedding, classifier, form=form, margin=margin, scale=scale)
        self.form = form
        self.margin = margin
        self.scale = (30.0 if form == "cosine" else 5.0) if scale is None else positive("scale", scale)

    def head(self, classes: int) -> nn.Module:
        """Scaled cosines or inner products, without intercepts. The margin belongs to the loss."""
        return ScaledHead(self.embedding.out_features, classes, self.scale, cosine=self.form == "cosine")

    def class_loss(self, scores: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Loss:
        """Cross-entropy with the margin. The accuracy is that of the scores without it."""
        with_margin = scores - self.scale * self.margin * one_hot(labels, scores.shape[1]).to(scores.dtype)
        value = cross_entropy(with_margin, labels, label_smoothing=label_smoothing)
        return Loss(value, {"accuracy": percent_right(scores, labels)})
