"""DeepEMD: optimal transport between the positions of two images."""

from torch import nn

from deepbdc.backbones.base import Backbone
from deepbdc.classifiers._transport import Solver
from deepbdc.classifiers.transport import TransportClassifier
from deepbdc.embedding import Embedding
from deepbdc.methods._heads import AverageThen
from deepbdc.methods.base import EpisodicMethod, methods
from deepbdc.pooling import GridPool, KeepMap
from deepbdc.preprocessing import Preprocessing


@methods.named("deepemd")
class DeepEMD(EpisodicMethod):
    """Zhang et al., "DeepEMD: Few-Shot Image Classification with Differentiable Earth Mover's Distance", CVPR 2020.

    The representation of an image is its feature map, r vectors of d channels. The earth mover's distance matches the
    positions A_i of a query and B_j of a class: s_c(q) = scale · Σ_ij F_ij cos(A_i, B_j), with the flow F that
    minimises Σ_ij F_ij (1 - cos(A_i, B_j)). A position weighs as much as it resembles the mean of the other image. With
    several images per class, the map of the class is fitted to them by gradient steps. See `TransportClassifier`.

    Differences from the original: it trains through a solver of quadratic programs in float64, and tests with one of
    linear programs. Here the linear program is solved in both, and its dual solution is the gradient (see
    `deepbdc.classifiers._transport`). It fits the maps of classes to random batches of 4 support images, here each step
    takes all of them, so that scores do not depend on their order. In training with several shots, it has no gradient
    through the maps of the classes, here there is one through their start, the mean. The usual training has one shot.
    Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        scale: Factor on the scores, fixed.
        centre: Subtract from each feature vector its mean over channels before cosines are taken.
        grid: Average the map to ``grid`` × ``grid`` positions (None: take it as it is). The time of the exact solver
            grows about with the square of the number of positions.
        steps: Gradient steps for the maps of classes with several images.
        rate: Learning rate of these steps; the released code has 100 in tests and 0.1 in training.
        solver: ``"exact"``, or ``"entropic"`` for an approximation that solves all problems at once, also on a GPU. On
            a CPU the exact solver is usually faster. ``benchmarks/transport.py`` measures the error.
        regularisation: ε of the entropic solver.
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        scale: float = 12.5,
        centre: bool = True,
        grid: int | None = None,
        steps: int = 100,
        rate: float = 100.0,
        solver: Solver = "exact",
        regularisation: float = 0.02,
    ) -> None:
        channels = backbone.out_channels
        pool = KeepMap(channels) if grid is None else GridPool(channels, grid)
        classifier = TransportClassifier(scale, centre, steps, rate, solver, regularisation)
        super().__init__(Embedding(backbone, pool, preprocessing), classifier)

    def head(self, classes: int) -> nn.Module:
        """A linear head on the average of the map."""
        return AverageThen(super().head(classes))
