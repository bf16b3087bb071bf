"""ICI: logistic regression that takes in its own answers for the queries, the most credible ones first."""

import torch
from torch import Tensor

from deepbdc._modes import one_thread
from deepbdc.classifiers._products import centred, support_products
from deepbdc.classifiers.base import Classifier, membership, positive
from deepbdc.classifiers.logistic import logistic
from deepbdc.errors import UserError


class CredibilityClassifier(Classifier):
    """Self-training: in each round, the most credible queries become training images with their predicted labels.

    Credibility comes from a linear model with one free parameter γ_i for each image, Y = X B + Γ, where X holds the
    first principal components of the images and Y their one-hot labels, which are predicted ones for queries. With H
    the projection on the columns of X, a path of group lassos

        min over Γ of ‖(I - H)(Y - Γ)‖² / (2n) + α Σ_i ‖γ_i‖

    is computed for values of α that fall from the smallest one with Γ = 0, evenly on a logarithmic scale. The smaller
    the α at which γ_i is still 0, the more credible is the label of image i.

    A round predicts all queries by logistic regression, and adds to the training images those ``per_class`` queries of
    each predicted class that are the most credible among the remaining ones. Logistic regression is then fitted again,
    with the new predictions as labels of all added queries. When all queries are added, its logits are the scores. No
    gradient flows through them.

    Representations are divided by their length first. Queries that become 0 at the same α are compared by the length of
    their residual.

    Args:
        C: Of logistic regression, as in scikit-learn.
        dimensions: Principal components.
        per_class: Queries of each predicted class that a round adds.
        path: Values of α.
        range: The smallest α, relative to the largest.
    """

    transductive = True

    def __init__(
        self, C: float = 10.0, dimensions: int = 5, per_class: int = 5, path: int = 100, range: float = 1e-3
    ) -> None:
        super().__init__(C=C, dimensions=dimensions, per_class=per_class, path=path, range=range)
        self.regression = logistic(C=C)
        self.dimensions = int(positive("dimensions", dimensions))
        self.per_class = int(positive("per_class", per_class))
        self.path = int(positive("path", path))
        if not 0 < range < 1:
            raise UserError(f"range must be above 0 and below 1, got {range!r}")
        self.range = range

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, features), (e, s), (e, q, features) -> (e, q, way)``."""
        count = support.shape[1]
        images = torch.cat([support, query], dim=1).detach()
        with one_thread():
            products, _ = support_products(images, normalize=True)
            guesses = torch.zeros_like(support_labels[:, :1]).expand(-1, query.shape[1])
            labels = torch.cat([support_labels, guesses], dim=1)
            used = torch.arange(products.shape[1], device=labels.device).expand_as(labels) < count
            logits = self._fit(products, labels, used, way)
            basis = principal_directions(products, self.dimensions)
            while not bool(used.all()):
                rest = (~used.all(dim=1)).nonzero()[:, 0]  # the episodes that have queries left
                guessed = torch.cat([support_labels[rest], logits[rest, count:].argmax(dim=-1)], dim=1)
                order = credibility(basis[rest], membership(guessed, way, products.dtype), self.path, self.range)
                used[rest] = used[rest] | most_credible(order, guessed, used[rest], self.per_class)
                logits[rest] = self._fit(products[rest], guessed, used[rest], way)
        return logits[:, count:].to(query.dtype)

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """A copy of all images, and products, coordinates and comparisons between images in float64."""
        images = support[0] + query[0]
        return 4 * images * support[1] + 8 * 8 * images**2

    def _fit(self, products: Tensor, labels: Tensor, used: Tensor, way: int) -> Tensor:
        """Logits ``(e, n, way)`` of all images, fitted to the used ones."""
        coefficients, intercept = self.regression.fit_products(products, labels, way, used)
        shares = used.to(products.dtype) / used.sum(dim=1, keepdim=True)
        relative = products - shares.unsqueeze(1) @ products  # products with images, relative to the mean of the used
        logits: Tensor = relative @ coefficients + intercept
        return logits


def principal_directions(products: Tensor, dimensions: int) -> Tensor:
    """Orthonormal scores of the first principal components, from inner products: ``(e, n, n) -> (e, n, dimensions)``.

    Where the images have fewer components, the other columns are 0.
    """
    values, vectors = torch.linalg.eigh(centred(products))
    largest = values[:, None, -1:].clamp(min=torch.finfo(values.dtype).tiny)
    real = values[:, None, -dimensions:] > largest * products.shape[-1] * 1e-12
    directions: Tensor = vectors[..., -dimensions:] * real
    return directions


def credibility(basis: Tensor, targets: Tensor, path: int, smallest: float) -> Tensor:
    """When the parameter of each image becomes 0 along the path: ``(e, n, k), (e, n, way) -> (e, n)``, 0 to ``path``.

    Smaller is more credible. The whole number in it is the place of α in the path, counted from the smallest; the rest
    is how near the residual is to its limit there.

    With r = Y - X B and the threshold t = n α, the solution is γ_i = r_i max(0, 1 - t / ‖r_i‖), where B minimises a
    Huber loss of the ‖r_i‖. B is found by reweighted least squares, which starts from the solution for the α before.
    """
    transposed = basis.transpose(-2, -1)
    absent = torch.diag_embed((basis.square().sum(dim=1) < 0.5).to(basis.dtype))  # columns of zeros
    residuals = targets - basis @ (transposed @ targets)
    lengths = residuals.norm(dim=-1)
    largest = lengths.amax(dim=-1, keepdim=True).clamp(min=torch.finfo(basis.dtype).tiny)
    found = torch.full_like(lengths, float(path))
    for place in reversed(range(path)):
        threshold = largest * smallest ** (1 - place / max(1, path - 1))
        lengths = _robust_lengths(basis, transposed, absent, targets, lengths, threshold)
        ratio = lengths / threshold
        found = torch.where(ratio <= 1 + 1e-9, place + 0.999 * ratio.clamp(max=1), found)
    return found


def _robust_lengths(
    basis: Tensor, transposed: Tensor, absent: Tensor, targets: Tensor, lengths: Tensor, threshold: Tensor
) -> Tensor:
    """Lengths of the residuals ``(e, n)`` that minimise the Huber loss with a threshold ``(e, 1)``."""
    running = torch.ones_like(threshold, dtype=torch.bool)
    for _ in range(500):
        weights = (threshold / lengths.clamp(min=torch.finfo(lengths.dtype).tiny)).clamp(max=1).unsqueeze(1)
        weighted = transposed * weights  # (e, k, n)
        parameters = torch.linalg.solve(weighted @ basis + absent, weighted @ targets)
        updated = (targets - basis @ parameters).norm(dim=-1)
        change = ((updated - lengths).abs() / threshold).amax(dim=-1, keepdim=True)
        lengths = torch.where(running, updated, lengths)
        running = running & (change > 1e-6)
        if not bool(running.any()):
            break
    return lengths


def most_credible(order: Tensor, labels: Tensor, used: Tensor, per_class: int) -> Tensor:
    """Which images to use next: of each class the ``per_class`` smallest in ``order`` that are not used yet.

    All arguments and the result are ``(e, n)``. Equal ones are taken in the order of the images.
    """
    order = order.masked_fill(used, float("inf"))
    ranks = order.argsort(dim=1, stable=True).argsort(dim=1)
    before = (ranks.unsqueeze(1) < ranks.unsqueeze(2)) & (labels.unsqueeze(1) == labels.unsqueeze(2))
    return ~used & (before.sum(dim=2) < per_class)
