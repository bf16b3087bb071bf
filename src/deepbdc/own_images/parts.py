"""Parts of the examples: an example also teaches what two parts of its picture look like from nearer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.own_images.pictures import EmbeddedImage
from deepbdc.own_images.reading import represent

CHOICES = ("none", "examples", "all")
"""Of which pictures parts are looked at: of none, of the examples, or also of the pictures to classify."""
DEFAULT = "examples"


def checked_choice(choice: str) -> str:
    """``choice``, if it is one of `CHOICES`."""
    if choice not in CHOICES:
        raise UserError(f"parts must be one of {', '.join(CHOICES)}, got {choice!r}")
    return choice


@dataclass(frozen=True)
class Parts:
    """Representations of the parts of examples."""

    vectors: Tensor
    """``(n, features)``"""
    owners: Tensor
    """The index of the example that each is a part of ``(n,)``."""

    @classmethod
    def none_of(cls, examples: Tensor) -> Self:
        """No parts of examples ``(s, features)``."""
        return cls(examples[:0], torch.zeros(0, dtype=torch.long, device=examples.device))

    @classmethod
    def of(cls, examples: Sequence[EmbeddedImage], embedding: Embedding, batch_size: int, like: Tensor) -> Self:
        """The parts of those examples that have some. ``like`` are the representations of the examples."""
        found = [(index, example.parts) for index, example in enumerate(examples) if example.parts is not None]
        if not found:
            return cls.none_of(like)
        owners = torch.cat([torch.full((len(parts),), index) for index, parts in found])
        vectors = represent(embedding, torch.cat([parts for _, parts in found]), batch_size)
        return cls(vectors, owners.to(like.device))

    def chosen(self, indices: Sequence[int]) -> "Parts":
        """Those of some of the examples, which are numbered anew in the order of ``indices``."""
        places = {index: place for place, index in enumerate(indices)}
        kept = [row for row, owner in enumerate(self.owners.tolist()) if owner in places]
        owners = [places[owner] for owner in self.owners[kept].tolist()]
        return Parts(self.vectors[kept], torch.tensor(owners, dtype=torch.long, device=self.owners.device))

    def beside(self, examples: Tensor, labels: Tensor, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Examples ``(s, features)`` with labels ``(s,)``, followed by their parts; only of those that are ``kept``."""
        if kept is None:
            kept = torch.ones_like(labels, dtype=torch.bool)
        own = kept[self.owners]
        vectors = torch.cat([examples[kept], self.vectors[own].to(examples)])
        return vectors, torch.cat([labels[kept], labels[self.owners[own]]])
