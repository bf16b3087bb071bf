"""Several classifiers on one feature map, whose probabilities are averaged."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from deepbdc.classifiers.base import Classifier
from deepbdc.errors import UserError


class FusionClassifier(Classifier):
    """Scores are logarithms of the mean of the probabilities that several branches give (Xie et al., CVPR 2022, S2).

    Each branch represents the feature maps by a pooling layer of its own and scores the representations by a classifier
    of its own: s_c(q) = ln (1/B) Σ_b softmax_c(s^b(q)). The cross-entropy of these scores is -ln of the averaged
    probability of the right class.

    A pooling layer sees the support and query images of an episode together, so that its batch norm does, too.

    Args:
        branches: The classifiers. A learnable factor on the scores of a branch belongs to its own classifier.
        pools: The pooling layer of each branch, from maps ``(n, d, h, w)`` to what its classifier takes.
    """

    takes = "maps"

    def __init__(self, branches: Sequence[Classifier], pools: Sequence[nn.Module]) -> None:
        super().__init__()
        if not branches or len(branches) != len(pools):
            raise UserError(f"every branch needs one pooling layer, got {len(pools)} for {len(branches)} branches")
        self.branches = nn.ModuleList(branches)
        self.pools = nn.ModuleList(pools)

    @property
    def transductive(self) -> bool:  # type: ignore[override]
        """Whether one of the branches is."""
        return any(branch.transductive for branch, _ in self._parts())

    @property
    def assumes_balanced_queries(self) -> bool:  # type: ignore[override]
        """Whether one of the branches does."""
        return any(branch.assumes_balanced_queries for branch, _ in self._parts())

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, d, h, w), (e, s), (e, q, d, h, w) -> (e, q, way)``."""
        return fused(self.branch_scores(support, support_labels, query, way))

    def branch_scores(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> list[Tensor]:
        """The scores ``(e, q, way)`` of each branch, before their softmax."""
        maps = torch.cat([support, query], dim=1)
        counts = [support.shape[1], query.shape[1]]
        scores = []
        for branch, pool in self._parts():
            rows = pool(maps.flatten(0, 1)).unflatten(0, maps.shape[:2])
            of_support, of_query = rows.split(counts, dim=1)
            scores.append(branch.score(of_support, support_labels, of_query, way))
        return scores

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """The maps side by side, the representations of all branches, and what their classifiers need."""
        images = support[0] + query[0]
        total = 4 * images * math.prod(support[1:])
        for branch, pool in self._parts():
            row = (cast(int, pool.out_features), *(support[2:] if branch.takes == "maps" else ()))
            total += 4 * images * math.prod(row)
            total += branch.working_memory((support[0], *row), (query[0], *row))
        return total

    def _parts(self) -> Iterator[tuple[Classifier, nn.Module]]:
        return zip(cast(Iterable[Classifier], self.branches), self.pools, strict=True)


def fused(scores: Sequence[Tensor]) -> Tensor:
    """Logarithms of the mean of the softmax of each of several scores ``(..., way)``."""
    return log_softmax(torch.stack(list(scores)), dim=-1).logsumexp(dim=0) - math.log(len(scores))
