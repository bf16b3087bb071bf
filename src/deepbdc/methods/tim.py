"""TIM: class weights that maximise the information between the queries of a task and their predictions."""

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.information import InformationClassifier, Solver
from deepbdc.embedding import Embedding
from deepbdc.methods.base import TransferMethod, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing


@methods.named("tim")
class TIM(TransferMethod):
    """Boudiaf et al., "Transductive Information Maximization For Few-Shot Learning", NeurIPS 2020.

    Ordinary training on all classes. Then class weights w are fitted to the support images and all queries of a task:
    with p(c | z) = softmax_c(-τ/2 ‖z - w_c‖²), they minimise λ · cross-entropy(support) - H(mean p) + α · mean H(p),
    where means are over the queries; see `InformationClassifier`. Representations are averages over positions, divided
    by their length.

    TIM-ADM alternates closed forms and is the default here, because it is many times faster; TIM-GD takes 1,000 steps
    of Adam, and gives slightly higher accuracies in the paper. The term H(mean p) assumes that all classes have equally
    many queries. Transductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        solver: ``"adm"`` or ``"gd"``.
        iterations: How many; None: 150 of ``"adm"``, 1,000 of ``"gd"``.
        temperature: τ.
        support_weight: λ.
        conditional_weight: α.
        learning_rate: Of Adam, for ``"gd"``.
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        solver: Solver = "adm",
        iterations: int | None = None,
        temperature: float = 15.0,
        support_weight: float = 0.1,
        conditional_weight: float = 0.1,
        learning_rate: float = 1e-4,
    ) -> None:
        embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        classifier = InformationClassifier(
            solver, iterations, temperature, support_weight, conditional_weight, learning_rate
        )
        super().__init__(embedding, classifier)
