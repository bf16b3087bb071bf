"""Supplement S4: classical correlation and Brownian distance correlation (BDCorr) of fourteen relations."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepbdc._files import temporary
from deepbdc.statistic import bd_correlation, bdc_matrix

Array = NDArray[np.float64]
Shape = Callable[[Array, np.random.Generator], tuple[Array, Array]]


@dataclass(frozen=True)
class Relation:
    """A sample of two related variables and its two correlations."""

    name: str
    linear: bool
    x: Array
    y: Array
    corr: float
    bdcorr: float
    shuffled: Array  # BDCorr after each random permutation of y

    @property
    def p_value(self) -> float:
        """P-value of the permutation test: the share of permutations, sample included, with at least its BDCorr."""
        return float((1 + (self.shuffled >= self.bdcorr).sum()) / (1 + len(self.shuffled)))


def _w_shape(u: Array, noise: np.random.Generator) -> tuple[Array, Array]:
    x = 2 * u - 1
    return x + noise.uniform(-0.05, 0.05, len(x)), 4 * (x**2 - 0.5) ** 2 + noise.uniform(-0.05, 0.05, len(x))


def _diamond(u: Array, noise: np.random.Generator) -> tuple[Array, Array]:
    a, b = 2 * u - 1, noise.uniform(-1, 1, len(u))
    return (a + b) / 2, (a - b) / 2


def _parabola(u: Array, noise: np.random.Generator) -> tuple[Array, Array]:
    x = 2 * u - 1
    return x, x**2 + noise.uniform(-0.15, 0.15, len(x))


def _two_parabolas(u: Array, noise: np.random.Generator) -> tuple[Array, Array]:
    x = 2 * u - 1
    side = np.where(np.arange(len(x)) % 2 == 0, 1.0, -1.0)
    return x, side * (x**2 + noise.uniform(0.05, 0.35, len(x)))


def _circle(u: Array, noise: np.random.Generator) -> tuple[Array, Array]:
    angle = 2 * np.pi * u
    return np.sin(angle) + noise.normal(0, 0.07, len(u)), np.cos(angle) + noise.normal(0, 0.07, len(u))


def _butterfly(u: Array, noise: np.random.Generator) -> tuple[Array, Array]:
    angle = 2 * np.pi * u
    radius = np.exp(np.sin(angle)) - 2 * np.cos(4 * angle)
    return (
        radius * np.cos(angle) + noise.normal(0, 0.06, len(u)),
        radius * np.sin(angle) + noise.normal(0, 0.06, len(u)),
    )


def _heart(u: Array, noise: np.random.Generator) -> tuple[Array, Array]:
    angle = 2 * np.pi * u
    x = 16 * np.sin(angle) ** 3
    y = 13 * np.cos(angle) - 5 * np.cos(2 * angle) - 2 * np.cos(3 * angle) - np.cos(4 * angle)
    return x + noise.normal(0, 0.5, len(u)), y + noise.normal(0, 0.5, len(u))


def _line(slope: float, spread: float) -> Shape:
    def sample(u: Array, noise: np.random.Generator) -> tuple[Array, Array]:
        x = 2 * u - 1
        return x, slope * x + noise.normal(0, spread, len(x))

    return sample


NONLINEAR: dict[str, Shape] = {
    "W-shape": _w_shape,
    "Diamond": _diamond,
    "Parabola": _parabola,
    "Two parabolas": _two_parabolas,
    "Circle": _circle,
    "Butterfly": _butterfly,
    "Heart": _heart,
}
LINEAR: dict[str, Shape] = {
    "Slope 1": _line(1, 0),
    "Slope 0.3": _line(0.3, 0),
    "Slope 1, noisy": _line(1, 0.3),
    "Slope 1, noisier": _line(1, 0.6),
    "Slope −1, noisier": _line(-1, 0.6),
    "Slope −1, noisy": _line(-1, 0.3),
    "Slope −0.3": _line(-0.3, 0),
}


def relations(points: int = 1500, permutations: int = 199, seed: int = 0) -> Iterator[Relation]:
    """Sample and measure the seven non-linear relations, then the seven linear ones."""
    for index, (name, shape) in enumerate([*NONLINEAR.items(), *LINEAR.items()]):
        generator = np.random.default_rng([seed, index])
        # Stratified sampling: [0, 1] is divided into equal parts, and one point is drawn at random in each.
        u = (generator.permutation(points) + generator.random(points)) / points
        x, y = shape(u, generator)
        yield measure(name, name in LINEAR, x, y, permutations, generator)


def measure(name: str, linear: bool, x: Array, y: Array, permutations: int, generator: np.random.Generator) -> Relation:
    """Compute both correlations of a sample, and its BDCorr for random permutations of y."""
    first, second = (torch.as_tensor(values)[:, None] for values in (x, y))
    a, b = bdc_matrix(first).float(), bdc_matrix(second).float()
    scale = a.norm() * b.norm()
    orders = (torch.as_tensor(generator.permutation(len(x))) for _ in range(permutations))
    shuffled = [float((a * _reordered(b, order)).sum() / scale) for order in orders]
    return Relation(
        name=name,
        linear=linear,
        x=x,
        y=y,
        corr=float(np.corrcoef(x, y)[0, 1]),
        bdcorr=float(bd_correlation(first, second)),
        shuffled=np.array(shuffled),
    )


def _reordered(matrix: Tensor, order: Tensor) -> Tensor:
    return matrix.index_select(0, order).index_select(1, order)


def draw(found: list[Relation], path: Path) -> None:
    """Save two rows of scatter plots, each titled with its two correlations, as an image file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    colours = {False: "#c2410c", True: "#1d4ed8"}
    figure = Figure(figsize=(14, 5.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 7)
    rows = ([r for r in found if not r.linear], [r for r in found if r.linear])
    for row, in_row in enumerate(rows):
        for axis, relation in zip(axes[row], in_row, strict=True):
            axis.scatter(relation.x, relation.y, s=3, color=colours[relation.linear], alpha=0.6, linewidths=0)
            axis.set_title(
                f"{relation.name}\nCorr {_tidy(relation.corr)}\nBDCorr {_tidy(relation.bdcorr)}", fontsize=11
            )
            axis.set_xticks([])
            axis.set_yticks([])
            axis.spines[:].set_color("#cbd5e1")
            axis.margins(0.1)
    tallest = 1.05 * max(np.abs(relation.y).max() for relation in rows[1])
    for axis in axes[1]:  # one scale for the whole row, so that the slopes can be compared
        axis.set_ylim(-tallest, tallest)
    axes[0, 0].set_ylabel("non-linear", fontsize=12)
    axes[1, 0].set_ylabel("linear", fontsize=12)
    with temporary(path) as part:
        figure.savefig(part, dpi=110, format=path.suffix.removeprefix("."))


def _tidy(value: float) -> str:
    """Format with two decimals, a typographic minus sign and no negative zero."""
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")
