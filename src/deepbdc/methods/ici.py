"""ICI: logistic regression that takes in its own answers for the queries, the most credible ones first."""

from typing import Literal

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers import create_classifier
from deepbdc.classifiers.credibility import CredibilityClassifier
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.methods.base import TransferMethod, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing

Inference = Literal["transductive", "inductive"]


@methods.named("ici")
class ICI(TransferMethod):
    """Wang et al., "Instance Credibility Inference for Few-Shot Learning", CVPR 2020.

    Ordinary training on all classes. Then logistic regression on average-pooled features of length 1 predicts the
    queries of a task, and is fitted again and again with more of its own predictions as labels. Of each class, the five
    most credible ones come first: those whose incidental parameter γ_i in Y = X B + Γ is the first to become 0 along
    the path of a group lasso; see `CredibilityClassifier`.

    With ``inference: inductive`` it is the logistic regression alone, the first step of ICI: "Wang et al. LR" in the
    DeepBDC paper's table of CUB. It is Good-Embed without distillation and with C = 10, and is not transductive.

    Queries once added stay, and all of them get new labels in each round; the paper's text on this was not at hand. No
    number of queries per class is assumed, but each round takes equally many of each predicted class; where queries are
    unbalanced, ICI loses what it gains elsewhere over logistic regression. The second version of ICI (a logistic model
    of credibility, TPAMI 2021) is not here. Transductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        inference: ``"transductive"``, or ``"inductive"`` for logistic regression alone.
        C: Inverse strength of the penalty of logistic regression.
        dimensions: Principal components of the linear model; for ``"transductive"``.
        per_class: Queries of each predicted class that a round adds; for ``"transductive"``.
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        inference: Inference = "transductive",
        C: float = 10.0,
        dimensions: int = 5,
        per_class: int = 5,
    ) -> None:
        if inference not in ("transductive", "inductive"):
            raise UserError(f"inference must be 'transductive' or 'inductive', got {inference!r}")
        embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        if inference == "inductive":
            super().__init__(embedding, create_classifier("logistic", C=C), inference=inference)
        else:
            super().__init__(embedding, CredibilityClassifier(C, dimensions, per_class), inference=inference)
