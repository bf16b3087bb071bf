"""Logistic regression, for many episodes at once, in as many dimensions as there are support images.

The reduction is exact; the products of float32 features are rounded, which shows for C above about 1,000 only.
"""

import warnings

import torch
from torch import Tensor

from deepbdc._modes import one_thread
from deepbdc.classifiers._products import centred, centred_among, class_weights, support_products
from deepbdc.classifiers.base import classifiers, membership, positive
from deepbdc.classifiers.linear import LinearClassifier, LinearRule


class LogisticClassifier(LinearClassifier):
    """Multinomial logistic regression with an L2 penalty on the weights and a free intercept.

    The classifier of STL DeepBDC (Xie et al., CVPR 2022, Sec. 3.3) and Good-Embed (Tian et al., ECCV 2020). It gives
    what scikit-learn's ``LogisticRegression(C=C)`` gives when run to convergence. Scores are logits; no
    gradient flows through them.

    If some classes have more support images than others, that regression expects them to be more frequent among the
    queries, too, and prefers them wherever it is in doubt. With ``equal_classes``, it expects all classes equally
    often: the logarithm of the number of its support images is subtracted from the logits of a class.
    """

    def __init__(
        self, C: float, normalize: bool, tolerance: float, max_iterations: int, equal_classes: bool = False
    ) -> None:
        more = {"equal_classes": True} if equal_classes else {}
        super().__init__(C=C, normalize=normalize, tolerance=tolerance, max_iterations=max_iterations, **more)
        self.C = positive("C", C)
        self.normalize = normalize
        self.tolerance = positive("tolerance", tolerance)
        self.max_iterations = int(positive("max_iterations", max_iterations))
        self.equal_classes = equal_classes

    def for_equal_classes(self) -> "LogisticClassifier":
        """The same regression with ``equal_classes``."""
        return LogisticClassifier(self.C, self.normalize, self.tolerance, self.max_iterations, equal_classes=True)

    def rule(self, support: Tensor, support_labels: Tensor, way: int) -> LinearRule:
        """``(e, s, features), (e, s)`` -> logits."""
        products, factors = support_products(support, self.normalize)
        coefficients, intercept = self.fit_products(products, support_labels, way)
        # `fit_products` gives the intercept at the mean of the support set: subtract the products with that mean.
        intercept = intercept - (products.mean(dim=1, keepdim=True) @ coefficients)
        if self.equal_classes:
            intercept = intercept - log_frequencies(support_labels, way, intercept.dtype)
        return LinearRule(class_weights(support, factors, coefficients), intercept, self.normalize)

    def fit_products(
        self, products: Tensor, support_labels: Tensor, way: int, used: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Fit to the inner products of the support set: ``(e, s, s), (e, s) -> (e, s, way), (e, 1, way)``.

        The weights of a class are the support images times its coefficients, which sum to 0. The intercepts are the
        logits at the mean of the support set.

        Args:
            products: The inner products.
            support_labels: The classes of the images.
            way: The number of classes.
            used: True for the images to fit ``(e, s)``; the others are as if they were not there (default: all).
        """
        # For two classes scikit-learn has one weight vector w, the difference of our two: ½‖w‖² = ‖W‖², twice our
        # penalty ½‖W‖².
        C = self.C / 2 if way == 2 else self.C
        with one_thread():
            return _fit(products, support_labels, way, C, self.tolerance, self.max_iterations, used)


@classifiers.register
def logistic(
    C: float = 1.0,
    normalize: bool = True,
    tolerance: float = 1e-6,
    max_iterations: int = 20_000,
    equal_classes: bool = False,
) -> LogisticClassifier:
    """Logistic regression.

    Args:
        C: Weight of the losses against the penalty, as in scikit-learn. The paper does not state it; its released code
            uses 0.1 (1-shot) and 2 (5-shot) on miniImageNet, 0.05 and 30 on tieredImageNet, 20 on CUB.
        normalize: Divide each representation by its length (+ 1e-6) first.
        tolerance: About how far logits may be from their exact values; relative to their size, if that is below 1.
        max_iterations: When to give up, with a warning.
        equal_classes: Expect all classes equally often, also if some have more support images than others.
    """
    return LogisticClassifier(C, normalize, tolerance, max_iterations, equal_classes)


def log_frequencies(labels: Tensor, way: int, dtype: torch.dtype) -> Tensor:
    """How much more frequent each class is than on average, as a logarithm: ``(e, s) -> (e, 1, way)``.

    It is 0 if all classes have as many images, and for a class without any.
    """
    counts = membership(labels, way, dtype).sum(dim=1, keepdim=True)
    logs: Tensor = (counts.clamp(min=1) * way / labels.shape[1]).log()
    return logs


def _fit(
    products: Tensor, labels: Tensor, way: int, C: float, tolerance: float, max_iterations: int, used: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Coefficients ``(e, s, way)`` and intercepts ``(e, 1, way)`` that minimise C Σ loss + ½‖W‖² over used images."""
    present = torch.ones_like(products[..., :1]) if used is None else used.to(products.dtype).unsqueeze(-1)  # (e, s, 1)
    # With a free intercept, the weights do not depend on the origin. With the origin at the mean of the support set,
    # the solver can treat intercept and weights independently.
    differences = centred(products) if used is None else centred_among(products, present)
    values, vectors = torch.linalg.eigh(differences)  # (e, s), (e, s, s)
    # Drop directions in which the support images differ by rounding errors only.
    values = torch.where(values > values[..., -1:] * values.shape[-1] * 1e-12, values, 0)
    roots = values.sqrt()
    inverse_roots = torch.where(values > 0, roots.reciprocal(), 0)
    coordinates = vectors * roots.unsqueeze(-2)
    weights, intercept = _minimise(coordinates, values, present, labels, way, C, tolerance, max_iterations)
    return vectors @ (inverse_roots.unsqueeze(-2) * weights).transpose(-2, -1), intercept.transpose(-2, -1)


def _minimise(
    coordinates: Tensor,
    values: Tensor,
    present: Tensor,
    labels: Tensor,
    way: int,
    C: float,
    tolerance: float,
    max_iterations: int,
) -> tuple[Tensor, Tensor]:
    """Weights ``(e, way, r)`` and intercepts ``(e, way, 1)`` for centred, orthogonal coordinates ``(e, s, r)``.

    ``present`` is 1 for images that take part and 0 for others, whose coordinates are 0: ``(e, s, 1)``. Such a row of
    zeros in the design adds nothing to the gradient.

    Accelerated gradient (Nesterov, with restarts where the step turns against the gradient), preconditioned by
    Böhning's bound on the Hessian, which in these coordinates is diagonal: ½ value + 1/C for the weights, ½ s for the
    intercept. All episodes go on until the last has converged. Classes stand before images and coordinates, because
    arithmetic along a short last dimension is several times slower.
    """
    images = present.sum(dim=1)  # (e, 1)
    design = torch.cat([coordinates, present], dim=-1)  # (e, s, r + 1)
    transposed = design.transpose(-2, -1)
    targets = membership(labels, way, design.dtype).transpose(-2, -1).contiguous()  # (e, way, s)
    penalty = _row(torch.full_like(values, 1 / C), 0)
    step = 1 / _row(values / 2 + 1 / C, images / 2)
    allowed = _allowed_gradient(coordinates, targets @ coordinates, C) * tolerance
    solution = point = torch.zeros_like(targets @ design)
    momentum = torch.ones_like(point[:, :1, :1])
    for iteration in range(max_iterations):
        gradient = (torch.softmax(point @ transposed, dim=1) - targets) @ design + penalty * point
        if iteration % 4 == 0 and bool((gradient.abs() <= allowed).all()):
            return point[..., :-1], point[..., -1:]
        following = point - step * gradient
        change = following - solution
        restart = (gradient * change).sum(dim=(-2, -1), keepdim=True) > 0
        momentum = torch.where(restart, 1, momentum)
        next_momentum = (1 + (1 + 4 * momentum.square()).sqrt()) / 2
        point = following + (momentum - 1) / next_momentum * change
        solution, momentum = following, next_momentum
    warnings.warn(
        f"logistic regression stopped after {max_iterations} iterations before the tolerance {tolerance:g} was reached:"
        " use normalize=True, a smaller C or more max_iterations",
        RuntimeWarning,
        stacklevel=9,
    )
    return point[..., :-1], point[..., -1:]


def _allowed_gradient(coordinates: Tensor, class_sums: Tensor, C: float) -> Tensor:
    """The gradient ``(e, 1, r + 1)`` that changes logits by about 1, or by their own variation if that is smaller.

    A gradient g leaves the weights at most C‖g‖ from the solution, as the penalty alone curves the problem by 1/C. With
    a small C all logits are close to 0, and only their differences matter: C times the sums of the images of a class.
    """
    radius = coordinates.square().sum(dim=-1, keepdim=True).amax(dim=-2).sqrt().clamp(min=1e-100)  # (e, 1)
    variation = (C * radius * class_sums.abs().amax(dim=(-2, -1)).unsqueeze(-1)).clamp(min=1e-6, max=1)
    of_intercept = variation * (coordinates.shape[1] / class_sums.shape[1])
    return _row((variation / C / radius).expand_as(coordinates[:, 0]), of_intercept)


def _row(of_weights: Tensor, of_intercept: float | Tensor) -> Tensor:
    """A number for each weight and one for the intercept: ``(e, r) -> (e, 1, r + 1)``."""
    last = of_weights.new_zeros(len(of_weights), 1) + of_intercept
    return torch.cat([of_weights, last], dim=-1).unsqueeze(1)
