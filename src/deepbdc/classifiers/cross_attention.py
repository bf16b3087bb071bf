"""Prototypes that are aligned with each position of a query by attention over the positions of a class."""

import torch
from torch import Tensor, nn

from deepbdc.classifiers._attention import attend
from deepbdc.classifiers._layers import applied
from deepbdc.classifiers.base import Classifier, grouped_by_class, positive

_BYTES_AT_A_TIME = 2**26
"""Memory for the attention of a group of queries."""


class CrossAttentionClassifier(Classifier):
    """Scores are distances to query-aligned prototypes (CrossTransformers: Doersch, Gupta, Zisserman, NeurIPS 2020).

    Two 1×1 convolutions, shared by support and query, give keys k and values v at each position. For position i of a
    query, the prototype of a class is t_i = Σ_j a_ij v_j, with a_i = softmax_j(k_i · k_j / √dimension) over all
    positions j of all images of the class. The score is s_c(q) = -1/r · Σ_i ‖v_i - t_i‖², the mean over the r
    positions of the query. Classes may have unequal numbers of images. Everything is differentiable.

    The convolutions have no bias: that of the values would cancel, as the weights a_i add up to 1.

    Args:
        channels: Channels of the feature maps.
        dimension: Numbers in a key and in a value.
    """

    takes = "maps"
    named_parameter_groups = {"attention": ("key", "value")}  # noqa: RUF012

    def __init__(self, channels: int, dimension: int = 128) -> None:
        super().__init__(channels=channels, dimension=dimension)
        self.dimension = int(positive("dimension", dimension))
        self.key = nn.Linear(channels, dimension, bias=False)
        self.value = nn.Linear(channels, dimension, bias=False)

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, d, h, w), (e, s), (e, q, d, h, w) -> (e, q, way)``."""
        projected = self._projected(support)  # (e, s, r, 2 · k)
        grouped, present = grouped_by_class(projected, support_labels, way)  # (e, way, most, r, 2 · k)
        keys, values = grouped.flatten(2, 3).split(self.dimension, dim=-1)  # (e, way, most · r, k)
        positions = projected.shape[2]
        there = None if bool(present.all()) else present.repeat_interleave(positions, dim=-1)
        found = []
        for part in self._projected(query).split(self._queries_at_a_time(support), dim=1):
            own_keys, own_values = part.flatten(1, 2).unsqueeze(1).split(self.dimension, dim=-1)  # (e, 1, q · r, k)
            differences = own_values - attend(own_keys, keys, values, there)  # (e, way, q · r, k)
            found.append(-differences.square().sum(dim=-1).unflatten(-1, (-1, positions)).mean(dim=-1))
        return torch.cat(found, dim=2).transpose(-2, -1)

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """Keys and values, and the attention of as many queries as are scored at a time."""
        projected = 4 * (support[0] + query[0]) * support[2] * support[3] * (2 * self.dimension + support[1])
        return 2 * projected + min(_BYTES_AT_A_TIME, query[0] * self._bytes_per_query(support))

    def _projected(self, maps: Tensor) -> Tensor:
        """Keys and values at all positions, beside each other: ``(e, n, d, h, w) -> (e, n, h · w, 2 · dimension)``."""
        rows = maps.flatten(3).transpose(-2, -1)
        return torch.cat([applied(self.key, rows), applied(self.value, rows)], dim=-1)

    def _queries_at_a_time(self, support: Tensor) -> int:
        return max(1, _BYTES_AT_A_TIME // (len(support) * self._bytes_per_query(tuple(support.shape[1:]))))

    def _bytes_per_query(self, support: tuple[int, ...]) -> int:
        """Memory of the attention of one query to a support set ``(s, d, h, w)`` and of its prototypes, with copies."""
        positions = support[2] * support[3]
        return 2 * 4 * positions * support[0] * (positions + self.dimension)
