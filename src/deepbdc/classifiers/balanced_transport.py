"""PT-MAP: class centres and an optimal transport of all queries to them, estimated in turn."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from deepbdc.classifiers.base import Classifier, membership, positive
from deepbdc.classifiers.prototype import class_means, similarities
from deepbdc.errors import UserError


class BalancedTransportClassifier(Classifier):
    """Queries are distributed over the classes by optimal transport, in which every class gets equally many.

    1. Power transform: z becomes sign(z) · (|z| + 1e-6)^power, divided by its length. Then the mean of the support
       images is subtracted from them, and the mean of the queries from the queries, and all are divided by their length
       again.
    2. Class centres μ_c start at the means of the support images. Each iteration has two steps. The transport P
       minimises Σ P_qc ‖q - μ_c‖² - H(P) / λ over all P whose rows sum to 1 and whose columns sum to queries / way.
       Then μ_c moves by ``step`` of the way to the mean of the support images of c (weight 1) and the queries (weights
       P_qc).

    Scores are the logarithms of the transport to the last centres; no gradient flows through them.

    Args:
        power: Exponent of the power transform.
        regularisation: λ.
        step: Part of the way to the new mean, above 0 and at most 1.
        iterations: Of centres and transport.
        tolerance: Largest error of the column sums of P.
        transport_iterations: At most this many for one P.
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
        transport_iterations: int = 1000,
    ) -> None:
        super().__init__(
            power=power,
            regularisation=regularisation,
            step=step,
            iterations=iterations,
            tolerance=tolerance,
            transport_iterations=transport_iterations,
        )
        if not 0 < step <= 1:
            raise UserError(f"step must be above 0 and at most 1, got {step!r}")
        self.power = positive("power", power)
        self.regularisation = positive("regularisation", regularisation)
        self.step = step
        self.iterations = int(positive("iterations", iterations))
        self.tolerance = positive("tolerance", tolerance)
        self.transport_iterations = int(positive("transport_iterations", transport_iterations))

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
        return balanced_transport(kernel, self.tolerance, self.transport_iterations)


def power_transformed(images: Tensor, power: float) -> Tensor:
    """Step 1 above, for the support or the queries of each episode: ``(e, n, features) -> (e, n, features)``."""
    signs = torch.where(images < 0, -1.0, 1.0).to(images.dtype)
    transformed = normalize(signs * (images.abs() + 1e-6) ** power, dim=-1)
    return normalize(transformed - transformed.mean(dim=1, keepdim=True), dim=-1)


def balanced_transport(kernel: Tensor, tolerance: float, iterations: int) -> Tensor:
    """Logarithms of exp(kernel), with rows and columns scaled: ``(e, q, way) -> (e, q, way)``.

    Rows sum to 1, and columns to queries / way. Sinkhorn's algorithm scales rows and columns in turn, and takes
    hundreds of iterations. Here the rows are always right, and b, the logarithms of the factors of the columns, are
    found by Newton's method: they minimise the convex function
    Σ_q log Σ_c exp(kernel_qc + b_c) - queries / way · Σ_c b_c. Where a step of Newton's does not bring the column
    sums nearer, a step of Sinkhorn's takes its place. An episode ends when its column sums are right to ``tolerance``.
    """
    kernel = kernel.transpose(-2, -1).contiguous()  # (e, way, q): arithmetic along a short last dimension is slow
    share = kernel.shape[2] / kernel.shape[1]
    logs = torch.log_softmax(kernel, dim=1)
    errors = _column_errors(logs, share)
    for _ in range(iterations):
        running = errors.abs().amax(dim=-1) > tolerance  # (e,)
        if not bool(running.any()):
            break
        plan = logs[running].exp()
        sums = plan.sum(dim=-1)
        # Adding the same number to all b changes nothing. The 1 makes the equation solvable, and their sum 0.
        curvature = torch.diag_embed(sums) - plan @ plan.transpose(-2, -1) + 1
        step, _ = torch.linalg.solve_ex(curvature, errors[running].unsqueeze(-1))  # not finite where it is singular
        newton = torch.log_softmax(logs[running] - step, dim=1)
        better = _column_errors(newton, share).abs().amax(dim=-1) < 0.9 * errors[running].abs().amax(dim=-1)
        scaled = logs[running] - logs[running].logsumexp(dim=-1, keepdim=True)
        updated = torch.where(better[:, None, None], newton, torch.log_softmax(scaled, dim=1))
        logs[running] = updated
        errors[running] = _column_errors(updated, share)
    return logs.transpose(-2, -1)


def _column_errors(logs: Tensor, share: float) -> Tensor:
    """How far the columns are from their share: ``(e, way, q) -> (e, way)``."""
    return logs.exp().sum(dim=-1) - share
