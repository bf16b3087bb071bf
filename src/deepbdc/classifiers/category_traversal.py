"""The category traversal module: a mask of channels that is chosen by looking at all classes of a task."""

from typing import get_args

import torch
from torch import Tensor, nn

from deepbdc.classifiers._scale import Scale
from deepbdc.classifiers.base import Classifier, positive
from deepbdc.classifiers.prototype import Similarity, class_means, similarities
from deepbdc.errors import UserError


class CategoryTraversalClassifier(Classifier):
    """Prototypes of feature maps whose channels are weighted for the task (Li et al., CVPR 2019).

    Three small networks without down-sampling: the concentrator turns support maps ``(d, h, w)`` into
    ``(hidden, h, w)``, averaged over each class; the projector turns the class maps of a task into one map
    ``(hidden, h, w)``, whose softmax over channels is the mask p; the reshaper r gives support and query maps the size
    of the mask. The score of a class is the similarity of r(q) ⊙ p to the mean of the r(x) ⊙ p of its support images.

    The original concatenates the class maps along the channels, so that it works for one number of classes and depends
    on their order. Here the projector is given the mean and the maximum over classes, ``(2 · hidden, h, w)``, so any
    number of classes in any order will do. The mask is multiplied by the number of channels, so that its mean is 1, and
    squared distances and inner products are averaged over positions: both are constant factors, like the scale.

    Args:
        channels: d.
        hidden: Channels of all three networks.
        blocks: Residual bottleneck blocks in each of them.
        similarity: Of queries and prototypes.
        scale: Start of a learnable factor on the scores, the parameter group ``scale`` (None: no factor).
    """

    takes = "maps"
    named_parameter_groups = {  # noqa: RUF012
        "traversal": ("concentrator", "projector", "reshaper"),
        "scale": ("scale.scale",),
    }

    def __init__(
        self,
        channels: int,
        hidden: int = 64,
        blocks: int = 2,
        similarity: Similarity = "euclidean",
        scale: float | None = 1.0,
    ) -> None:
        super().__init__(channels=channels, hidden=hidden, blocks=blocks, similarity=similarity, scale=scale)
        if similarity not in get_args(Similarity):
            raise UserError(f"similarity must be one of {', '.join(get_args(Similarity))}, got {similarity!r}")
        self.channels = int(positive("channels", channels))
        self.similarity: Similarity = similarity
        self.concentrator = _bottlenecks(channels, hidden, int(positive("blocks", blocks)))
        self.projector = _bottlenecks(2 * hidden, hidden, blocks)
        self.reshaper = _bottlenecks(channels, hidden, blocks)
        self.scale = Scale(None if scale is None else positive("scale", scale))

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, d, h, w), (e, s), (e, q, d, h, w) -> (e, q, way)``."""
        if support.shape[2] != self.channels:
            raise UserError(f"this module is made for {self.channels} channels, got {support.shape[2]}")
        mask = self._mask(support, support_labels, way).unsqueeze(1)  # (e, 1, hidden, h, w)
        maps = _each(self.reshaper, torch.cat([support, query], dim=1)) * mask
        vectors = maps.flatten(2) / (mask.shape[-2] * mask.shape[-1]) ** 0.5
        prototypes = class_means(vectors[:, : support.shape[1]], support_labels, way)
        scores: Tensor = self.scale(similarities(vectors[:, support.shape[1] :], prototypes, self.similarity))
        return scores.to(query.dtype)

    def _mask(self, support: Tensor, labels: Tensor, way: int) -> Tensor:
        """The weights of channels and positions, with mean 1 over channels: ``(e, hidden, h, w)``."""
        concentrated = _each(self.concentrator, support)
        shape = concentrated.shape[2:]
        classes = class_means(concentrated.flatten(2), labels, way).reshape(-1, way, *shape)
        of_task = torch.cat([classes.mean(dim=1), classes.amax(dim=1)], dim=1)  # (e, 2 · hidden, h, w)
        mask: Tensor = self.projector(of_task).softmax(dim=1) * shape[0]
        return mask

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """A few maps of all images inside a network, and the concatenated inputs."""
        images, positions = support[0] + query[0], support[2] * support[3]
        return 4 * images * positions * (support[1] + 4 * int(self.settings["hidden"]))


class _Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions with batch norm, a quarter of the channels in between, and a shortcut."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        inner = max(1, after // 4)
        self.layers = nn.Sequential(
            nn.Conv2d(before, inner, kernel_size=1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            nn.Conv2d(inner, inner, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            nn.Conv2d(inner, after, kernel_size=1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, kernel_size=1, bias=False), nn.BatchNorm2d(after))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, maps: Tensor) -> Tensor:
        """``(n, before, h, w) -> (n, after, h, w)``."""
        out: Tensor = (self.layers(maps) + self.shortcut(maps)).relu()
        return out


def _bottlenecks(before: int, after: int, blocks: int) -> nn.Sequential:
    return nn.Sequential(*(_Bottleneck(before if block == 0 else after, after) for block in range(blocks)))


def _each(network: nn.Module, maps: Tensor) -> Tensor:
    """Apply a network to every map of every episode: ``(e, n, d, h, w) -> (e, n, hidden, h, w)``."""
    weight = next(network.parameters())
    out: Tensor = network(maps.flatten(0, 1).to(weight.dtype))
    return out.reshape(*maps.shape[:2], *out.shape[1:])
