"""The multi-class support vector machine of MetaOptNet, solved for many episodes at once, with gradients.

The problem is strictly convex with simple constraints, so a feasible primal-dual interior-point method solves it in a
few Newton steps; the gradients follow from the optimality conditions at the solution, by one more such step.
"""

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from deepbdc._modes import one_thread
from deepbdc.classifiers._products import class_weights
from deepbdc.classifiers._scale import Scale
from deepbdc.classifiers.base import Classifier, membership, positive
from deepbdc.classifiers.linear import LinearRule
from deepbdc.errors import Note, UserError


class MulticlassSVMClassifier(Classifier):
    """The SVM of Crammer and Singer in its dual form, the base learner of MetaOptNet (Lee et al., CVPR 2019).

    With the products K = XXᵀ of the s support images and their one-hot labels Y ``(s, way)``, the coefficients α
    ``(s, way)`` minimise ½ tr(αᵀ(K + εI)α) - tr(αᵀY), subject to α ≤ C·Y and Σ_m α_im = 0 for each image i. The score
    of class m is ``scale · Σ_i α_im ⟨x_i, q⟩``. There is no intercept, and features are not normalised.

    The solver works in float64 and stops when the duality gap proves that α has a relative error of at most
    ``tolerance``, in the norm ‖α‖² = tr(αᵀ(K + εI)α), which is about that of the class weights. Scores are
    differentiable once, with respect to support, query and scale. Classes may have unequal numbers of images.

    Args:
        C: Bound of the coefficients: weight of the losses against the penalty.
        scale: Start of a learnable factor on the scores, the parameter group ``scale`` (None: no factor).
        stabiliser: ε, which makes the solution unique. MetaOptNet has 1.
        tolerance: Largest relative error of the solution.
        max_iterations: When to give up, with a warning.
    """

    named_parameter_groups = {"scale": ("scale.scale",)}  # noqa: RUF012

    def __init__(
        self,
        C: float = 0.1,
        scale: float | None = 1.0,
        stabiliser: float = 1.0,
        tolerance: float = 1e-6,
        max_iterations: int = 100,
    ) -> None:
        super().__init__(C=C, scale=scale, stabiliser=stabiliser, tolerance=tolerance, max_iterations=max_iterations)
        self.C = positive("C", C)
        self.scale = Scale(None if scale is None else positive("scale", scale))
        self.stabiliser = positive("stabiliser", stabiliser)
        self.tolerance = positive("tolerance", tolerance)
        self.max_iterations = int(positive("max_iterations", max_iterations))

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, features), (e, s), (e, q, features) -> (e, q, way)``."""
        weights = self._weights(support, support_labels, way)
        scores: Tensor = self.scale(query @ weights.transpose(-2, -1))
        return scores

    def rule(self, support: Tensor, support_labels: Tensor, way: int) -> LinearRule:
        """``(e, s, features), (e, s)`` -> the scaled weights, without intercepts."""
        weights = self._weights(support.detach(), support_labels, way)
        none = weights.new_zeros(len(weights), 1, way, dtype=torch.float64)
        return LinearRule(self.scale.factor * weights, none, normalize=False)

    def coefficients(self, products: Tensor, support_labels: Tensor, way: int) -> Tensor:
        """α ``(e, s, way)`` from products ``(e, s, s)`` in float64 and labels ``(e, s)``, with their gradient."""
        matrix = products + self.stabiliser * torch.eye(
            products.shape[-1], dtype=products.dtype, device=products.device
        )
        targets = membership(support_labels, way, products.dtype)
        with one_thread():
            with torch.no_grad():
                solution = _solve(matrix, targets, self.C, self.tolerance, self.max_iterations)
            coefficients = self.C * targets - solution.slack
            if not matrix.requires_grad:
                return coefficients
            # The optimality conditions, differentiated at the solution, give dα = -P dG α, with the operator P of a
            # Newton step. This term is 0 and has that gradient.
            with torch.no_grad():
                step = _NewtonSystem(matrix, solution.multipliers / solution.slack)
            return coefficients - step.solve((matrix - matrix.detach()) @ coefficients)

    def _weights(self, support: Tensor, support_labels: Tensor, way: int) -> Tensor:
        """``(e, way, features)``."""
        if way < 2:
            raise UserError("an SVM separates classes: it needs at least 2 in an episode, got 1")
        wide = support.double()
        coefficients = self.coefficients(wide @ wide.transpose(-2, -1), support_labels, way)
        return class_weights(support, torch.ones_like(coefficients[..., 0]), coefficients)

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """Features in float64, and for each class a matrix, its factor and its inverse (at most a class per image)."""
        images, features = support
        way = min(images, _USUAL_WAY)
        return 8 * images * features + 4 * 8 * way * images**2 + 4 * images * features


_USUAL_WAY = 20
"""`working_memory` is not given the number of classes; more than these are rare."""


class _Solution(NamedTuple):
    """A solution of `_solve`, both ``(e, s, way)`` and positive."""

    slack: Tensor
    """C·Y - α."""
    multipliers: Tensor
    """Of the constraints slack ≥ 0."""


def _solve(matrix: Tensor, targets: Tensor, C: float, tolerance: float, max_iterations: int) -> _Solution:
    """Minimise ½ tr(αᵀGα) - tr(αᵀY) subject to α ≤ C·Y and rows of α that sum to 0, by an interior-point method.

    In b = C·Y - α the constraints are b ≥ 0 and rows that sum to C, and the gradient is Y - G α. The start b = C / way
    satisfies them. So does z = Y - G α - ν, the multipliers of b ≥ 0, which are positive if ν, one number per row, is
    small enough. Newton steps (Mehrotra's predictor and corrector, with one step length for b and z) keep both
    equations. Therefore tr(bᵀz) is the duality gap, and ½ tr((α - α*)ᵀG(α - α*)) is not larger.
    """
    way = targets.shape[-1]
    b = torch.full_like(targets, C / way)
    z = targets - matrix @ (C * targets - b)
    # All products b z are about as large as the gradient varies within a row.
    spread = (z - z.amin(dim=-1, keepdim=True)).amax(dim=(-2, -1), keepdim=True)
    z = z - z.amin(dim=-1, keepdim=True) + spread + torch.finfo(z.dtype).eps
    entries = targets.shape[-2] * way
    for _ in range(max_iterations):
        gap = (b * z).sum(dim=(-2, -1), keepdim=True)  # (e, 1, 1)
        coefficients = C * targets - b
        size = (coefficients * (matrix @ coefficients)).sum(dim=(-2, -1), keepdim=True)
        running = gap > 0.5 * tolerance**2 * size
        if not bool(running.any()):
            break
        system = _NewtonSystem(matrix, z / b)
        # Predictor: towards b z = 0. The gap that it would leave says how far the corrector may go.
        predicted = system.solve(-z)
        predicted_z = -z - z / b * predicted
        length = _longest_step(b, predicted, z, predicted_z)
        left = ((b + length * predicted) * (z + length * predicted_z)).sum(dim=(-2, -1), keepdim=True)
        centre = (left / gap) ** 3 * gap / entries
        step_z = (centre - predicted * predicted_z) / b - z  # without the part that depends on the step of b
        step = system.solve(step_z)
        step_z = step_z - z / b * step
        length = torch.where(running, 0.99 * _longest_step(b, step, z, step_z), 0.0)
        b, z = b + length * step, z + length * step_z
    else:
        warnings.warn(
            f"the SVM of {int(running.sum())} of {len(running)} episodes did not converge in {max_iterations} steps",
            Note,
            stacklevel=2,
        )
    return _Solution(b, z)


class _NewtonSystem:
    """Solves (G + D_m) x_m + ν = r_m for each class m, with Σ_m x_m = 0: one matrix ``(s, s)`` for each class.

    Args:
        matrix: G, ``(e, s, s)``.
        diagonal: The diagonals of D, ``(e, s, way)``.
    """

    def __init__(self, matrix: Tensor, diagonal: Tensor) -> None:
        of_classes = matrix.unsqueeze(1) + torch.diag_embed(diagonal.transpose(-2, -1))  # (e, way, s, s)
        self.factors = torch.linalg.cholesky(of_classes)
        inverses = torch.cholesky_inverse(self.factors)
        self.sum_factor = torch.linalg.cholesky(inverses.sum(dim=1))  # (e, s, s)

    def solve(self, right: Tensor) -> Tensor:
        """``(e, s, way) -> (e, s, way)``."""
        free = self._by_class(right)
        common = torch.cholesky_solve(free.sum(dim=-1, keepdim=True), self.sum_factor)  # ν, (e, s, 1)
        return free - self._by_class(common.expand_as(right))

    def _by_class(self, right: Tensor) -> Tensor:
        columns = right.transpose(-2, -1).unsqueeze(-1)  # (e, way, s, 1)
        return torch.cholesky_solve(columns, self.factors).squeeze(-1).transpose(-2, -1)


def _longest_step(b: Tensor, step: Tensor, z: Tensor, step_z: Tensor) -> Tensor:
    """The largest length up to 1 with which b and z stay non-negative, ``(e, 1, 1)``."""
    ratios = torch.stack([-step / b, -step_z / z])
    return 1 / ratios.amax(dim=(0, -2, -1)).clamp(min=1.0)[:, None, None]
