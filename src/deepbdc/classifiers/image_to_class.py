"""The image-to-class measure of DN4: how well the positions of a query find their like among those of a class."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from deepbdc.classifiers._scale import Scale
from deepbdc.classifiers.base import Classifier, grouped_by_class, positive, shots

_BYTES_AT_A_TIME = 2**26
"""Memory for the cosines of a group of queries."""


class ImageToClassClassifier(Classifier):
    """Scores are sums of cosines between local descriptors (Li et al., CVPR 2019).

    A descriptor is the feature vector at one position of a map. For each descriptor of a query, the k largest cosines
    with all descriptors of a class are added: s_c(q) = Σ_i Σ_{j in top-k_c(i)} cos(q_i, x_j). The descriptors of
    all images of a class are one set, so that classes may have unequal numbers of images. Everything is differentiable,
    through the chosen entries.

    Args:
        neighbours: How many of the largest cosines count for each descriptor of a query.
        scale: Start of a learnable factor on the scores, the parameter group ``scale`` (None: no factor, as in DN4).
    """

    takes = "maps"
    named_parameter_groups = {"scale": ("scale.scale",)}  # noqa: RUF012

    def __init__(self, neighbours: int = 3, scale: float | None = None) -> None:
        super().__init__(neighbours=neighbours, scale=scale)
        self.neighbours = int(positive("neighbours", neighbours))
        self.scale = Scale(None if scale is None else positive("scale", scale))

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, d, h, w), (e, s), (e, q, d, h, w) -> (e, q, way)``."""
        grouped, present = grouped_by_class(_descriptors(support), support_labels, way)  # (e, way, most, r, d)
        positions = grouped.shape[3]
        complete = bool(present.all())
        absent = ~present.repeat_interleave(positions, dim=-1)[:, None, :, None]  # (e, 1, way, 1, most · r)
        # No class has fewer descriptors than this.
        count = min(self.neighbours, int(shots(support_labels, way).min()) * positions)
        of_classes = grouped.flatten(2, 3).flatten(1, 2).transpose(-2, -1)  # (e, d, way · most · r)
        found = []
        for part in _descriptors(query).split(self._queries_at_a_time(support, query), dim=1):
            cosines = (part.flatten(1, 2) @ of_classes).unflatten(2, (way, -1)).unflatten(1, part.shape[1:3])
            cosines = cosines.transpose(2, 3)  # (e, q, way, r, most · r)
            if not complete:
                cosines = cosines.masked_fill(absent, -torch.inf)
            found.append(cosines.topk(count, dim=-1, sorted=False).values.sum(dim=(-2, -1)))
        scores: Tensor = self.scale(torch.cat(found, dim=1))
        return scores

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """Copies of the descriptors, and the cosines of as many queries as are scored at a time."""
        descriptors = 4 * (support[0] + query[0]) * support[1] * support[2] * support[3]
        return 2 * descriptors + min(_BYTES_AT_A_TIME, query[0] * _bytes_per_query(support))

    def _queries_at_a_time(self, support: Tensor, query: Tensor) -> int:
        return max(1, _BYTES_AT_A_TIME // (len(support) * _bytes_per_query(tuple(support.shape[1:]))))


def _bytes_per_query(support: tuple[int, ...]) -> int:
    """Memory of the cosines of one query with a support set ``(s, d, h, w)``, with a copy."""
    positions = support[2] * support[3]
    return 2 * 4 * positions * support[0] * positions


def _descriptors(maps: Tensor) -> Tensor:
    """The vectors at all positions, of length 1: ``(e, n, d, h, w) -> (e, n, h · w, d)``. A zero vector stays 0."""
    return normalize(maps.flatten(3).transpose(-2, -1), dim=-1)
