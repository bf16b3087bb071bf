"""What all few-shot classifiers have in common: the call, and the checks of what they are given."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from deepbdc._registry import Registry
from deepbdc.errors import NotFinite, UserError, WrongType

if TYPE_CHECKING:
    from deepbdc.classifiers.linear import LinearRule

Representation = Literal["vectors", "maps"]


class Classifier(nn.Module):
    """A rule from a labelled support set to scores of queries, for any leading batch of episodes.

    A child writes only `score`, its formula, for a flat batch of episodes whose inputs are already checked. Its
    parameters and buffers are trained, moved and saved with the method that it belongs to.

    Args:
        settings: All options of the classifier, so that a result can record them and a fingerprint tells two apart.
    """

    transductive: ClassVar[bool] = False
    """Whether the score of a query depends on the other queries. Results and tables say so."""
    assumes_balanced_queries: ClassVar[bool] = False
    """Whether a transductive classifier assumes that all classes have equally many queries."""
    takes: Representation = "vectors"
    """The representation of one image: a vector ``(features,)``, or a feature map ``(d, h, w)``."""
    named_parameter_groups: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Parameters that a recipe may give a learning rate of their own: the name of the group -> names of parameters."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings

    @abstractmethod
    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """The formula: ``(e, s, ...), (e, s), (e, q, ...) -> (e, q, way)``.

        Evaluation calls it under ``torch.no_grad()``; a classifier that needs gradients inside switches them on with
        ``torch.enable_grad()``.
        """

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """Bytes that `score` needs for one episode, besides its inputs and scores.

        Evaluation scores as many episodes at a time as fit into its memory.

        Args:
            support: Shape of the support representations of one episode, ``(s, ...)``.
            query: Shape of the query representations, ``(q, ...)``.
        """
        return 0

    def rule(self, support: Tensor, support_labels: Tensor, way: int) -> "LinearRule":
        """Fit ``(e, s, features), (e, s)`` once, for any queries.

        The scores of the rule are those of `score`, up to a number that is the same for all classes of a query.
        """
        raise UserError(f"{type(self).__name__} is not a linear rule that can be fitted once and kept")

    def forward(self, support: Tensor, support_labels: Tensor, query: Tensor) -> Tensor:
        """Scores ``(..., q, way)`` of the queries: the larger, the more likely the class.

        Args:
            support: Representations ``(..., s, features)`` of the labelled images, float32 or float64; maps
                ``(..., s, d, h, w)`` if the classifier takes maps.
            support_labels: Their classes ``(..., s)``, integers from 0 to way - 1. The way is the same in all episodes
                of a batch; the classes of an episode may have unequal numbers of images.
            query: Representations ``(..., q, features)`` of the images to classify.
        """
        dimensions = 1 if self.takes == "vectors" else 3
        self._check_representation(support, support_labels)
        _check_tensors(support, support_labels, query, dimensions)
        batch = support_labels.shape[:-1]
        labels = support_labels.reshape(-1, support_labels.shape[-1]).long()
        way = _checked_way(labels, batch)
        flat_support = support.reshape(len(labels), *support.shape[-dimensions - 1 :])
        flat_query = query.reshape(len(labels), *query.shape[-dimensions - 1 :])
        try:
            scores = self.score(flat_support, labels, flat_query, way)
        except (RuntimeError, ValueError):
            _check_finite(support, query, dimensions)  # broken features may be the true reason
            raise
        # Broken features always break scores. Checking the few scores first saves a pass over all features.
        if not bool(torch.isfinite(scores.detach()).all()):
            _check_finite(support, query, dimensions)
            largest = max(float(x.detach().abs().max()) for x in (support, query))
            raise NotFinite(
                f"scores overflow: features go up to {largest:g}. Scale them down, or give them as float64."
            )
        return scores.reshape(*batch, scores.shape[-2], way)

    def _check_representation(self, support: Tensor, support_labels: Tensor) -> None:
        """Raise if maps are given to a classifier that takes vectors, or the other way round."""
        if isinstance(support, Tensor) and isinstance(support_labels, Tensor):
            images = support_labels.dim()
            given = {1: "vectors", 3: "maps"}.get(support.dim() - images, self.takes)
            if given != self.takes and support.shape[:images] == support_labels.shape:
                forms = {"vectors": "vectors (features,)", "maps": "feature maps (d, h, w)"}
                raise UserError(
                    f"{type(self).__name__} takes {forms[self.takes]}, but the representations of this network are "
                    f"{forms[given]}: choose another classifier, or another pooling layer"
                )

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{type(self).__name__}({settings})"


classifiers: Registry[Classifier] = Registry("classifier")


def positive(name: str, value: float) -> float:
    """``value``, if it is a positive finite number."""
    if not 0 < value < float("inf"):
        raise UserError(f"{name} must be a positive number, got {value!r}")
    return value


def lengths(x: Tensor) -> Tensor:
    """Euclidean norms, ``(..., n, features) -> (..., n)``, without a temporary of the size of x."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return norms


def shots(labels: Tensor, way: int) -> Tensor:
    """The number of support images of each class: ``(e, s) -> (e, way)``."""
    return membership(labels, way, torch.int64).sum(dim=-2)


def grouped_by_class(support: Tensor, labels: Tensor, way: int) -> tuple[Tensor, Tensor]:
    """Gather the support images of each class: ``(e, s, ...), (e, s) -> (e, way, most, ...), (e, way, most)``.

    ``most`` is the largest number of images of a class. The second tensor is True where there is an image; elsewhere
    the first one repeats some image of the episode.
    """
    counts = shots(labels, way)
    starts = counts.cumsum(dim=-1) - counts
    rank = torch.arange(int(counts.max()), device=labels.device)
    order = labels.argsort(dim=-1, stable=True)
    places = (starts.unsqueeze(-1) + rank).clamp(max=labels.shape[-1] - 1)  # (e, way, most)
    images = order.gather(1, places.flatten(1))
    episodes = torch.arange(len(labels), device=labels.device).unsqueeze(-1)
    return support[episodes, images].unflatten(1, (way, -1)), rank < counts.unsqueeze(-1)


def membership(labels: Tensor, way: int, dtype: torch.dtype) -> Tensor:
    """1 where an image is of a class, else 0: ``(e, s) -> (e, s, way)``."""
    return one_hot(labels, way).to(dtype)


def _check_tensors(support: Tensor, labels: Tensor, query: Tensor, dimensions: int) -> None:
    for name, tensor in (("support", support), ("support_labels", labels), ("query", query)):
        if not isinstance(tensor, Tensor):
            raise WrongType(f"{name} must be a torch.Tensor, got {type(tensor).__name__}: use torch.as_tensor")
    for name, tensor in (("support", support), ("query", query)):
        if tensor.dtype not in (torch.float32, torch.float64):
            raise UserError(f"{name} must be float32 or float64, got {tensor.dtype}: convert it with .float()")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise UserError(f"support_labels must be integers, got {labels.dtype}: convert them with .long()")
    if support.dtype != query.dtype:
        raise UserError(f"support and query must have one dtype, got {support.dtype} and {query.dtype}")
    if not support.device == query.device == labels.device:
        raise UserError(
            "support, support_labels and query must be on one device, got "
            f"{support.device}, {labels.device} and {query.device}"
        )
    _check_shapes(tuple(support.shape), tuple(labels.shape), tuple(query.shape), dimensions)


def _check_shapes(support: tuple[int, ...], labels: tuple[int, ...], query: tuple[int, ...], dimensions: int) -> None:
    form = "features" if dimensions == 1 else "d, h, w"
    for name, shape in (("support", support), ("query", query)):
        if len(shape) < dimensions + 1:
            raise UserError(f"{name} must have shape (..., images, {form}), got {shape}")
    if support[:-dimensions] != labels:
        raise UserError(
            f"every support image needs one label: support has shape {support}, so support_labels must have "
            f"shape {support[:-dimensions]}, got {labels}"
        )
    if support[: -dimensions - 1] != query[: -dimensions - 1]:
        raise UserError(
            f"support and query must hold the same batch of episodes, got {support[: -dimensions - 1]} (support of "
            f"shape {support}) and {query[: -dimensions - 1]} (query of shape {query})"
        )
    if support[-dimensions:] != query[-dimensions:]:
        raise UserError(
            f"support and query must be represented alike, got {support[-dimensions:]} and {query[-dimensions:]}"
        )
    if 0 in support:
        raise UserError(f"there is nothing to learn from: support has shape {support}")


def _checked_way(labels: Tensor, batch: torch.Size) -> int:
    """The number of classes of checked labels ``(e, s)``."""
    lowest, highest = (int(bound) for bound in torch.aminmax(labels))
    if lowest < 0:
        episode = int((labels == lowest).any(dim=-1).nonzero()[0])
        raise UserError(
            f"support_labels must be 0 to way - 1, got {lowest}{_place(episode, batch)}: "
            "number the classes of each episode from 0"
        )
    way = highest + 1
    if way <= labels.shape[-1]:
        missing = shots(labels, way) == 0  # (e, way)
        if not bool(missing.any()):
            return way
        episode, absent = missing.nonzero()[0].tolist()
    else:  # more classes than images: do not build a table for a label of a billion
        episode = 0
        absent = min(set(range(labels.shape[-1] + 1)) - set(labels[0].tolist()))
    found = ", ".join(str(label) for label in labels[episode].unique()[:20].tolist())
    raise UserError(
        f"class {absent} has no support image{_place(episode, batch)}: its support_labels are {found}, but the largest "
        f"label of all episodes is {highest}, so {way} classes need at least one image each. "
        "Number the classes of each episode from 0 to way - 1, and batch episodes of one way."
    )


def _check_finite(support: Tensor, query: Tensor, dimensions: int) -> None:
    for name, features in (("support", support), ("query", query)):
        broken = ~torch.isfinite(features).flatten(-dimensions).all(dim=-1)  # (..., images)
        if bool(broken.any()):
            *episode, image = broken.nonzero()[0].tolist()
            place = f" of episode {_index(episode)}" if episode else ""
            raise NotFinite(
                f"{name} has NaN or infinite features: {int(broken.sum())} of {broken.numel()} images, the first is "
                f"image {image}{place}. The network or the stored features are broken there."
            )


def _place(episode: int, batch: torch.Size) -> str:
    """Where in the batch a flat episode number is, as the end of a phrase."""
    if not batch:
        return ""
    index = [int(i) for i in torch.unravel_index(torch.tensor(episode), batch)]
    return f" in episode {_index(index)}"


def _index(index: list[int]) -> str:
    return str(index[0]) if len(index) == 1 else str(tuple(index))
