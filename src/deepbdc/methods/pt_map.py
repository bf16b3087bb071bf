"""PT-MAP: features made Gaussian-like by a power transform, and queries distributed by optimal transport."""

from collections.abc import Mapping

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers import Classifier
from deepbdc.classifiers.balanced_transport import BalancedTransportClassifier
from deepbdc.embedding import Embedding
from deepbdc.methods.base import TransferMethod, by_shot, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing


@methods.named("pt_map")
class PTMAP(TransferMethod):
    """Hu, Gripon, Pateux, "Leveraging the Feature Distribution in Transfer-based Few-Shot Learning", ICANN 2021.

    Ordinary training on all classes. Then, for each task, a power transform z^½ of average-pooled features, and in
    turn: the transport P of queries to class centres μ, P = Sinkhorn(exp(-λ ‖q - μ_c‖²)) with equal shares for all
    classes, and μ_c ← μ_c + a (mean of c under P - μ_c); see `BalancedTransportClassifier`.

    P gives each class the same share of the queries, so accuracy drops far where they are unbalanced. Features below 0,
    which a network with leaky ReLU gives, are transformed by their absolute value and keep their sign; the original has
    none. Its reduction by a QR decomposition is left out, because it changes no distance. The released script has
    a = 0.2; for one shot we remember 0.4, without having checked it. The original trains its network as S2M2 does, with
    rotations and manifold mixup; here it is ordinary training. Transductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class: chooses among several a.
        preprocessing: How images are prepared, if not as the backbone says.
        power: Exponent of the power transform.
        regularisation: λ.
        step: a, one number or one for each number of shots, ``{1: 0.4, 5: 0.2}``.
        iterations: Of transport and centres.
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        power: float = 0.5,
        regularisation: float = 10.0,
        step: float | Mapping[int, float] = 0.2,
        iterations: int = 20,
    ) -> None:
        embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        classifier = BalancedTransportClassifier(power, regularisation, by_shot(step, shot), iterations)
        super().__init__(embedding, classifier, step=step)

    def classifier_for(self, shot: int) -> Classifier:
        """The classifier with the step for this number of shots."""
        return BalancedTransportClassifier(**{**self.classifier.settings, "step": by_shot(self.settings["step"], shot)})
