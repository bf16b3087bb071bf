"""Losses with a name, which a recipe can add to what a stage minimises: rotation, mixup, consistency.

A loss works with every method, because it knows only the images of a step, the representations that the method makes of
them, and the scores that the stage's own loss compares with labels. To add one: write a child of `NamedLoss` with its
`Settings`, and register it under its name.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.distributions import Beta
from torch.nn import functional

from deepbdc._modes import evaluating
from deepbdc._registry import Registry
from deepbdc.errors import UserError
from deepbdc.stages.formulas import (
    Loss,
    distillation_loss,
    in_layout_of,
    mixed,
    percent_right,
    quarter_turns,
)
from deepbdc.stages.settings import LossSettings

if TYPE_CHECKING:
    from deepbdc.methods.base import Method


@dataclass(frozen=True)
class Part:
    """What a named loss sees of one part of a step: a batch of images, or one episode."""

    method: "Method"
    images: Tensor
    """``(n, 3, s, s)``; those of an episode are support images before query images."""
    targets: Tensor
    """``(m,)``: the labels of all images over all training classes; in an episode, the labels of its queries."""
    predict: Callable[[Tensor], Tensor]
    """From images in place of ``images`` to the scores ``(m, classes)`` of the ``targets``."""
    classify: Callable[[Tensor], Tensor] | None
    """From what `Method.features` gives, ``(k, ...)``, to scores of all training classes; None in an episode."""
    label_smoothing: float = 0.0


class NamedLoss(nn.Module):
    """A loss that a recipe adds to a stage by its name. Its parameters, if any, belong to the group ``head``.

    Random numbers come from torch's global generator, which the training seeds before each part of a step.

    Args:
        settings: Those of the recipe, of the type `Settings`.
        method: The method that is trained. A loss must not keep it: it belongs to the objective.
    """

    Settings: ClassVar[type[LossSettings]] = LossSettings

    def __init__(self, settings: LossSettings, method: "Method") -> None:
        super().__init__()
        self.weight = settings.weight

    @classmethod
    def check(cls, settings: Any, method: "Method", title: str) -> None:
        """Raise a `UserError` if the settings do not fit the method; ``title`` names the loss in the recipe."""

    @abstractmethod
    def forward(self, part: Part) -> Loss:
        """The loss, without its weight, and numbers to log; their names begin with that of the loss."""


losses: Registry[NamedLoss] = Registry("loss")


@dataclass(frozen=True, kw_only=True)
class RotationSettings(LossSettings):
    """Settings of `Rotation`."""

    share: float = 1.0
    """Share of the images of a batch that is rotated; they are drawn at random."""
    class_weight: float = 0.0
    """Weight of the cross-entropy of the rotated images over all training classes."""

    def check(self, title: str, in_episodes: bool) -> None:
        """Raise a `UserError` if a value makes no sense."""
        super().check(title, in_episodes)
        if not 0 < self.share <= 1:
            raise UserError(f"{title}.share must be above 0 and at most 1, got {self.share}")
        if self.class_weight < 0:
            raise UserError(f"{title}.class_weight must not be negative, got {self.class_weight}")
        if self.class_weight and in_episodes:
            raise UserError(
                f"{title}.class_weight classifies images over all training classes, so it needs a stage without "
                "episodes: leave it out"
            )


@losses.named("rotation")
class Rotation(NamedLoss):
    """Gidaris, Singh, Komodakis, "Unsupervised Representation Learning by Predicting Image Rotations", ICLR 2018.

    Each image is seen turned by 0, 90, 180 and 270 degrees, and a linear head on its representation recognises the turn
    by cross-entropy over the four. ``class_weight`` adds the cross-entropy of the class of each turned image. All
    turned images go through the network together.
    """

    Settings = RotationSettings

    def __init__(self, settings: LossSettings, method: "Method") -> None:
        super().__init__(settings, method)
        assert isinstance(settings, RotationSettings)
        self.share, self.class_weight = settings.share, settings.class_weight
        self.head = RotationHead(feature_count(method))

    def forward(self, part: Part) -> Loss:
        """The cross-entropy of the turns of some images, and of their classes."""
        images, chosen = part.images, torch.arange(len(part.images))
        if self.share < 1:
            chosen = torch.randperm(len(images))[: max(1, round(self.share * len(images)))]
            images = images[chosen.to(images.device)]
        rows = part.method.features(in_layout_of(part.images, quarter_turns(images).flatten(0, 1)))
        value, numbers = rotation_loss(self.head(rows))
        if self.class_weight:
            assert part.classify is not None
            targets = part.targets[chosen.to(part.targets.device)].repeat(4)
            classes = part.method.class_loss(part.classify(rows), targets, part.label_smoothing)
            value = value + self.class_weight * classes.value
            numbers = {**numbers, "rotation_class_accuracy": classes.numbers["accuracy"]}
        return Loss(value, numbers)


class RotationHead(nn.Module):
    """Scores of the four turns from representations, ``(n, features)`` or maps ``(n, features, h, w)`` -> ``(n, 4)``.

    Args:
        features: Numbers in a representation; channels of a map, which is averaged over positions.
        relu: Negative scores become 0.
    """

    def __init__(self, features: int, relu: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 4)
        self.relu = relu
        nn.init.zeros_(self.linear.bias)

    def forward(self, rows: Tensor) -> Tensor:
        """Scores of the turns."""
        scores: Tensor = self.linear(rows.mean(dim=(2, 3)) if rows.dim() == 4 else rows)
        return functional.relu(scores) if self.relu else scores


def rotation_loss(scores: Tensor) -> Loss:
    """Cross-entropy of scores ``(4 n, 4)`` of the turns of n images, in the order of `quarter_turns`."""
    turns = torch.arange(4, device=scores.device).repeat_interleave(len(scores) // 4)
    value = functional.cross_entropy(scores, turns)
    return Loss(value, {"rotation": value.detach(), "rotation_accuracy": percent_right(scores, turns)})


@torch.no_grad()
def feature_count(method: "Method") -> int:
    """Numbers in what `Method.features` gives for an image; the channels, if that is a map."""
    size = method.embedding.preprocessing.input_size
    like = next(method.parameters(), torch.zeros(()))
    with evaluating(method):
        return method.features(torch.zeros(2, 3, size, size, device=like.device, dtype=like.dtype)).shape[1]


@dataclass(frozen=True, kw_only=True)
class MixupSettings(LossSettings):
    """Settings of `Mixup`."""

    alpha: float = 2.0
    """The shares λ are drawn from Beta(α, α)."""
    layers: tuple[int, ...] = (0,)
    """Where to mix, chosen at random in each step: 0 mixes the images, k the output of block k of the backbone."""

    def check(self, title: str, in_episodes: bool) -> None:
        """Raise a `UserError` if a value makes no sense."""
        super().check(title, in_episodes)
        if not self.alpha > 0:
            raise UserError(f"{title}.alpha must be positive, got {self.alpha}")
        if not self.layers or min(self.layers) < 0:
            raise UserError(f"{title}.layers must be one or more numbers of layers from 0, got {list(self.layers)}")
        if in_episodes:
            raise UserError(f"{title} mixes labels of all training classes, so it needs a stage without episodes")


@losses.named("mixup")
class Mixup(NamedLoss):
    """Zhang et al., "mixup", ICLR 2018; with ``layers`` Verma et al., "Manifold Mixup", ICML 2019.

    In each step λ is drawn from Beta(α, α), and a layer from ``layers``. There every image is mixed with another one of
    the batch, h_i ← λ h_i + (1 - λ) h_j, and so is the loss: λ · cross-entropy(y_i) + (1 - λ) · cross-entropy(y_j).
    """

    Settings = MixupSettings

    def __init__(self, settings: LossSettings, method: "Method") -> None:
        super().__init__(settings, method)
        assert isinstance(settings, MixupSettings)
        self.alpha, self.layers = settings.alpha, settings.layers

    @classmethod
    def check(cls, settings: Any, method: "Method", title: str) -> None:
        """Raise a `UserError` if the backbone does not have the blocks after which images are to be mixed."""
        if max(settings.layers) > 0:
            blocks = len(method.embedding.backbone.blocks_in_order())
            if max(settings.layers) > blocks:
                raise UserError(
                    f"{title}.layers: the backbone has {blocks} blocks, so layers are 0 to {blocks}, got "
                    f"{list(settings.layers)}"
                )

    def forward(self, part: Part) -> Loss:
        """The mixed cross-entropy of a mixed batch."""
        share = float(Beta(torch.tensor(self.alpha), torch.tensor(self.alpha)).sample())
        layer = self.layers[int(torch.randint(len(self.layers), ()))]
        order = torch.randperm(len(part.images)).to(part.images.device)
        with mixing_at(part.method.embedding.backbone, layer, order, share):
            scores = part.predict(part.images if layer else mixed(part.images, order, share))
        own, other = (
            part.method.class_loss(scores, wanted, part.label_smoothing).value
            for wanted in (part.targets, part.targets[order])
        )
        value = share * own + (1 - share) * other
        return Loss(value, {"mixup": value.detach()})


@contextmanager
def mixing_at(backbone: Any, layer: int, order: Tensor, share: float) -> Iterator[None]:
    """Inside this context, the backbone mixes the outputs of its block ``layer``, counted from 1 (0: nothing)."""
    if layer == 0:
        yield
        return
    blocks = backbone.blocks_in_order()
    if layer < len(blocks):  # by way of the next block: the first one may be another view in each call
        hook = blocks[layer].register_forward_pre_hook(lambda _, inputs: (mixed(inputs[0], order, share),))
    else:
        hook = blocks[-1].register_forward_hook(lambda _, inputs, output: mixed(output, order, share))
    with hook:
        yield


@dataclass(frozen=True, kw_only=True)
class ConsistencySettings(LossSettings):
    """Settings of `Consistency`."""

    view: Literal["flip", "rotation", "none"] = "flip"
    """The second view of the images: mirrored, each turned by a random number of quarter turns, or the same images, for
    which only dropout differs."""
    temperature: float = 1.0
    both_ways: bool = False
    """The mean of both directions of KL. Otherwise the first prediction is a target without gradient."""

    def check(self, title: str, in_episodes: bool) -> None:
        """Raise a `UserError` if a value makes no sense."""
        super().check(title, in_episodes)
        if not self.temperature > 0:
            raise UserError(f"{title}.temperature must be positive, got {self.temperature}")


@losses.named("consistency")
class Consistency(NamedLoss):
    """Two predictions, for the images as they are and for a second view of them, must agree.

    With p and p' the softmax of the scores divided by T, the loss is T² · KL(p ‖ p'), the mean over images. In an
    episode all its images are seen twice, and the predictions are those of its queries.
    """

    Settings = ConsistencySettings

    def __init__(self, settings: LossSettings, method: "Method") -> None:
        super().__init__(settings, method)
        assert isinstance(settings, ConsistencySettings)
        self.view, self.temperature, self.both_ways = settings.view, settings.temperature, settings.both_ways

    def forward(self, part: Part) -> Loss:
        """The divergence of the two predictions."""
        with torch.set_grad_enabled(self.both_ways and torch.is_grad_enabled()):
            first = part.predict(part.images)
        second = part.predict(in_layout_of(part.images, self._view(part.images)))
        value = distillation_loss(second, first, self.temperature)
        if self.both_ways:
            value = (value + distillation_loss(first, second, self.temperature)) / 2
        return Loss(value, {"consistency": value.detach()})

    def _view(self, images: Tensor) -> Tensor:
        if self.view == "flip":
            return images.flip(-1)
        if self.view == "rotation":
            turns = torch.randint(1, 4, (len(images),)).to(images.device)
            return quarter_turns(images)[turns, torch.arange(len(images), device=images.device)]
        return images
