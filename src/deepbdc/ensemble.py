"""Several trained methods as one: the mean of the probabilities that they give to the same queries."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deepbdc._modes import evaluating
from deepbdc.classifiers import LinearRule
from deepbdc.data.dataset import Dataset
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.feature_bank import Source, device_of
from deepbdc.methods.base import Method


class Ensemble(Method):
    """Scores a query by the logarithm of the mean probability of its members, log (1/m) Σ_i softmax(s_i).

    The members may be of different methods, and have different networks and sizes of images. Each looks at a task in
    its own way; a representation is what all members make of an image, one after the other in one vector.

    Args:
        members: Trained methods.
    """

    def __init__(self, members: Sequence[Method]) -> None:
        if len(members) < 2:
            raise UserError(f"an ensemble needs at least two methods, got {len(members)}")
        super().__init__(members[0].embedding, members[0].classifier)
        self.members = nn.ModuleList(members)

    @property
    def transductive(self) -> bool:
        """Whether the score of a query depends on the other queries, for any member."""
        return any(member.transductive for member in self._members)

    @property
    def assumes_balanced_queries(self) -> bool:
        """Whether any member assumes that all classes have equally many queries."""
        return any(member.assumes_balanced_queries for member in self._members)

    def embed(self, images: Tensor) -> Tensor:
        """What all members make of images that are prepared in the same way, ``(n, 3, h, w) -> (n, features)``."""
        return torch.cat([member.embed(images).flatten(1) for member in self._members], dim=1)

    def classifier_for(self, shot: int) -> Any:
        """What a result names: the classifiers of all members."""
        return [member.classifier_for(shot) for member in self._members]

    def classify(self, support: Tensor, support_labels: Tensor, query: Tensor) -> Tensor:
        """Logarithms of the mean probabilities, ``(..., query, way)``."""
        parts = zip(self._members, self._split(support), self._split(query), strict=True)
        scores = [member.classify(one, support_labels, other) for member, one, other in parts]
        logarithms = torch.stack([score.log_softmax(dim=-1) for score in scores])
        return logarithms.logsumexp(dim=0) - math.log(len(scores))

    def rule(self, support: Tensor, support_labels: Tensor, way: int) -> LinearRule:
        """There is none: a mean of probabilities is no linear rule."""
        raise UserError("an ensemble averages probabilities, which is no linear rule: take one of its networks")

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """The most that any member needs, and the parts of the representations."""
        needed = (
            member.working_memory((support[0], *shape), (query[0], *shape))
            for member, shape in zip(self._members, self._shapes, strict=True)
        )
        return max(needed) + 4 * (math.prod(support) + math.prod(query))

    def source(self, dataset: Dataset, **options: Any) -> Source:
        """The sources of all members, side by side."""
        return _SideBySide([(member.embedding, member.source(dataset, **options)) for member in self._members])

    @property
    def _members(self) -> list[Method]:
        return list(self.members)  # type: ignore[arg-type]

    @cached_property
    def _shapes(self) -> list[tuple[int, ...]]:
        """The shape of the representation of one image, for each member."""
        return [tuple(_blank(member).shape[1:]) for member in self._members]

    def _split(self, rows: Tensor) -> list[Tensor]:
        """The representations of each member in its own shape, from ``(..., n, features)``."""
        sizes = [math.prod(shape) for shape in self._shapes]
        parts = rows.split(sizes, dim=-1)
        return [part.unflatten(-1, shape) for part, shape in zip(parts, self._shapes, strict=True)]


def _blank(member: Method) -> Tensor:
    """What a method makes of one black image."""
    size = member.embedding.preprocessing.input_size
    with evaluating(member), torch.no_grad():
        return member.embed(torch.zeros(1, 3, size, size, device=device_of(member)))


class _SideBySide(Source):
    """The rows of several sources, flattened, one after the other.

    Args:
        sources: Each with the embedding that it was made by.
    """

    def __init__(self, sources: Sequence[tuple[Embedding, Source]]) -> None:
        self.sources = sources
        first = sources[0][1]
        if any(source.test_time.crops != first.test_time.crops for _, source in sources):
            raise UserError(
                "a network of this ensemble adapts itself to each task and takes pictures, not representations, which "
                "could be averaged over crops: leave out crops"
            )
        self.data_fingerprint, self.test_time = first.data_fingerprint, first.test_time
        self.kept = " and ".join(dict.fromkeys(source.kept for _, source in sources)) + f", of {len(sources)} networks"

    def rows(self, indices: NDArray[np.int64]) -> Tensor:
        """Representations of some images, ``(k, features)``."""
        return torch.cat([source.rows(indices).flatten(1).cpu() for _, source in self.sources], dim=1)

    def check(self, embedding: Embedding, dataset: Dataset) -> None:
        """Raise if a source was made of other images, or by another network."""
        for own, source in self.sources:
            source.check(own, dataset)
