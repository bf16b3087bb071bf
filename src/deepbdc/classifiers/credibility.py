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

    With r = Y - X B and the threshold t = n α, the solution is γ_i = r_i max(0, 1 - t / ‖r_i‖), where B minimises the
    Huber loss of the ‖r_i‖ with threshold t. The search for B starts from the solution for the α before.
    """
    parameters = basis.transpose(-2, -1) @ targets  # (e, k, way)
    lengths = (targets - basis @ parameters).norm(dim=-1)
    largest = lengths.amax(dim=-1, keepdim=True).clamp(min=torch.finfo(basis.dtype).tiny)
    found = torch.full_like(lengths, float(path))
    for place in reversed(range(path)):
        threshold = largest * smallest ** (1 - place / max(1, path - 1))
        parameters = _robust_regression(basis, targets, parameters, threshold)
        ratio = (targets - basis @ parameters).norm(dim=-1) / threshold
        found = torch.where(ratio <= 1 + 1e-9, place + 0.999 * ratio.clamp(max=1), found)
    return found


_REWEIGHTED_STEPS, _STEPS = 8, 40


def _robust_regression(basis: Tensor, targets: Tensor, parameters: Tensor, threshold: Tensor) -> Tensor:
    """Minimise the Huber loss with a threshold ``(e, 1)`` of the lengths of the residuals, starting at ``(e, k, way)``.

    A few steps of reweighted least squares, which are cheap, are enough for most episodes. In the others, most of which
    have few images, they could take thousands; there, some steps of Newton's method follow.
    """
    parameters = parameters.clone()
    running = torch.arange(len(basis), device=basis.device)
    for step in range(_STEPS):
        if len(running) == 0:
            break
        images, labels, before, limit = basis[running], targets[running], parameters[running], threshold[running]
        residuals = labels - images @ before
        lengths = residuals.norm(dim=-1)
        weights = (limit / lengths.clamp(min=torch.finfo(lengths.dtype).tiny)).clamp(max=1).unsqueeze(-1)  # (e, n, 1)
        weighted = (images * weights).transpose(-2, -1)
        curvature = weighted @ images
        # Columns of zeros need a 1 to be solvable.
        absent = torch.diag_embed((images.square().sum(dim=1) < 0.5).to(images.dtype))
        updated = torch.linalg.solve(curvature + absent, weighted @ labels)
        if step >= _REWEIGHTED_STEPS:
            outside = (weights < 1) * weights
            change = _newton_change(images, residuals, lengths, outside, curvature + absent, weighted @ residuals)
            # A whole step may overshoot: of some parts of it and the reweighted step, the one with the smallest loss.
            tried = torch.stack([*(before + part * change for part in (1, 0.5, 0.25, 0.125, 0.03125)), updated])
            losses = torch.stack([_huber(labels - images @ one, limit) for one in tried]).nan_to_num(float("inf"))
            updated = tried[losses.argmin(dim=0), torch.arange(len(running), device=running.device)]
        parameters[running] = updated
        moved = ((labels - images @ updated).norm(dim=-1) - lengths).abs().amax(dim=-1) > 1e-6 * limit[:, 0]
        running = running[moved]
    return parameters


def _newton_change(
    images: Tensor, residuals: Tensor, lengths: Tensor, outside: Tensor, curvature: Tensor, gradient: Tensor
) -> Tensor:
    """Newton's change of the parameters ``(e, k, way)``; not finite where there is none.

    Beyond the threshold, the loss of a residual r does not curve in the direction of r. ``outside`` ``(e, n, 1)`` holds
    the weights of such images, and 0 for the others.
    """
    count, way = images.shape[-1], residuals.shape[-1]
    directions = residuals / lengths.clamp(min=torch.finfo(lengths.dtype).tiny).unsqueeze(-1)
    products = (images.unsqueeze(-1) * directions.unsqueeze(-2)).flatten(2)  # (e, n, k · way)
    identity = torch.eye(way, dtype=images.dtype, device=images.device)
    whole = (curvature[:, :, None, :, None] * identity[None, None, :, None, :]).reshape(-1, count * way, count * way)
    whole = whole - (products * outside).transpose(-2, -1) @ products
    step, _ = torch.linalg.solve_ex(whole, gradient.flatten(1).unsqueeze(-1))
    change: Tensor = step.reshape(gradient.shape)
    return change


def _huber(residuals: Tensor, threshold: Tensor) -> Tensor:
    """The loss of each episode, ``(e, n, way), (e, 1) -> (e,)``."""
    lengths = residuals.norm(dim=-1)
    inside = lengths.clamp(max=threshold)
    loss: Tensor = (inside.square() / 2 + threshold * (lengths - inside)).sum(dim=-1)
    return loss


def most_credible(order: Tensor, labels: Tensor, used: Tensor, per_class: int) -> Tensor:
    """Which images to use next: of each class the ``per_class`` smallest in ``order`` that are not used yet.

    All arguments and the result are ``(e, n)``. Equal ones are taken in the order of the images.
    """
    order = order.masked_fill(used, float("inf"))
    ranks = order.argsort(dim=1, stable=True).argsort(dim=1)
    before = (ranks.unsqueeze(1) < ranks.unsqueeze(2)) & (labels.unsqueeze(1) == labels.unsqueeze(2))
    return ~used & (before.sum(dim=2) < per_class)
