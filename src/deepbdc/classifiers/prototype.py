"""The nearest prototype: a class is the mean of its support images."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from deepbdc.classifiers._scale import Scale
from deepbdc.classifiers.base import Classifier, classifiers, grouped_by_class, lengths, membership, positive, shots
from deepbdc.classifiers.linear import LinearRule
from deepbdc.errors import UserError

Similarity = Literal["euclidean", "cosine", "inner_product"]
PrototypeForm = Literal["mean", "mean_features", "concatenated_features"]


class PrototypeClassifier(Classifier):
    """Scores are similarities to one prototype per class.

    Snell et al., "Prototypical Networks for Few-shot Learning", NeurIPS 2017; with BDC representations it is Meta
    DeepBDC (Xie et al., CVPR 2022, Eq. 8), and its three ways to make a prototype are those of supplement S3-1.
    Everything is differentiable.
    """

    named_parameter_groups = {"scale": ("scale.scale",)}  # noqa: RUF012

    def __init__(
        self, similarity: Similarity, prototype: PrototypeForm, pool: nn.Module | None, scale: float | None
    ) -> None:
        super().__init__(
            similarity=similarity, prototype=prototype, pool=None if pool is None else repr(pool), scale=scale
        )
        if similarity not in get_args(Similarity):
            raise UserError(f"similarity must be one of {', '.join(get_args(Similarity))}, got {similarity!r}")
        if prototype not in get_args(PrototypeForm):
            raise UserError(f"prototype must be one of {', '.join(get_args(PrototypeForm))}, got {prototype!r}")
        if prototype != "mean" and pool is None:
            raise UserError(
                f"prototype={prototype!r} is made of feature maps: give the layer that turns a map into a "
                "representation, for example pool=deepbdc.BDCPool(channels)"
            )
        self.similarity = similarity
        self.prototype = prototype
        self.pool = pool
        self.takes = "vectors" if pool is None else "maps"
        self.scale = Scale(None if scale is None else positive("scale", scale))

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, features), (e, s), (e, q, features) -> (e, q, way)``; with a pool, maps ``(e, s, d, h, w)``."""
        if self.pool is None:
            prototypes = class_means(support, support_labels, way)
        else:
            query = _pool_all(self.pool, query)
            prototypes = self._pooled_prototypes(self.pool, support, support_labels, way)
        scaled: Tensor = self.scale(similarities(query, prototypes, self.similarity))
        return scaled

    def with_similarity(self, similarity: Similarity) -> "PrototypeClassifier":
        """A classifier with another similarity, whose parameters are those of this one."""
        if similarity == self.similarity:
            return self
        other = PrototypeClassifier(similarity, self.prototype, self.pool, None)
        other.scale = self.scale
        other.settings = {**self.settings, "similarity": similarity}
        return other

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """With a pool that says how many numbers it gives: the representations of all images."""
        count = getattr(self.pool, "out_features_for", None)
        return 0 if count is None else 4 * (support[0] + query[0]) * int(count(*support[-2:]))

    def rule(self, support: Tensor, support_labels: Tensor, way: int) -> LinearRule:
        """``(e, s, features), (e, s)`` -> similarities to the means."""
        if self.pool is not None:
            return super().rule(support, support_labels, way)
        return linear_rule(class_means(support, support_labels, way), self.similarity, self.scale.factor)

    def _pooled_prototypes(self, pool: nn.Module, maps: Tensor, labels: Tensor, way: int) -> Tensor:
        if self.prototype == "mean":
            return class_means(_pool_all(pool, maps), labels, way)
        if self.prototype == "mean_features":
            means = class_means(maps.flatten(2), labels, way)
            return _pool_all(pool, means.reshape(-1, way, *maps.shape[2:]))
        return _pooled_concatenations(pool, maps, labels, way)


@classifiers.register
def prototype(
    similarity: Similarity = "euclidean",
    prototype: PrototypeForm = "mean",
    pool: nn.Module | None = None,
    scale: float | None = None,
) -> PrototypeClassifier:
    """The nearest prototype.

    Args:
        similarity: ``"euclidean"``: minus the squared distance (Meta DeepBDC with more than one shot);
            ``"inner_product"`` (Meta DeepBDC with one); ``"cosine"``.
        prototype: ``"mean"`` of the representations; or, from feature maps, the representation of the mean map
            (``"mean_features"``) or of the maps of a class beside each other (``"concatenated_features"``).
        pool: Represents maps ``(n, d, h, w)``. With it, support and query are maps ``(..., s, d, h, w)``. Maps are
            averaged as they are given: if the pool begins with a reduction of channels, then before it.
        scale: Start of a learnable factor on the scores, which belongs to the parameter group ``scale`` (None: no
            factor).
    """
    return PrototypeClassifier(similarity, prototype, pool, scale)


def class_means(features: Tensor, labels: Tensor, way: int) -> Tensor:
    """Mean of the images of each class: ``(e, s, features), (e, s) -> (e, way, features)``."""
    members = membership(labels, way, features.dtype)
    return (members / members.sum(dim=-2, keepdim=True)).transpose(-2, -1) @ features


def similarities(query: Tensor, prototypes: Tensor, similarity: Similarity) -> Tensor:
    """``(e, q, features), (e, way, features) -> (e, q, way)`` by one product, without a (q, way, features) array."""
    if similarity == "inner_product":
        return query @ prototypes.transpose(-2, -1)
    if similarity == "cosine":
        products = query @ prototypes.transpose(-2, -1)
        tiny = torch.finfo(query.dtype).tiny  # a zero representation has cosine 0 with every other
        return products / lengths(query).clamp(min=tiny)[..., None] / lengths(prototypes).clamp(min=tiny)[..., None, :]
    return -_squared_distances(query, prototypes)


def linear_rule(prototypes: Tensor, similarity: Similarity, factor: float) -> LinearRule:
    """The rule of ``factor`` times `similarities` to prototypes ``(e, way, features)``.

    -‖q - p‖² without ‖q - c‖², which all classes share, is 2 (q - c)·(p - c) - ‖p - c‖².
    """
    none = prototypes.new_zeros(len(prototypes), 1, prototypes.shape[1], dtype=torch.float64)
    if similarity == "cosine":
        return LinearRule(factor * normalize(prototypes, dim=-1), none, normalize=True)
    if similarity == "inner_product":
        return LinearRule(factor * prototypes, none, normalize=False)
    centre = prototypes.mean(dim=-2, keepdim=True)
    relative = prototypes - centre
    offsets = _squared_norms(relative).unsqueeze(-2) + 2 * centre @ relative.transpose(-2, -1)
    return LinearRule(2 * factor * relative, -factor * offsets.double(), normalize=False)


def _squared_distances(query: Tensor, prototypes: Tensor) -> Tensor:
    """‖q - p‖² = ‖q - c‖² - 2 (q - c)·(p - c) + ‖p - c‖² with c the mean of the prototypes.

    Without c the large common part of representations would cost the digits that tell classes apart. Expanding the
    first term still loses digits, but the same for all classes.
    """
    centre = prototypes.mean(dim=-2, keepdim=True)
    relative = prototypes - centre
    products = query @ torch.cat([relative, centre], dim=-2).transpose(-2, -1)  # (e, q, way + 1)
    centred = products[..., :-1] - centre @ relative.transpose(-2, -1)
    to_centre = _squared_norms(query).unsqueeze(-1) - 2 * products[..., -1:] + _squared_norms(centre).unsqueeze(-1)
    return to_centre - 2 * centred + _squared_norms(relative).unsqueeze(-2)


def _squared_norms(x: Tensor) -> Tensor:
    return lengths(x).square()


def _pool_all(pool: nn.Module, maps: Tensor) -> Tensor:
    """``(e, n, d, h, w) -> (e, n, features)``."""
    pooled: Tensor = pool(maps.flatten(0, 1))
    return pooled.reshape(*maps.shape[:2], -1)


def _pooled_concatenations(pool: nn.Module, maps: Tensor, labels: Tensor, way: int) -> Tensor:
    """Each class as one map with the positions of all its images: ``(e, s, d, h, w) -> (e, way, features)``."""
    grouped, _ = grouped_by_class(maps, labels, way)  # (e, way, most, d, h, w)
    counts = shots(labels, way)
    places, pooled = [], []
    for shot in counts.unique().tolist():  # classes with equally many images make maps of one size
        chosen = counts == shot
        wide = grouped[chosen][:, :shot].transpose(1, 2).flatten(2, 3)  # (n, d, shot · h, w)
        pooled.append(pool(wide).flatten(1))
        places.append(chosen.flatten().nonzero()[:, 0])
    order = torch.cat(places).argsort()
    return torch.cat(pooled)[order].reshape(len(labels), way, -1)
