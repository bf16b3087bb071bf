"""Attention between sets of vectors."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from deepbdc.classifiers._layers import applied


def attend(query: Tensor, key: Tensor, value: Tensor, present: Tensor | None = None, dropout: float = 0.0) -> Tensor:
    """softmax(query keyᵀ / √d) value: ``(..., n, d), (..., m, d), (..., m, v) -> (..., n, v)``.

    Args:
        query: One vector for each output.
        key: Vectors that are compared with the queries.
        value: Vectors that are averaged.
        present: ``(..., m)``, False for entries of the set that get no weight (None: all have some).
        dropout: Probability that a weight is set to 0.
    """
    products = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    if present is not None:
        products = products.masked_fill(~present.unsqueeze(-2), -torch.inf)
    weights = torch.softmax(products, dim=-1)
    return (functional.dropout(weights, dropout) if dropout else weights) @ value


class MultiHeadAttention(nn.Module):
    """Several heads that are as wide as the vectors: LayerNorm(x + dropout(ReLU(W_o [a_1, ..., a_H] + b_o))).

    a_h = attend(q_h, k_h, v_h) with q_h = ReLU(W x + b), and so on, ``(..., n, d) -> (..., n, d)``. It has no
    positions, so the outputs permute with the vectors.

    Args:
        features: d.
        heads: H.
        dropout: Probability of dropout on the output before it is added to x.
    """

    named_parameter_groups = {"attention": ("query", "key", "value", "output", "norm")}  # noqa: RUF012

    def __init__(self, features: int, heads: int, dropout: float = 0.5) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(features, heads * features) for _ in range(3))
        self.output = nn.Linear(heads * features, features)
        self.norm = nn.LayerNorm(features)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Adapt each vector of a set to the others."""
        query, key, value = (
            functional.relu(applied(layer, x)).unflatten(-1, (self.heads, -1)).transpose(-3, -2)
            for layer in (self.query, self.key, self.value)
        )  # (..., heads, n, d)
        read = attend(query, key, value).transpose(-3, -2).flatten(-2)
        adapted: Tensor = applied(self.norm, x + self.dropout(functional.relu(applied(self.output, read))))
        return adapted


class SelfAttention(nn.Module):
    """One layer with one head: LayerNorm(x + W_o · attend(W_q x, W_k x, W_v x) + b_o), ``(..., n, d) -> (..., n, d)``.

    It has no positions, so the order of a set does not matter. W_q, W_k and W_v start from N(0, 1/d) without bias, and
    W_o from the normal distribution of Glorot and Bengio with bias 0.

    Args:
        features: d.
        attention_dropout: Probability of dropout on the attention weights.
        dropout: Probability of dropout on the output before it is added to x.
    """

    named_parameter_groups = {"attention": ("query", "key", "value", "output", "norm")}  # noqa: RUF012

    def __init__(self, features: int, attention_dropout: float = 0.1, dropout: float = 0.5) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(features, features, bias=False) for _ in range(3))
        self.output = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)
        self.attention_dropout = attention_dropout
        self.dropout = nn.Dropout(dropout)
        for layer in (self.query, self.key, self.value):
            nn.init.normal_(layer.weight, std=features**-0.5)
        nn.init.xavier_normal_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        """Adapt each vector of a set to the others; ``present`` is as for `attend`."""
        query, key, value = (applied(layer, x) for layer in (self.query, self.key, self.value))
        read = attend(query, key, value, present, self.attention_dropout if self.training else 0.0)
        adapted: Tensor = applied(self.norm, x + self.dropout(applied(self.output, read)))
        return adapted
