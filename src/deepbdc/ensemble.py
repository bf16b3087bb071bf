"""Several trained methods as one: the mean of the scores that they give to the same queries, in a common unit."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deepbdc.classifiers import LinearRule
from deepbdc.data.dataset import Dataset
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.feature_bank import Source
from deepbdc.methods.base import Method
from deepbdc.preprocessing import AtTestTime


class Ensemble(Method):
    """Scores a query by the mean score of its members, (1/m) Σ_i (s_i - mean of s_i over the classes) / u_i.

    Some methods give scores of tenths, others of tens: a mean of their probabilities would follow the network with the
    largest scores. The unit u_i is the root mean square of the centred scores that the member gives to the support
    images; it does not depend on the queries. (A transductive member scores the support images in a second run.)

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
        """The mean of the members' scores, ``(..., query, way)``."""
        parts = zip(self._members, self._split(support), self._split(query), self._shapes, strict=True)
        return torch.stack(
            [_in_units(member, one, support_labels, other, len(shape)) for member, one, other, shape in parts]
        ).mean(dim=0)

    def rule(self, support: Tensor, support_labels: Tensor, way: int) -> LinearRule:
        """There is none for representations of several networks."""
        raise UserError("an ensemble has several networks and no linear rule: take one of its networks")

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """The most that any member needs, and the parts of the representations."""
        needed = (
            member.working_memory((support[0], *shape), (query[0] + support[0], *shape))
            for member, shape in zip(self._members, self._shapes, strict=True)
        )
        return max(needed) + 4 * (math.prod(support) + math.prod(query))

    def check_test_time(self, test_time: AtTestTime) -> None:
        """Raise a `UserError` if any member cannot be evaluated with these views, this power or this mean."""
        for member in self._members:
            member.check_test_time(test_time)

    def source(self, dataset: Dataset, **options: Any) -> Source:
        """The sources of all members, side by side."""
        return _SideBySide([(member.embedding, member.source(dataset, **options)) for member in self._members])

    @property
    def _members(self) -> list[Method]:
        return list(self.members)  # type: ignore[arg-type]

    @cached_property
    def _shapes(self) -> list[tuple[int, ...]]:
        """The shape of the representation of one image, for each member."""
        return [member.shape_of_one() for member in self._members]

    def _split(self, rows: Tensor) -> list[Tensor]:
        """The representations of each member in its own shape, from ``(..., n, features)``."""
        sizes = [math.prod(shape) for shape in self._shapes]
        parts = rows.split(sizes, dim=-1)
        return [part.unflatten(-1, shape) for part, shape in zip(parts, self._shapes, strict=True)]


def _in_units(member: Method, support: Tensor, support_labels: Tensor, query: Tensor, dimensions: int) -> Tensor:
    """The scores of a member, centred over the classes, in units of their spread on the support images.

    Args:
        member: A method.
        support: Representations of the support images, with so many ``dimensions`` each.
        support_labels: Their classes.
        query: Representations of the query images.
        dimensions: The number of dimensions of one representation.
    """
    if member.transductive:  # the support images must not be among its queries
        of_queries = member.classify(support, support_labels, query)
        of_support = member.classify(support, support_labels, support)
    else:
        both = torch.cat([query, support], dim=-dimensions - 1)
        counts = [images.shape[-dimensions - 1] for images in (query, support)]
        of_queries, of_support = member.classify(support, support_labels, both).split(counts, dim=-2)
    spread = of_support.std(dim=-1, correction=0, keepdim=True).square().mean(dim=-2, keepdim=True).sqrt()
    centred = of_queries - of_queries.mean(dim=-1, keepdim=True)
    return torch.where(spread > 0, centred / spread, 0.0)  # without any spread, a member has no say


class _SideBySide(Source):
    """The rows of several sources, flattened, one after the other.

    Args:
        sources: Each with the embedding that it was made by.
    """

    def __init__(self, sources: Sequence[tuple[Embedding, Source]]) -> None:
        self.sources = sources
        first = sources[0][1]
        self.data_fingerprint, self.test_time = first.data_fingerprint, first.test_time
        self.kept = " and ".join(dict.fromkeys(source.kept for _, source in sources)) + f", of {len(sources)} networks"

    def rows(self, indices: NDArray[np.int64]) -> Tensor:
        """Representations of some images, ``(k, features)``."""
        return torch.cat([source.rows(indices).flatten(1).cpu() for _, source in self.sources], dim=1)

    def check(self, embedding: Embedding, dataset: Dataset) -> None:
        """Raise if a source was made of other images, or by another network."""
        for own, source in self.sources:
            source.check(own, dataset)
