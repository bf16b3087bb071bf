"""MetaOptNet: a support vector machine or ridge regression, solved exactly for each task."""

from typing import Literal, get_args

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers import Classifier
from deepbdc.classifiers.multiclass_svm import MulticlassSVMClassifier
from deepbdc.classifiers.ridge import RidgeClassifier
from deepbdc.errors import UserError
from deepbdc.methods._vectors import Vector, vector_embedding
from deepbdc.methods.base import EpisodicMethod, methods
from deepbdc.preprocessing import Preprocessing

Head = Literal["svm", "ridge"]


@methods.named("metaoptnet")
class MetaOptNet(EpisodicMethod):
    """Lee et al., "Meta-Learning with Differentiable Convex Optimization", CVPR 2019.

    The classifier of a task is the solution α of a convex problem in its dual form: the SVM of Crammer and Singer (see
    `MulticlassSVMClassifier`), or ridge regression with α = 2 (XXᵀ + λI)⁻¹ Y. Scores are s_c(q) = γ · Σ_i α_ic ⟨x_i, q⟩
    with a learnable γ. The cross-entropy of the queries is differentiated through the optimality conditions.

    Differences from the original: it stops its interior-point method after 15 iterations, and 3 at test time; here the
    SVM is solved until a duality gap proves the result, in training and test alike. Its ResNet-12 has a 5×5 map
    (``removed_downsamplings: 0`` in a recipe) and raises the rate of DropBlock slowly. Recipes for two cores pre-train
    the network, which the original does not. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        head: ``"svm"`` or ``"ridge"``.
        C: Bound of the coefficients of the SVM.
        penalty: λ of ridge regression.
        scale: Start of γ, the parameter group ``scale``.
        vector: ``"flatten"``: all entries of the feature map, as in the original; ``"average"``: the mean over
            positions.
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        head: Head = "svm",
        C: float = 0.1,
        penalty: float = 50.0,
        scale: float = 1.0,
        vector: Vector = "flatten",
    ) -> None:
        if head not in get_args(Head):
            raise UserError(f"head must be one of {', '.join(get_args(Head))}, got {head!r}")
        embedding = vector_embedding(backbone, vector, preprocessing)
        super().__init__(embedding, _classifier(head, C, penalty, scale), head=head, C=C, penalty=penalty)


def _classifier(head: Head, C: float, penalty: float, scale: float) -> Classifier:
    if head == "svm":
        return MulticlassSVMClassifier(C, scale)
    return RidgeClassifier(penalty, scale, intercept=False, mean=False, target=2.0)
