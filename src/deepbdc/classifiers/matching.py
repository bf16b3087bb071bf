"""Matching networks: a vote of all support images, each weighted by its similarity to the query."""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from deepbdc.classifiers._layers import applied
from deepbdc.classifiers._scale import Scale
from deepbdc.classifiers.base import Classifier, grouped_by_class, positive


class MatchingClassifier(Classifier):
    """Scores are log-probabilities of a soft nearest neighbour (Vinyals et al., NeurIPS 2016).

    With the cosines c_i of a query and all support images, the probability of a class is the weight that its images
    have together: p_c = Σ_{i in c} softmax_i(τ · c_i), and the score is log p_c. More images give a class more weight.

    ``full_context`` lets the representations of a task depend on each other before they are compared. For the support,
    g_i = x_i + forward_i + backward_i with the hidden states of a bidirectional LSTM that reads the support images. For
    a query x, an LSTM cell takes ``steps`` steps: r = Σ_i softmax_i(h · g_i) g_i, then h ← LSTM([x, r], h) + x,
    starting from h = x and a cell state of 0; the last h is compared. An LSTM depends on the order of what it reads, so
    the scores depend on the order of the support images. In training mode they are read in a random order, so that the
    LSTM cannot learn the order of the classes; in evaluation mode in the order that is given.

    Args:
        features: Numbers in a representation.
        scale: Start of τ, the parameter group ``scale`` (None: no factor).
        normalise_query: Compare by the cosine. Otherwise only the support is brought to length 1, not the query.
        full_context: As above; the weights of both LSTMs are the parameter group ``context``.
        steps: Steps of the LSTM for queries (None: as many as there are support images).
    """

    named_parameter_groups = {"scale": ("scale.scale",), "context": ("of_support", "of_query")}  # noqa: RUF012

    def __init__(
        self,
        features: int,
        scale: float | None = 100.0,
        normalise_query: bool = True,
        full_context: bool = False,
        steps: int | None = 5,
    ) -> None:
        super().__init__(
            features=features, scale=scale, normalise_query=normalise_query, full_context=full_context, steps=steps
        )
        self.scale = Scale(None if scale is None else positive("scale", scale))
        self.normalise_query = normalise_query
        self.full_context = full_context
        self.steps = None if steps is None else int(positive("steps", steps))
        if full_context:
            self.of_support = nn.LSTM(features, features, batch_first=True, bidirectional=True)
            self.of_query = nn.LSTMCell(2 * features, features)

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, features), (e, s), (e, q, features) -> (e, q, way)``."""
        if self.full_context:
            support = self._support_in_context(support)
            query = self._query_in_context(query, support)
        if self.normalise_query:
            query = normalize(query, dim=-1)
        similarities = self.scale(normalize(support, dim=-1) @ query.transpose(-2, -1))  # (e, s, q)
        grouped, present = grouped_by_class(similarities, support_labels, way)  # (e, way, most, q)
        of_classes = grouped.masked_fill(~present.unsqueeze(-1), -torch.inf).logsumexp(dim=2)
        return of_classes.log_softmax(dim=1).transpose(-2, -1)

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """Similarities, normalised copies, and the states of the LSTMs."""
        vectors = 4 * (support[0] + query[0]) * support[1]
        return 4 * 4 * support[0] * query[0] + (16 if self.full_context else 2) * vectors

    def _support_in_context(self, support: Tensor) -> Tensor:
        """g: ``(e, s, features) -> (e, s, features)``."""
        order = torch.arange(support.shape[1], device=support.device)
        if self.training:
            order = torch.randperm(support.shape[1]).to(support.device)
        states, _ = applied(self.of_support, support[:, order])
        forward, backward = states[:, order.argsort()].chunk(2, dim=-1)
        adapted: Tensor = support + forward + backward
        return adapted

    def _query_in_context(self, query: Tensor, support: Tensor) -> Tensor:
        """f: ``(e, q, features)`` with g of the support ``(e, s, features)`` -> ``(e, q, features)``."""
        hidden, cell = query, torch.zeros_like(query)
        for _ in range(support.shape[1] if self.steps is None else self.steps):
            read = torch.softmax(hidden @ support.transpose(-2, -1), dim=-1) @ support
            state = hidden.flatten(0, 1), cell.flatten(0, 1)
            hidden, cell = applied(self.of_query, torch.cat([query, read], dim=-1).flatten(0, 1), state)
            hidden, cell = query + hidden.view_as(query), cell.view_as(query)
        return hidden
