"""PT-MAP: class centres and an optimal transport of all queries to them, estimated in turn."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from deepbdc.classifiers.base import Classifier, membership, positive
from deepbdc.classifiers.prototype import class_means, similarities
from deepbdc.errors import UserError


class TransportClassifier(Classifier):
    """Queries are distributed over the classes by optimal transport, in which every class gets equally many.

    1. Power transform: z becomes sign(z) · (|z| + 1e-6)^power, divided by its length. Then the mean of the support
       images is subtracted from them, and the mean of the queries from the queries, and all are divided by their length
       again.
    2. Class centres μ_c start at the means of the support images. Each iteration has two steps. The transport P
       minimises Σ P_qc ‖q - μ_c‖² - H(P) / λ over all P whose rows sum to 1 and whose columns sum to queries / way
       (`sinkhorn`). Then μ_c moves by ``step`` of the way to the mean of the support images of c (weight 1) and the
       queries (weights P_qc).

    Scores are the logarithms of the transport to the last centres; no gradient flows through them.

    Args:
        power: Exponent of the power transform.
        regularisation: λ.
        step: Part of the way to the new mean, above 0 and at most 1.
        iterations: Of centres and transport.
        tolerance: Largest error of the row sums of P.
        sinkhorn_iterations: At most this many for one P.
    """

    transductive = True
    assumes_balanced_queries = True

    def __init__(
        self,
        power: float = 0.5,
        regularisation: float = 10.0,
        step: float = 0.2,
        iterations: int = 20,
        tolerance: float = 1e-6,
        sinkhorn_iterations: int = 1000,
    ) -> None:
        super().__init__(
            power=power,
            regularisation=regularisation,
            step=step,
            iterations=iterations,
            tolerance=tolerance,
            sinkhorn_iterations=sinkhorn_iterations,
        )
        if not 0 < step <= 1:
            raise UserError(f"step must be above 0 and at most 1, got {step!r}")
        self.power = positive("power", power)
        self.regularisation = positive("regularisation", regularisation)
        self.step = step
        self.iterations = int(positive("iterations", iterations))
        self.tolerance = positive("tolerance", tolerance)
        self.sinkhorn_iterations = int(positive("sinkhorn_iterations", sinkhorn_iterations))

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, features), (e, s), (e, q, features) -> (e, q, way)``."""
        support, query = (power_transformed(images.detach(), self.power) for images in (support, query))
        members = membership(support_labels, way, support.dtype)
        centres = class_means(support, support_labels, way)
        if query.shape[1] == 0:
            return similarities(query, centres, "euclidean")
        for _ in range(self.iterations):
            weights = torch.cat([members, self._transport(query, centres).exp().to(query.dtype)], dim=1)  # (e, n, way)
            means = weights.transpose(-2, -1) @ torch.cat([support, query], dim=1)
            centres = centres + self.step * (means / weights.sum(dim=1).unsqueeze(-1) - centres)
        return self._transport(query, centres).to(query.dtype)

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """Transformed copies of all images, one of them pooled."""
        return 8 * (support[0] + query[0]) * support[1]

    def _transport(self, query: Tensor, centres: Tensor) -> Tensor:
        """Logarithm of the transport of queries to centres, ``(e, q, way)`` in float64."""
        kernel = self.regularisation * similarities(query, centres, "euclidean").double()
        return sinkhorn(kernel, self.tolerance, self.sinkhorn_iterations)


def power_transformed(images: Tensor, power: float) -> Tensor:
    """Step 1 above, for the support or the queries of each episode: ``(e, n, features) -> (e, n, features)``."""
    signs = torch.where(images < 0, -1.0, 1.0).to(images.dtype)
    transformed = normalize(signs * (images.abs() + 1e-6) ** power, dim=-1)
    return normalize(transformed - transformed.mean(dim=1, keepdim=True), dim=-1)


def sinkhorn(kernel: Tensor, tolerance: float, iterations: int) -> Tensor:
    """Logarithms of exp(kernel), with rows and columns scaled: ``(e, q, way) -> (e, q, way)``, float64.

    Rows sum to 1, columns to queries / way. Each iteration scales rows, then columns; an episode ends when its row sums
    are right to ``tolerance``.
    """
    share = kernel.shape[-2] / kernel.shape[-1]
    logs = (kernel - kernel.amax(dim=-1, keepdim=True)).clamp(min=-600)  # exp(-600) is still a normal float64
    values = logs.exp()
    columns = torch.ones_like(values[:, :1].transpose(-2, -1))  # (e, way, 1)
    sums = values @ columns
    rows = torch.ones_like(sums)
    running = torch.ones_like(sums[:, :1], dtype=torch.bool)
    for _ in range(iterations):
        rows = torch.where(running, 1 / sums, rows)
        columns = torch.where(running, share / (values.transpose(-2, -1) @ rows), columns)
        sums = values @ columns
        running = running & ((rows * sums - 1).abs().amax(dim=1, keepdim=True) > tolerance)
        if not bool(running.any()):
            break
    return logs + rows.log() + columns.log().transpose(-2, -1)
