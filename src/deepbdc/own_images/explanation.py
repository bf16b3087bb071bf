"""Answers and their explanations: where in a picture the evidence lies, and which examples are similar."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from deepbdc._files import write_bytes
from deepbdc.errors import UserError
from deepbdc.own_images.pictures import EmbeddedImage
from deepbdc.own_images.rejection import USUAL_RATE
from deepbdc.preprocessing import Preprocessing

if TYPE_CHECKING:
    from PIL import Image

    from deepbdc.estimator import FewShotClassifier

NONE_OF_THESE = "none of these"


@dataclass(frozen=True, eq=False)
class Prediction:
    """The answer for one picture."""

    name: str
    label: Any
    """The most likely class."""
    probability: float
    runner_up: Any | None
    """The second most likely class; None if there is only one class."""
    runner_up_probability: float
    probabilities: NDArray[np.float64]
    """The probabilities of all classes, in the order of ``classes_``, provided that the picture shows one of them."""
    familiarity: float = 1.0
    """The share of the pictures of the known classes that look even less like the examples: 0.02 is a rare look."""

    @classmethod
    def from_probabilities(
        cls, name: str, classes: Sequence[Any], probabilities: NDArray[np.float64], familiarity: float = 1.0
    ) -> Self:
        """The answer that has these probabilities of the classes."""
        first, *rest = np.argsort(-probabilities, kind="stable")[:2].tolist()
        return cls(
            name=name,
            label=classes[first],
            probability=float(probabilities[first]),
            runner_up=classes[rest[0]] if rest else None,
            runner_up_probability=float(probabilities[rest[0]]) if rest else 0.0,
            probabilities=probabilities,
            familiarity=familiarity,
        )

    @property
    def rejected(self) -> bool:
        """Whether the picture looks like none of the classes, if a share of 0.05 of theirs may be lost by that."""
        return self.rejected_at(USUAL_RATE)

    def rejected_at(self, rate: float) -> bool:
        """The same if a share ``rate`` of the pictures of the known classes may be lost."""
        return self.familiarity < rate

    @property
    def answer(self) -> Any:
        """The label, or "none of these" for a rejected picture."""
        return NONE_OF_THESE if self.rejected else self.label


@dataclass(frozen=True)
class Neighbour:
    """An example that is similar to the picture."""

    index: int
    """Its index in ``examples_``."""
    name: str
    label: Any
    similarity: float
    """The cosine similarity of the two representations."""
    thumbnail: bytes
    """The picture as a small JPEG."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """The explanation of an answer."""

    prediction: Prediction
    label: Any
    """The class that the heat map shows the evidence for."""
    heat: NDArray[np.float32]
    """The evidence at each pixel ``(h, w)``, from -1 to 1. Positive values speak for the class."""
    picture: "Image.Image"
    nearest: tuple[Neighbour, ...]
    """The most similar examples, in descending order of similarity."""
    classes: tuple[Any, ...]
    """All classes, in the order of ``prediction.probabilities``."""

    def overlay(self) -> "Image.Image":
        """The picture overlaid with the heat map: red speaks for the class, blue against it."""
        from matplotlib import colormaps
        from PIL import Image

        colours = colormaps["coolwarm"]((self.heat + 1) / 2)[..., :3]
        strength = 0.65 * np.abs(self.heat)[..., None] ** 0.7
        pixels = np.asarray(self.picture, dtype=np.float64) / 255
        dimmed = 0.75 * pixels + 0.25 * pixels.mean(axis=-1, keepdims=True)
        return Image.fromarray((255 * ((1 - strength) * dimmed + strength * colours)).round().astype(np.uint8))

    def save(self, path: str | Path) -> None:
        """Draw the picture, its heat map, the probabilities and the most similar examples into one picture file."""
        from matplotlib.figure import Figure
        from PIL import Image

        figure = Figure(figsize=(9, 5.4), layout="constrained")
        figure.suptitle(self.title, fontsize=10, fontweight="bold")
        above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=[1.6, 1])[:, 0]
        views = {"the picture": self.picture, f"what speaks for {self.label}": self.overlay()}
        for column, (title, picture) in enumerate(views.items()):
            axes = above.add_subplot(1, 3, column + 1)
            axes.imshow(picture)
            axes.set_anchor("N")  # side by side, although the second has a legend below
            axes.set_title(title, fontsize=9)
            axes.axis("off")
        self._draw_legend(above, axes)
        self._draw_probabilities(above.add_subplot(1, 3, 3))
        below.suptitle("the most similar examples, with their similarity", fontsize=9)
        for column, neighbour in enumerate(self.nearest[:5]):
            axes = below.add_subplot(1, 5, column + 1)
            axes.imshow(Image.open(io.BytesIO(neighbour.thumbnail)))
            axes.set_title(f"{neighbour.label}\n{neighbour.similarity:.2f}", fontsize=8)
            axes.axis("off")
        content = io.BytesIO()
        figure.savefig(content, format=Path(path).suffix.lstrip(".").lower() or "png", dpi=150)
        write_bytes(path, content.getvalue())

    @property
    def title(self) -> str:
        """The name of the picture and its answer, with the probability of the most likely class."""
        answer = self.prediction
        if answer.rejected:
            return f"{Path(answer.name).name}: {NONE_OF_THESE}; if one of them, {answer.label}"
        return f"{Path(answer.name).name}: {answer.label}, {100 * answer.probability:.1f} %"

    def _draw_legend(self, figure: Any, axes: Any) -> None:
        """Draw a bar with the colours of the heat map below it, and what they mean."""
        from matplotlib import colormaps
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        colours = ScalarMappable(Normalize(-1, 1), colormaps["coolwarm"])
        bar = figure.colorbar(colours, ax=axes, orientation="horizontal", shrink=0.7, aspect=30, pad=0.02)
        bar.set_ticks([-1, 0, 1], labels=[f"against {self.label}", "", f"for {self.label}"], fontsize=7)
        bar.outline.set_visible(False)

    def _draw_probabilities(self, axes: Any) -> None:
        order = np.argsort(-self.prediction.probabilities, kind="stable")[:6][::-1]
        values = self.prediction.probabilities[order]
        names = [str(self.classes[index]) for index in order]
        colours = ["#b40426" if name == str(self.label) else "#9aa5b1" for name in names]
        axes.barh(range(len(order)), 100 * values, color=colours)
        axes.set_yticks(range(len(order)), names, fontsize=8)
        axes.set_xlim(0, 100)
        axes.tick_params(axis="x", labelsize=8)
        axes.set_title("probabilities in %", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)


@torch.no_grad()
def explain_picture(
    fitted: "FewShotClassifier", embedded: EmbeddedImage, prediction: Prediction, label: Any, neighbours: int
) -> Explanation:
    """Explain the answer of a fitted classifier for a picture; see `FewShotClassifier.explain`."""
    from PIL import Image

    label = prediction.label if label is None else label
    matches = np.flatnonzero(fitted.classes_ == label)
    if len(matches) == 0:
        raise UserError(f"{label!r} is none of the classes: {', '.join(map(str, fitted.classes_[:20]))}")
    values = evidence(embedded.features.to(fitted.device_), _margin(fitted, int(matches[0])))
    picture = Image.open(io.BytesIO(embedded.thumbnail)).convert("RGB")
    heat = heat_map(values.cpu(), picture, fitted.embedding_.preprocessing)
    nearest = _nearest(fitted, embedded, neighbours)
    return Explanation(prediction, label, heat, picture, nearest, tuple(fitted.classes_.tolist()))


def _margin(fitted: "FewShotClassifier", chosen: int) -> Callable[[Tensor], Tensor]:
    """A function from maps ``(n, d, h, w)`` to the lead of one class over all others ``(n,)``.

    If there is only one class, the function returns the similarity to this class instead.
    """

    def margin(maps: Tensor) -> Tensor:
        representations = fitted.representations_of(maps)
        if len(fitted.classes_) == 1:
            return _cosines(representations, fitted.directions_)[:, 0]
        scores = fitted.rule_(representations.unsqueeze(0))[0]
        others = torch.arange(scores.shape[1], device=scores.device) != chosen
        return scores[:, chosen] - scores[:, others].logsumexp(dim=1)

    return margin


def _nearest(fitted: "FewShotClassifier", embedded: EmbeddedImage, count: int) -> tuple[Neighbour, ...]:
    """The ``count`` most similar examples, the most similar first."""
    own = fitted.representations_of(embedded.features.unsqueeze(0).to(fitted.device_))
    similarities = _cosines(own, fitted.representations_)[0].cpu().numpy()
    labels = fitted.example_labels_.tolist()
    found = []
    for index in np.argsort(-similarities, kind="stable")[:count].tolist():
        example = fitted.examples_[index]
        found.append(Neighbour(index, example.name, labels[index], float(similarities[index]), example.thumbnail))
    return tuple(found)


def _cosines(one: Tensor, other: Tensor) -> Tensor:
    """Cosine similarities of vectors: ``(n, features), (m, features) -> (n, m)``."""
    return normalize(one, dim=1) @ normalize(other, dim=1).T


def evidence(features: Tensor, margin: Callable[[Tensor], Tensor]) -> Tensor:
    """How much each position of a reduced map ``(d, h, w)`` adds to the margin of a class: ``(h, w)``.

    One position at a time is set to 0, and the drop of the margin is its evidence. A position of zeros adds nothing to
    a mean, nor to the distances between channels.

    Args:
        features: The map.
        margin: A function from maps ``(n, d, h, w)`` to the lead of the class over all others ``(n,)``.
    """
    height, width = features.shape[1:]
    places = height * width
    without = features.flatten(1).repeat(places, 1, 1)  # (places, d, places)
    without[torch.arange(places), :, torch.arange(places)] = 0
    left = torch.cat([margin(part.unflatten(2, (height, width))) for part in without.split(64)])
    return (margin(features.unsqueeze(0)) - left).reshape(height, width)


def heat_map(values: Tensor, picture: "Image.Image", preprocessing: Preprocessing) -> NDArray[np.float32]:
    """Resize evidence ``(h, w)`` to the part of the picture that the network saw, and scale it to -1 to 1."""
    top, left, tall, wide = seen_part(picture.size, preprocessing)
    spread = torch.nn.functional.interpolate(
        values[None, None].float(), size=(tall, wide), mode="bicubic" if min(values.shape) > 1 else "nearest"
    )[0, 0]
    heat = torch.zeros(picture.height, picture.width)
    heat[top : top + tall, left : left + wide] = spread
    largest = float(heat.abs().max())
    return (heat / largest if largest > 0 else heat).numpy()


def seen_part(size: tuple[int, int], preprocessing: Preprocessing) -> tuple[int, int, int, int]:
    """Top, left, height and width of the part that remains after the crop of a picture of ``size`` (width, height)."""
    share = min(preprocessing.input_size / preprocessing.resize, 1)
    width, height = size
    if preprocessing.squash:
        tall, wide = round(height * share), round(width * share)
    else:
        tall = wide = round(min(width, height) * share)
    tall, wide = max(tall, 1), max(wide, 1)
    return (height - tall) // 2, (width - wide) // 2, tall, wide
