"""The classifier of DeepEMD: optimal transport from the positions of a query to those of a class."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from deepbdc.classifiers._transport import Solver, checked_solver, transport
from deepbdc.classifiers.base import Classifier, positive
from deepbdc.classifiers.prototype import class_means

_LEAST_WEIGHT = 1e-3
_MOMENTUM = 0.9
_USUAL_WAY = 20
"""`working_memory` is not given the number of classes; more than these are rare."""


class TransportClassifier(Classifier):
    """Scores are matched similarities of positions (Zhang et al., CVPR 2020).

    A query has the feature vectors A_i, a class B_j, at r positions each. The flow F moves the weights a of the query
    to those b of the class at the least cost Σ_ij F_ij (1 - cos(A_i, B_j)), and the score is
    scale · Σ_ij F_ij cos(A_i, B_j). A position weighs as much as it resembles the other image:
    a_i ∝ max(A_i · mean(B), 0) + 0.001, b_j likewise, and both sum to 1. The cosines are of vectors without their mean
    over channels, the weights of the vectors as they are.

    With one image per class, B is its map. With more, B starts as the mean of their maps and is then fitted to the
    support set ("structured fully connected layer"): gradient steps on the cross-entropy of the scores of the support
    images, with momentum 0.9, in which the weights of positions count as constants. All episodes of a batch take their
    steps together. Scores are differentiable once, with respect to query and support; the steps count as constants.

    All is computed in float64: small differences would grow over many steps.

    Args:
        scale: Factor on the scores, fixed.
        centre: Subtract from each feature vector its mean over channels before cosines are taken.
        steps: Gradient steps for the maps of the classes, 0 for none.
        rate: Learning rate of these steps.
        solver: ``"exact"`` or ``"entropic"``, see `deepbdc.classifiers._transport.transport`.
        regularisation: ε of the entropic solver.
    """

    takes = "maps"

    def __init__(
        self,
        scale: float = 12.5,
        centre: bool = True,
        steps: int = 100,
        rate: float = 100.0,
        solver: Solver = "exact",
        regularisation: float = 0.02,
    ) -> None:
        super().__init__(
            scale=scale, centre=centre, steps=steps, rate=rate, solver=solver, regularisation=regularisation
        )
        self.scale = positive("scale", scale)
        self.centre = centre
        self.steps = int(positive("steps", steps)) if steps else 0
        self.rate = positive("rate", rate)
        self.solver = checked_solver(solver)
        self.regularisation = positive("regularisation", regularisation)

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, d, h, w), (e, s), (e, q, d, h, w) -> (e, q, way)``."""
        rows, query_rows = _rows(support), _rows(query)
        classes = class_means(rows.flatten(2), support_labels, way).unflatten(2, rows.shape[2:])
        if self.steps and rows.shape[1] > way:
            fitted = self._fitted(rows.detach(), support_labels, classes.detach())
            classes = classes + (fitted - classes.detach())
        scores = self._scores(self._units(query_rows), self._units(classes), position_weights(query_rows, classes))
        return scores.to(support.dtype)

    def _units(self, rows: Tensor) -> Tensor:
        """Vectors of length 1, whose products are the cosines: ``(..., d) -> (..., d)``. A zero vector stays 0."""
        return normalize(rows - rows.mean(dim=-1, keepdim=True) if self.centre else rows, dim=-1)

    def _scores(self, images: Tensor, classes: Tensor, weights: tuple[Tensor, Tensor]) -> Tensor:
        """Units ``(e, n, r, d)`` and ``(e, way, r, d)``, with weights ``(e, n, way, r)`` of both -> ``(e, n, way)``."""
        # The flow sums to 1, so that Σ F cos = 1 - Σ F (1 - cos).
        cost = 1 - _products(images, classes).transpose(2, 3)
        return self.scale * (1 - transport(cost, *weights, self.solver, self.regularisation))

    def _fitted(self, support: Tensor, labels: Tensor, start: Tensor) -> Tensor:
        """The rows of the classes ``(e, way, r, d)`` after the steps, from the rows of the support ``(e, s, r, d)``."""
        maps = nn.Parameter(start.clone())
        # With equal momentum and dampening the buffer is a running mean of gradients.
        optimiser = torch.optim.SGD([maps], lr=self.rate, momentum=_MOMENTUM, dampening=_MOMENTUM)
        units = self._units(support)
        with torch.enable_grad():
            for _ in range(self.steps):
                scores = self._scores(units, self._units(maps), position_weights(support, maps.detach()))
                losses = cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum") / labels.shape[1]
                optimiser.zero_grad()
                losses.backward()
                optimiser.step()
        return maps.detach()

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """Some copies of the rows, and the costs and flows of all pairs of an image and a class."""
        images, channels, height, width = support
        way, positions = min(images, _USUAL_WAY), height * width
        rows = 4 * 8 * (images + query[0] + way) * channels * positions
        copies = 5 if self.solver == "exact" else 9
        return rows + copies * 8 * max(query[0], images) * way * positions**2


def position_weights(images: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """How much each position of an image resembles the mean of a class, and the other way round; not normalised.

    Rows ``(e, n, r, d)`` and ``(e, way, c, d)`` -> ``(e, n, way, r)`` and ``(e, n, way, c)``.
    """
    of_images = _products(images, classes.mean(dim=2, keepdim=True)).squeeze(-1).transpose(-2, -1)
    of_classes = _products(images.mean(dim=2, keepdim=True), classes).squeeze(2)
    return of_images.clamp(min=0) + _LEAST_WEIGHT, of_classes.clamp(min=0) + _LEAST_WEIGHT


def _products(images: Tensor, classes: Tensor) -> Tensor:
    """Between all positions: ``(e, n, r, d), (e, way, c, d) -> (e, n, r, way, c)``."""
    products = images.flatten(1, 2) @ classes.flatten(1, 2).transpose(-2, -1)
    return products.reshape(*images.shape[:3], *classes.shape[1:3])


def _rows(maps: Tensor) -> Tensor:
    """The vectors at all positions, in float64: ``(e, n, d, h, w) -> (e, n, h · w, d)``."""
    return maps.double().flatten(3).transpose(-2, -1).contiguous()
