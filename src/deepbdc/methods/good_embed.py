"""Good-Embed: logistic regression on average-pooled features."""

from collections.abc import Mapping

from deepbdc.backbones.base import Backbone
from deepbdc.embedding import Embedding
from deepbdc.methods._transfer import LogisticTransfer
from deepbdc.methods.base import methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing


@methods.named("good_embed")
class GoodEmbed(LogisticTransfer):
    """Tian et al., "Rethinking Few-Shot Image Classification: a Good Embedding Is All You Need?", ECCV 2020.

    Ordinary training on all classes, sequential self-distillation, then logistic regression on normalised
    average-pooled features for each task. As the DeepBDC paper reruns it: no augmented copies of the support set (the
    original has five of each image). Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class: chooses among several C.
        preprocessing: How images are prepared, if not as the backbone says.
        C: Inverse strength of the penalty, one number or one for each number of shots, ``{1: 0.1, 5: 2.0}``.
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        C: float | Mapping[int, float] = 1.0,
    ) -> None:
        super().__init__(Embedding(backbone, AveragePool(backbone.out_channels), preprocessing), shot, C)
