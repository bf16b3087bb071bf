"""S2M2: rotations and manifold mixup in training, a cosine layer for each task."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from torch import nn

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.base import positive
from deepbdc.classifiers.sgd_head import SGDHeadClassifier
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.methods._heads import ScaledHead, linear_head
from deepbdc.methods.base import TransferMethod, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing
from deepbdc.stages import BatchSettings, Classification, LossSettings, Objective
from deepbdc.stages.losses import MixupSettings, RotationSettings

HeadForm = Literal["cosine", "linear"]


def _losses_of_the_paper() -> dict[str, LossSettings]:
    return {
        "mixup": MixupSettings(alpha=2.0, layers=(0, 1, 2, 3)),
        "rotation": RotationSettings(weight=0.5, share=0.25, class_weight=1.0),
    }


@dataclass(frozen=True, kw_only=True)
class ManifoldMixupSettings(BatchSettings):
    """Ordinary training whose usual losses are manifold mixup, and rotations of a quarter of the images."""

    losses: Mapping[str, LossSettings] = field(default_factory=_losses_of_the_paper)
    """Losses by their names, in place of those of the paper."""
    own_weight: float = 0.0
    """Factor of the cross-entropy of images that are neither mixed nor rotated."""


class ManifoldMixup(Classification):
    """The second stage of S2M2, which goes on with all heads of the first one."""

    Settings = ManifoldMixupSettings

    def continue_from(self, before: Objective) -> None:
        """Take over the weights of the method, of the head, and of the losses that the stage before had as well."""
        super().continue_from(before)
        if isinstance(before, Classification):
            self.head.load_state_dict(before.head.state_dict())
        for name, loss in self.losses.items():
            if name in before.losses:
                loss.load_state_dict(before.losses[name].state_dict())


@methods.named("s2m2")
class S2M2(TransferMethod):
    """Mangla et al., "Charting the Right Manifold: Manifold Mixup for Few-shot Learning", WACV 2020.

    Two stages of ordinary training, with losses that any method can have (see `deepbdc.stages.losses`), and a cosine
    layer that SGD fits to each task, as in Baseline++: s_c(q) = scale · g_c · cos(w_c, q).

    In ``pretrain`` every image is seen from four sides: loss = 0.5 · cross-entropy(class) + 0.5 · cross-entropy(turn).
    A recipe says so by ``own_weight: 0`` and ``losses: {rotation: {weight: 0.5, class_weight: 1}}``; without, it is
    ordinary training. The stage ``mixup`` goes on with manifold mixup: h_i ← λ h_i + (1 - λ) h_j at a random layer, λ
    from Beta(2, 2); loss = λ · cross-entropy(y_i) + (1 - λ) · cross-entropy(y_j) + the loss of ``pretrain`` for a
    random quarter of the batch.

    The authors have WRN-28-10, which is mixed at its input or after one of its three groups of blocks; here the layers
    are a setting of the loss ``mixup``. They log the accuracy after 100, 200 and 300 passes over the support images of
    a task, and do not say which they report. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        head: Of the training classes: ``"cosine"`` with a gain for each class, or ``"linear"``, which the authors have
            for CIFAR-FS.
        scale: Factor on cosines, in training and in a task.
        epochs: Passes over the support images of a task.
        learning_rate: Of the layer of a task.
        seed: Of the initial weights and of the batches of a task, see `SGDHeadClassifier`.
    """

    objectives: ClassVar = {"pretrain": Classification, "mixup": ManifoldMixup}

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        head: HeadForm = "cosine",
        scale: float = 2.0,
        epochs: int = 300,
        learning_rate: float = 0.01,
        seed: int = 0,
    ) -> None:
        if head not in get_args(HeadForm):
            raise UserError(f"head must be one of {', '.join(get_args(HeadForm))}, got {head!r}")
        embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        classifier = SGDHeadClassifier("cosine", scale, epochs=epochs, learning_rate=learning_rate, seed=seed)
        super().__init__(embedding, classifier, head=head)
        self.scale = positive("scale", scale)

    def head(self, classes: int) -> nn.Module:
        """Cosines with a gain for each class, or a linear head."""
        if self.settings["head"] == "linear":
            return linear_head(self.embedding.out_features, classes)
        return ScaledHead(self.embedding.out_features, classes, self.scale, gain=True)
