"""LaplacianShot: the nearest prototype, where neighbouring queries are urged to agree."""

from collections.abc import Mapping

from torch import Tensor

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers import Classifier
from deepbdc.classifiers.laplacian import LaplacianClassifier
from deepbdc.embedding import Embedding
from deepbdc.methods._base_features import mean_of_rows
from deepbdc.methods.base import TrainingClasses, TransferMethod, by_shot, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing


@methods.named("laplacianshot")
class LaplacianShot(TransferMethod):
    """Ziko, Dolz, Granger, Ben Ayed, "Laplacian Regularized Few-Shot Learning", ICML 2020.

    Ordinary training on all classes. Then the queries of a task are assigned together:
    Y ← softmax(-‖q - m_c‖² + λ W Y) until it no longer changes, where W connects each query with its nearest
    neighbours; see `LaplacianClassifier`. Representations are averages over positions, from which the mean of all
    training images is subtracted (kept in `memory`), divided by their length.

    Prototypes are rectified, as in the released code: queries are shifted so that their mean is that of the support,
    and then take part in the prototypes. The shift assumes that all classes have equally many queries;
    ``rectify: false`` does not. If no image is nearest to a class, the class keeps the mean of its support images; the
    released code loses the class.

    The authors choose λ on the validation classes for each number of shots, between 0.1 and 1.5; the values that they
    chose are not known to us. The default is our choice on the validation classes of CIFAR-FS. The released code first
    matched predictions with true labels by the Hungarian method, which its authors corrected in 2021; the DeepBDC paper
    quotes accuracies from before. Transductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class: chooses among several λ.
        preprocessing: How images are prepared, if not as the backbone says.
        weight: λ, one number or one for each number of shots, ``{1: 0.7, 5: 0.3}``.
        neighbours: Nearest neighbours of a query in W; the released code counts the query itself as a third.
        rectify: Shift the queries, and let them take part in the prototypes.
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        weight: float | Mapping[int, float] = 0.3,
        neighbours: int = 2,
        rectify: bool = True,
    ) -> None:
        embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        classifier = LaplacianClassifier(by_shot(weight, shot), neighbours, rectify)
        super().__init__(embedding, classifier, weight=weight, neighbours=neighbours, rectify=rectify)

    def classifier_for(self, shot: int) -> Classifier:
        """The classifier with the λ for this number of shots."""
        given = self.settings
        return LaplacianClassifier(by_shot(given["weight"], shot), given["neighbours"], given["rectify"])

    def remember(self, base: TrainingClasses) -> None:
        """Keep the mean representation of the training images."""
        self.memory["mean"] = mean_of_rows(base.source(self), len(base.dataset))

    def classify(self, support: Tensor, support_labels: Tensor, query: Tensor) -> Tensor:
        """Scores ``(..., query, way)``, after the mean of the training images is subtracted."""
        mean = self.memory["mean"]
        return super().classify(support - mean, support_labels, query - mean)
