"""R2D2: ridge regression in closed form."""

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.ridge import RidgeClassifier
from deepbdc.methods._vectors import Vector, vector_embedding
from deepbdc.methods.base import EpisodicMethod, methods
from deepbdc.preprocessing import Preprocessing


@methods.named("r2d2")
class R2D2(EpisodicMethod):
    """Bertinetto et al., "Meta-learning with differentiable closed-form solvers", ICLR 2019.

    Ridge regression from the n support vectors X ``(n, features + 1)``, with a constant 1 appended, to one-hot labels
    Y: W = (XᵀX / n + λI)⁻¹ XᵀY / n. Scores are s_c(q) = a · (q W_c + b_c) + β with learnable a and β. The
    cross-entropy of the queries is differentiated through the solution.

    Differences from the original: the feature vector is the flattened map of any backbone, where the original
    concatenates the third and fourth block of a wider Conv4; it has no pre-training, and recipes for two cores have
    it. The original starts a from 1e-4 on miniImageNet and from 10 on CIFAR-FS and Omniglot. β changes neither
    predictions nor the loss. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        penalty: λ.
        scale: Start of a, the parameter group ``scale`` (with β).
        learn_penalty: Learn the logarithm of λ, the parameter group ``penalty``. The original offers it, and keeps
            λ fixed by default.
        vector: ``"flatten"``: all entries of the feature map, as in the original; ``"average"``: the mean over
            positions.
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        penalty: float = 50.0,
        scale: float = 10.0,
        learn_penalty: bool = False,
        vector: Vector = "flatten",
    ) -> None:
        embedding = vector_embedding(backbone, vector, preprocessing)
        super().__init__(embedding, RidgeClassifier(penalty, scale, 0.0, learn_penalty=learn_penalty))
