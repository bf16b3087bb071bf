"""Ridge regression to one-hot labels, solved in closed form for many episodes at once."""

import math

import torch
from torch import Tensor, nn

from deepbdc.classifiers._scale import Scale
from deepbdc.classifiers.base import Classifier, membership, positive
from deepbdc.classifiers.linear import LinearRule


class RidgeClassifier(Classifier):
    """The base learner of R2D2 (Bertinetto et al., ICLR 2019) and of MetaOptNet-RR (Lee et al., CVPR 2019).

    The weights W minimise ‖X W - Y‖² + λ ‖W‖² for the support features X ``(s, features)`` and one-hot labels Y:
    W = (XᵀX + λI)⁻¹ XᵀY = Xᵀ (XXᵀ + λI)⁻¹ Y. The smaller of the two systems is solved, in float64. Scores are
    ``scale · (q W + b) + offset``. Everything is differentiable. Classes may have unequal numbers of images.

    Args:
        penalty: λ.
        scale: Start of a learnable factor on the scores, the parameter group ``scale`` (None: no factor).
        offset: Start of a learnable number that is added to all scores, in the same group (None: no number). It
            changes neither predictions nor the cross-entropy.
        intercept: Append a constant 1 to each representation, so that b is the last, penalised, row of W.
        mean: Divide the sum of squared errors by the number s of support images, so that λ acts like s · λ.
        target: The label of the own class in Y; the others are 0.
        learn_penalty: Learn the logarithm of λ, the parameter group ``penalty``.
    """

    named_parameter_groups = {"scale": ("scale.scale", "offset"), "penalty": ("log_penalty",)}  # noqa: RUF012

    def __init__(
        self,
        penalty: float = 50.0,
        scale: float | None = 1.0,
        offset: float | None = None,
        intercept: bool = True,
        mean: bool = True,
        target: float = 1.0,
        learn_penalty: bool = False,
    ) -> None:
        super().__init__(
            penalty=penalty,
            scale=scale,
            offset=offset,
            intercept=intercept,
            mean=mean,
            target=target,
            learn_penalty=learn_penalty,
        )
        self.penalty = positive("penalty", penalty)
        self.scale = Scale(None if scale is None else positive("scale", scale))
        self.offset = None if offset is None else nn.Parameter(torch.tensor(float(offset)))
        self.log_penalty = nn.Parameter(torch.tensor(math.log(penalty))) if learn_penalty else None
        self.intercept = intercept
        self.mean = mean
        self.target = positive("target", target)

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, features), (e, s), (e, q, features) -> (e, q, way)``."""
        weights, intercepts = self._solution(support, support_labels, way)
        scores: Tensor = self.scale(query @ weights.transpose(-2, -1) + intercepts)
        return scores if self.offset is None else scores + self.offset.to(scores.dtype)

    def rule(self, support: Tensor, support_labels: Tensor, way: int) -> LinearRule:
        """``(e, s, features), (e, s)`` -> the scaled weights and intercepts."""
        weights, intercepts = (part.detach() for part in self._solution(support, support_labels, way))
        factor = self.scale.factor
        return LinearRule(factor * weights, factor * intercepts.double(), normalize=False)

    def _solution(self, support: Tensor, support_labels: Tensor, way: int) -> tuple[Tensor, Tensor]:
        """Weights ``(e, way, features)`` and intercepts ``(e, 1, way)``."""
        rows = torch.cat([support, torch.ones_like(support[..., :1])], dim=-1) if self.intercept else support
        targets = self.target * membership(support_labels, way, torch.float64)
        images, columns = rows.shape[-2:]
        penalty = self.log_penalty.double().exp() if self.log_penalty is not None else self.penalty
        ridge = (
            penalty
            * (images if self.mean else 1)
            * torch.eye(min(images, columns), dtype=torch.float64, device=rows.device)
        )
        if images <= columns:
            coefficients = torch.linalg.solve((rows @ rows.transpose(-2, -1)).double() + ridge, targets)
            solution = coefficients.transpose(-2, -1).to(rows.dtype) @ rows
        else:
            correlations = rows.transpose(-2, -1) @ targets.to(rows.dtype)
            moments = (rows.transpose(-2, -1) @ rows).double()
            solution = torch.linalg.solve(moments + ridge, correlations.double()).transpose(-2, -1).to(rows.dtype)
        if not self.intercept:
            return solution, solution.new_zeros(len(solution), 1, way)
        return solution[..., :-1], solution[..., -1:].transpose(-2, -1)

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """A copy of the features, the system and its factors, and the weights of at most as many classes as images."""
        images, features = support
        return 2 * 4 * images * (features + 1) + 3 * 8 * min(images, features + 1) ** 2 + 8 * images**2
