"""TIM: class weights that make the predictions for all queries of a task certain, and the classes equally frequent."""

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, normalize

from deepbdc.classifiers.base import Classifier, membership, positive
from deepbdc.classifiers.prototype import class_means, similarities
from deepbdc.errors import UserError

Solver = Literal["adm", "gd"]


class InformationClassifier(Classifier):
    """Class weights w are fitted to the support images and to all queries of a task.

    Predictions are p(c | z) = softmax_c(-τ/2 ‖z - w_c‖²) for representations z of length 1. Minimised is

        λ · cross-entropy of the support - H(mean prediction of the queries) + α · mean H(prediction of a query),

    starting from the class means of the support. Its second term assumes that all classes have equally many queries.

    ``"adm"`` alternates two closed forms: q_ic ∝ p_ic^(1 + α) / (Σ_i p_ic^(1 + α))^½ over the queries i; and then, with
    sums over support images s of labels y and over queries z, l = λ / (1 + α) and r = images / queries,

        w_c = [l (Σ y_c s + Σ p_c (w_c - s)) + r (Σ q_c z + Σ p_c (w_c - z))] / [l Σ y_c + r Σ q_c].

    ``"gd"`` takes steps of Adam. Scores are -τ/2 ‖z - w_c‖²; no gradient flows through the fit.

    Args:
        solver: ``"adm"`` or ``"gd"``.
        iterations: How many; None: 150 of ``"adm"``, 1,000 of ``"gd"``.
        temperature: τ.
        support_weight: λ.
        conditional_weight: α.
        learning_rate: Of Adam, for ``"gd"``.
    """

    transductive = True
    assumes_balanced_queries = True

    def __init__(
        self,
        solver: Solver = "adm",
        iterations: int | None = None,
        temperature: float = 15.0,
        support_weight: float = 0.1,
        conditional_weight: float = 0.1,
        learning_rate: float = 1e-4,
    ) -> None:
        super().__init__(
            solver=solver,
            iterations=iterations,
            temperature=temperature,
            support_weight=support_weight,
            conditional_weight=conditional_weight,
            learning_rate=learning_rate,
        )
        if solver not in get_args(Solver):
            raise UserError(f"solver must be one of {', '.join(get_args(Solver))}, got {solver!r}")
        if not 0 <= conditional_weight < float("inf"):
            raise UserError(f"conditional_weight must not be negative, got {conditional_weight!r}")
        self.solver = solver
        usual = 150 if solver == "adm" else 1000
        self.iterations = usual if iterations is None else int(positive("iterations", iterations))
        self.temperature = positive("temperature", temperature)
        self.support_weight = positive("support_weight", support_weight)
        self.conditional_weight = conditional_weight
        self.learning_rate = positive("learning_rate", learning_rate)

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, features), (e, s), (e, q, features) -> (e, q, way)``."""
        support, query = normalize(support.detach(), dim=-1), normalize(query.detach(), dim=-1)
        weights = class_means(support, support_labels, way)
        if query.shape[1] == 0:
            return self._logits(query, weights)
        targets = membership(support_labels, way, support.dtype)
        fit = self._alternate if self.solver == "adm" else self._descend
        return self._logits(query, fit(weights, support, targets, query))

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """Normalised copies of all images."""
        return 4 * (support[0] + query[0]) * support[1]

    def _logits(self, images: Tensor, weights: Tensor) -> Tensor:
        """``(e, n, features), (e, way, features) -> (e, n, way)``."""
        return self.temperature / 2 * similarities(images, weights, "euclidean")

    def _alternate(self, weights: Tensor, support: Tensor, targets: Tensor, query: Tensor) -> Tensor:
        of_support = self.support_weight / (1 + self.conditional_weight)
        of_query = support.shape[1] / query.shape[1]
        images = torch.cat([support, query], dim=1)
        importance = images.new_tensor([of_support] * support.shape[1] + [of_query] * query.shape[1])[:, None]
        for _ in range(self.iterations):
            logs = log_softmax(self._logits(images, weights), dim=-1)
            latent = latent_assignments(logs[:, support.shape[1] :], self.conditional_weight)
            wanted = importance * torch.cat([targets, latent], dim=1)  # (e, n, way)
            found = importance * logs.exp()
            sums = (wanted - found).transpose(-2, -1) @ images + found.sum(dim=1).unsqueeze(-1) * weights
            weights = sums / wanted.sum(dim=1).unsqueeze(-1)
        return weights

    def _descend(self, weights: Tensor, support: Tensor, targets: Tensor, query: Tensor) -> Tensor:
        with torch.enable_grad():
            trained = weights.clone().requires_grad_()
            optimiser = torch.optim.Adam([trained], lr=self.learning_rate)
            for _ in range(self.iterations):
                optimiser.zero_grad()
                # Adam changes each number by its own gradients only, so episodes do not influence each other.
                self.loss(trained, support, targets, query).sum().backward()
                optimiser.step()
        return trained.detach()

    def loss(self, weights: Tensor, support: Tensor, targets: Tensor, query: Tensor) -> Tensor:
        """What is minimised, for each episode ``(e,)``. Images are of length 1, ``targets`` is ``(e, s, way)``."""
        cross_entropy = -(targets * log_softmax(self._logits(support, weights), dim=-1)).sum(dim=-1).mean(dim=-1)
        logs = log_softmax(self._logits(query, weights), dim=-1)
        conditional = -(logs.exp() * logs).sum(dim=-1).mean(dim=-1)
        mean = logs.exp().mean(dim=1)
        marginal = -(mean * mean.clamp(min=torch.finfo(mean.dtype).tiny).log()).sum(dim=-1)
        return self.support_weight * cross_entropy - marginal + self.conditional_weight * conditional


def latent_assignments(logs: Tensor, conditional_weight: float) -> Tensor:
    """The assignments q of queries, from the logarithms of their predictions p: ``(e, q, way) -> (e, q, way)``."""
    sharpened = (1 + conditional_weight) * logs
    return torch.softmax(sharpened - sharpened.logsumexp(dim=1, keepdim=True) / 2, dim=-1)
