"""Good-Embed: logistic regression on average-pooled features."""

from collections.abc import Mapping

from deepbdc.backbones.base import Backbone
from deepbdc.embedding import Embedding
from deepbdc.methods.base import Method, TransferMethod, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing


class GoodEmbed(TransferMethod):
    """Tian et al., "Rethinking Few-Shot Image Classification: a Good Embedding Is All You Need?", ECCV 2020.

    Ordinary training on all classes, sequential self-distillation, then logistic regression on normalised features for
    each task. As the DeepBDC paper reruns it: no augmented copies of the support set (the original has five of each).
    """


@methods.register
def good_embed(
    backbone: Backbone,
    shot: int = 1,
    preprocessing: Preprocessing | None = None,
    C: float | Mapping[int, float] = 1.0,
) -> Method:
    """Average pooling and logistic regression.

    Args:
        backbone: From images to feature maps.
        shot: Labelled images a class: chooses among several C.
        preprocessing: How images are to be prepared, if not as the backbone says.
        C: Inverse strength of the penalty, one number or one for each number of shots, ``{1: 0.1, 5: 2.0}``.
    """
    return GoodEmbed(Embedding(backbone, AveragePool(backbone.out_channels), preprocessing), shot, C)
