"""The relation module of RelationNet: a small network that compares the map of a class with that of a query."""

from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn import functional

from deepbdc.classifiers.base import Classifier, membership, positive, shots
from deepbdc.errors import UserError

ClassMap = Literal["sum", "mean"]

_GRID = 3
"""Height and width of the map before the fully connected layers. A map of 19×19, as in the original, ends with it."""
_SMALL_MAP = 10
"""Below this height or width the convolutions pad their input by 1."""


class RelationClassifier(Classifier):
    """A learnt comparison of feature maps (Sung et al., CVPR 2018).

    The map of a class is the sum or the mean of those of its support images. It is concatenated with the map of a query
    along the channels, ``(2 d, h, w)``, and passes through two blocks (3×3 convolution, batch norm, ReLU, 2×2
    max-pooling) and two fully connected layers to one number. Scores are these numbers, without the sigmoid of the
    original, which would change neither their order nor, in the loss of RelationNet, anything but the rounding.

    The original is made for maps of 19×19, where the blocks, without padding, leave 3×3. Maps below 10×10 are padded by
    1 in both convolutions. If the blocks leave another size, adaptive average pooling makes it 3×3, so the classifier
    takes maps of any size.

    The first convolution is linear, so it is applied to class maps and query maps separately and the results are added
    for each pair, which gives the same numbers without the concatenated maps of all pairs.

    Args:
        channels: d.
        hidden: Channels of the two blocks.
        units: Width of the first fully connected layer.
        class_map: ``"sum"`` over the support images of a class, or ``"mean"``. Sums grow with the number of images.
    """

    takes = "maps"
    named_parameter_groups = {"relation": ("compare", "norm", "second", "out")}  # noqa: RUF012

    def __init__(self, channels: int, hidden: int = 64, units: int = 8, class_map: ClassMap = "sum") -> None:
        super().__init__(channels=channels, hidden=hidden, units=units, class_map=class_map)
        if class_map not in get_args(ClassMap):
            raise UserError(f"class_map must be one of {', '.join(get_args(ClassMap))}, got {class_map!r}")
        self.channels = int(positive("channels", channels))
        self.class_map = class_map
        self.compare = nn.Conv2d(2 * channels, hidden, kernel_size=3)
        self.norm = nn.BatchNorm2d(hidden)
        self.second = nn.ModuleList([nn.Conv2d(hidden, hidden, kernel_size=3), nn.BatchNorm2d(hidden)])
        self.out = nn.Sequential(nn.Linear(_GRID * _GRID * hidden, units), nn.ReLU(), nn.Linear(units, 1))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.01)
                nn.init.ones_(module.bias)

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, d, h, w), (e, s), (e, q, d, h, w) -> (e, q, way)``."""
        if support.shape[2] != self.channels:
            raise UserError(f"this relation module is made for {self.channels} channels, got {support.shape[2]}")
        classes = self._class_maps(support, support_labels, way)
        compared = self._compared(classes, query)  # (e, q, way, hidden, h, w)
        maps = _pooled(functional.relu(self.norm(compared.flatten(0, 2))))
        convolution, norm = self.second
        assert isinstance(convolution, nn.Conv2d)
        maps = functional.conv2d(maps, convolution.weight, convolution.bias, padding=_padding(query))
        maps = _pooled(functional.relu(norm(maps)))
        if maps.shape[-2:] != (_GRID, _GRID):
            maps = functional.adaptive_avg_pool2d(maps, _GRID)
        relations: Tensor = self.out(maps.flatten(1))
        return relations.reshape(compared.shape[:3]).to(query.dtype)

    def _class_maps(self, support: Tensor, labels: Tensor, way: int) -> Tensor:
        """``(e, s, d, h, w), (e, s) -> (e, way, d, h, w)``."""
        members = membership(labels, way, support.dtype)
        if self.class_map == "mean":
            members = members / shots(labels, way).unsqueeze(-2)
        maps: Tensor = (members.transpose(-2, -1) @ support.flatten(2)).unflatten(2, support.shape[2:])
        return maps

    def _compared(self, classes: Tensor, query: Tensor) -> Tensor:
        """The first convolution of all pairs, class before query: ``(e, q, way, hidden, h', w')``."""
        weight, padding = self.compare.weight, _padding(query)

        def convolved(maps: Tensor, part: Tensor, bias: Tensor | None) -> Tensor:
            out = functional.conv2d(maps.flatten(0, 1).to(part.dtype), part, bias, padding=padding)
            return out.reshape(*maps.shape[:2], *out.shape[1:])

        of_classes = convolved(classes, weight[:, : self.channels], self.compare.bias)
        of_queries = convolved(query, weight[:, self.channels :], None)
        return of_queries.unsqueeze(2) + of_classes.unsqueeze(1)

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """Class maps, and the hidden maps of all pairs; there are at most as many classes as support images."""
        positions = support[2] * support[3]
        pairs = query[0] * support[0]
        return 4 * positions * (support[0] * support[1] + 4 * pairs * self.compare.out_channels)


def _padding(maps: Tensor) -> int:
    """Of both convolutions, for maps ``(..., h, w)``."""
    return 1 if min(maps.shape[-2:]) < _SMALL_MAP else 0


def _pooled(maps: Tensor) -> Tensor:
    """2×2 max-pooling, unless there is only one row or column left."""
    return functional.max_pool2d(maps, 2) if min(maps.shape[-2:]) > 1 else maps
