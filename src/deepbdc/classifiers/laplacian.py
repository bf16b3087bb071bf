"""LaplacianShot: the nearest prototype for each query, where neighbouring queries are urged to agree."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from deepbdc.classifiers.base import Classifier, positive
from deepbdc.classifiers.prototype import class_means, similarities
from deepbdc.errors import UserError


class LaplacianClassifier(Classifier):
    """All queries of a task are assigned together, by minimising the energy of the assignments Y.

    With a_qc = ‖q - m_c‖² and W_qp = 1 if query p is one of the nearest neighbours of query q, the energy is
    E(Y) = Σ_qc (Y log Y + a Y) - λ Σ_qp W_qp Y_q·Y_p. Each iteration sets Y to softmax(-a + λ W Y), starting from
    softmax(-a). An episode stops when its energy changes by less than ``tolerance``, relative to its size, or after
    ``iterations``. Scores are -a + λ W Y, whose softmax is the last Y.

    Representations are divided by their length first. With ``rectify``, queries are shifted by the mean of the support
    images minus the mean of the queries. Then each prototype m_c becomes the average of w_xc x over the support and
    query images x whose nearest class mean, by cosine, is that of c; w_x is the softmax of 10 times the cosines. It is
    not divided by the sum of the weights. If a class has no such image, it keeps its mean.

    The shift assumes that all classes have equally many queries.

    Args:
        weight: λ.
        neighbours: Nearest neighbours of a query, by Euclidean distance, without itself. They need not be mutual.
        rectify: Shift the queries, and let them take part in the prototypes.
        iterations: At most this many.
        tolerance: See above; it is checked from the third iteration on.
    """

    transductive = True

    def __init__(
        self,
        weight: float = 1.0,
        neighbours: int = 2,
        rectify: bool = True,
        iterations: int = 20,
        tolerance: float = 1e-6,
    ) -> None:
        super().__init__(
            weight=weight, neighbours=neighbours, rectify=rectify, iterations=iterations, tolerance=tolerance
        )
        if not 0 <= weight < float("inf"):
            raise UserError(f"weight must not be negative, got {weight!r}")
        if neighbours < 1:
            raise UserError(f"neighbours must be at least 1, got {neighbours!r}")
        self.weight = weight
        self.neighbours = neighbours
        self.rectify = rectify
        self.iterations = int(positive("iterations", iterations))
        self.tolerance = positive("tolerance", tolerance)

    @property
    def assumes_balanced_queries(self) -> bool:  # type: ignore[override]
        """Only the shift of the queries does."""
        return self.rectify

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, features), (e, s), (e, q, features) -> (e, q, way)``."""
        support, query = normalize(support, dim=-1), normalize(query, dim=-1)
        prototypes = class_means(support, support_labels, way)
        if query.shape[1] == 0:
            return similarities(query, prototypes, "euclidean")
        if self.rectify:
            query = query + support.mean(dim=1, keepdim=True) - query.mean(dim=1, keepdim=True)
            prototypes = rectified(prototypes, torch.cat([support, query], dim=1))
        unary = -similarities(query, prototypes, "euclidean")
        return self._minimise(unary, neighbour_matrix(query, self.neighbours))

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """Normalised copies of all images, the pooled ones, and distances between queries."""
        images = support[0] + query[0]
        return 4 * (3 * images * support[1] + 3 * query[0] ** 2)

    def _minimise(self, unary: Tensor, neighbours: Tensor) -> Tensor:
        """The scores ``(e, q, way)`` for costs ``(e, q, way)`` and neighbours ``(e, q, q)``."""
        scores = -unary
        assignments = torch.softmax(scores, dim=-1)
        energy = torch.full_like(unary[:, 0, 0], float("inf"))
        running = torch.ones_like(energy, dtype=torch.bool)
        for iteration in range(1, self.iterations + 1):
            updated = -unary + self.weight * (neighbours @ assignments)
            scores = torch.where(running[:, None, None], updated, scores)
            assignments = torch.softmax(scores, dim=-1)
            agreement = assignments * (neighbours @ assignments)
            # xlogy(0, 0) = 0, where 0 · log 0 would be NaN
            terms = torch.special.xlogy(assignments, assignments) + unary * assignments - self.weight * agreement
            before, energy = energy, terms.sum(dim=(-2, -1))
            if iteration >= 3:
                running = running & ((energy - before).abs() > self.tolerance * before.abs())
                if not bool(running.any()):
                    break
        return scores


def rectified(means: Tensor, images: Tensor) -> Tensor:
    """Prototypes from class means and pooled images: ``(e, way, features), (e, n, features) -> (e, way, features)``."""
    cosines = similarities(images, means, "cosine")
    nearest = torch.nn.functional.one_hot(cosines.argmax(dim=-1), means.shape[1]).to(images.dtype)  # (e, n, way)
    counts = nearest.sum(dim=1).unsqueeze(-1)
    sums = (nearest * torch.softmax(10 * cosines, dim=-1)).transpose(-2, -1) @ images
    return torch.where(counts > 0, sums / counts.clamp(min=1), means)


def neighbour_matrix(images: Tensor, neighbours: int) -> Tensor:
    """1 where the second image is among the nearest neighbours of the first, else 0: ``(e, q, d) -> (e, q, q)``.

    An image is not its own neighbour. If there are too few images, all others are neighbours.
    """
    count = images.shape[1]
    distances = -similarities(images, images, "euclidean")
    itself = torch.eye(count, dtype=torch.bool, device=images.device)
    order = distances.masked_fill(itself, float("inf")).argsort(dim=-1, stable=True)
    return torch.zeros_like(distances).scatter_(-1, order[..., : min(neighbours, count - 1)], 1.0)
