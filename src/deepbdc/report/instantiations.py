"""Figure 1 of the paper: the two instantiations of DeepBDC, with shapes, parameters and matrices of real modules."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from deepbdc._files import temporary
from deepbdc._modes import evaluating
from deepbdc.backbones import create_backbone
from deepbdc.backbones.base import Backbone
from deepbdc.errors import UserError
from deepbdc.methods import Method, create_method

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WAY, SHOT = 3, 2  # the task of the paper's figure
CLASSES = 64  # training classes of miniImageNet
REDUCE_TO = {"meta_deepbdc": 640, "stl_deepbdc": 128}  # the paper's d, or the channels of a backbone with fewer

_SIMILARITIES = {"euclidean": "−‖query − prototype‖²", "inner_product": "query · prototype", "cosine": "cosine"}


@dataclass(frozen=True)
class Step:
    """A box of the figure: what is computed, and lines with shapes and parameters."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Instantiation:
    """What one half of the figure shows."""

    title: str
    steps: tuple[Step, ...]
    """Backbone, reduction, BDC matrix, vector; then the two boxes at the end, upper and lower."""
    arrows: tuple[str, str]
    """What goes from the vectors to the upper and to the lower box."""
    trained_with_tasks: bool
    """Whether the images are a task, and the lower box takes what the upper one makes."""
    images: Tensor
    """``(way · shot + way, 3, s, s)`` in [0, 1]: the support class by class, then one query of each class."""
    matrix: Tensor
    """The BDC matrix of the first image, ``(d, d)``."""


def instantiations(backbone: str | Backbone = "resnet12") -> tuple[Instantiation, Instantiation]:
    """Meta DeepBDC and STL DeepBDC with random weights, after a task of random images went through them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = create_backbone(backbone) if isinstance(backbone, str) else backbone
        name = backbone if isinstance(backbone, str) else type(backbone).__name__
        return _meta(name, network), _stl(name, network)


def _meta(name: str, backbone: Backbone) -> Instantiation:
    method = _method("meta_deepbdc", backbone)
    images, seen = _run(method, None)
    support, query = seen[method.embedding].split([WAY * SHOT, WAY])
    with torch.no_grad(), evaluating(method):
        scores = method.classify(support, torch.arange(WAY).repeat_interleave(SHOT), query)
    similarity = _SIMILARITIES[str(method.classifier.settings["similarity"])]
    upper = Step("Prototypes", (f"mean of {SHOT} vectors of a class", f"{_shape(scores[0])} × {_shape(support[0])}"))
    lower = Step("Similarity", (similarity, f"scores {_shape(scores)}", "softmax, cross-entropy"))
    steps = (*_common(name, method, seen), upper, lower)
    title = f"(a) Meta DeepBDC: trained with tasks, here {WAY}-way {SHOT}-shot"
    return Instantiation(title, steps, ("support", "query"), True, images, _matrix(method, seen))


def _stl(name: str, backbone: Backbone) -> Instantiation:
    method = _method("stl_deepbdc", backbone)
    head = method.head(CLASSES)
    images, seen = _run(method, head)
    support, query = seen[method.embedding].split([WAY * SHOT, WAY])
    with torch.no_grad(), evaluating(method):
        scores = method.classify(support, torch.arange(WAY).repeat_interleave(SHOT), query)
    upper = Step(
        "Linear head",
        (f"{_shape(support[0])} → {_shape(seen[head][0])} classes", _parameters(head), "softmax, cross-entropy"),
    )
    lower = Step("Logistic regression", ("fitted to the support", f"scores {_shape(scores)}"))
    steps = (*_common(name, method, seen), upper, lower)
    title = "(b) STL DeepBDC: trained on all classes at once, then fitted to each task"
    return Instantiation(title, steps, ("training", "test task"), False, images, _matrix(method, seen))


def _method(name: str, backbone: Backbone) -> Method:
    return create_method(name, backbone, SHOT, reduce_to=min(REDUCE_TO[name], backbone.out_channels))


def _run(method: Method, head: nn.Module | None) -> tuple[Tensor, dict[nn.Module, Tensor]]:
    """Random images, and what each part of the method made of them, recorded by forward hooks."""
    embedding = method.embedding
    seen: dict[nn.Module, Tensor] = {}

    def record(module: nn.Module, inputs: Any, output: Tensor) -> None:
        seen[module] = output

    parts = [embedding.backbone, _reduction(method), embedding, *([] if head is None else [head])]
    hooks = [part.register_forward_hook(record) for part in parts]
    images = _random_images(embedding.preprocessing.input_size)
    mean, std = (torch.tensor(v)[:, None, None] for v in (embedding.preprocessing.mean, embedding.preprocessing.std))
    try:
        with torch.no_grad(), evaluating(method):
            features = method.features((images - mean) / std)
            if head is not None:
                method.class_scores(head, features)
    finally:
        for hook in hooks:
            hook.remove()
    return images, seen


def _random_images(size: int) -> Tensor:
    """Smooth patches of colour ``(n, 3, size, size)``; images of the same class resemble each other."""
    classes = 0.55 + 0.22 * torch.randn(WAY, 3, 4, 4)
    members = [*(label for label in range(WAY) for _ in range(SHOT)), *range(WAY)]
    coarse = classes[members] + 0.08 * torch.randn(len(members), 3, 4, 4)
    return interpolate(coarse, size=(size, size), mode="bicubic").clamp(0, 1)


def _common(name: str, method: Method, seen: dict[nn.Module, Tensor]) -> tuple[Step, ...]:
    """The boxes that both instantiations have."""
    backbone, reduction = method.embedding.backbone, _reduction(method)
    reduced, vectors = seen[reduction], seen[method.embedding]
    d = reduced.shape[1]
    corner = f" (first {_SHOWN_CHANNELS} shown)" if d > _SHOWN_CHANNELS else ""
    return (
        Step("Backbone", (name, f"map {_shape(seen[backbone][0])}", _parameters(backbone))),
        Step("1×1 reduction", ("batch norm, ReLU", f"map {_shape(reduced[0])}", _parameters(reduction))),
        Step("BDC matrix", ("distances of channels,", "double-centred", f"{d} × {d}{corner}")),
        Step("Vector", ("upper triangle", "with diagonal", f"{_shape(vectors[0])} numbers")),
    )


def _reduction(method: Method) -> nn.Module:
    part = method.embedding.pool.reduction
    assert isinstance(part, nn.Module)
    return part


def _matrix(method: Method, seen: dict[nn.Module, Tensor]) -> Tensor:
    """The BDC matrix of the first image, put together again from the upper triangle that the layer gave."""
    d = seen[_reduction(method)].shape[1]
    matrix = torch.zeros(d, d)
    rows, columns = torch.triu_indices(d, d)
    matrix[rows, columns] = matrix[columns, rows] = seen[method.embedding][0]
    return matrix


def _shape(value: Tensor) -> str:
    return " × ".join(f"{size:,}" for size in value.shape)


def _parameters(module: nn.Module) -> str:
    """The number of parameters in words.

    >>> _parameters(nn.Linear(100, 2)), _parameters(nn.Linear(1000, 1300))
    ('202 parameters', '1.30 M parameters')
    """
    count = sum(value.numel() for value in module.parameters())
    return f"{count / 1e6:.2f} M parameters" if count >= 1e6 else f"{count:,} parameters"


# ---- drawing. All positions are inches from the lower left corner.

_INK, _SOFT, _LINE = "#0f172a", "#475569", "#94a3b8"
_COLOURS = {  # fill and edge
    "network": ("#eff6ff", "#93c5fd"),
    "bdc": ("#fff7ed", "#fdba74"),
    "end": ("#f0fdf4", "#86efac"),
}
_WIDTH, _HALF = 14.0, 3.35
_MIDDLE, _TALL = 1.5, 1.4
_BOXES = (  # left, width and kind of the boxes in a row
    (2.2, 1.75, "network"),
    (4.3, 1.75, "network"),
    (6.4, 2.0, "bdc"),
    (8.75, 1.5, "bdc"),
)
_END_LEFT, _END_WIDTH, _END_TALL = 11.4, 2.25, 1.2
_END_MIDDLES = (2.22, 0.78)
_SHOWN_CHANNELS = 64  # of a larger BDC matrix, so that its entries can be seen


def draw(path: str | Path, backbone: str | Backbone = "resnet12") -> None:
    """Draw both instantiations with a backbone, as a ``.png``, ``.pdf`` or ``.svg`` file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = Path(path)
    if path.suffix not in (".png", ".pdf", ".svg"):
        raise UserError(f"the picture must end in .png, .pdf or .svg, got {str(path)!r}")
    figure = Figure(figsize=(_WIDTH, 2 * _HALF))
    FigureCanvasAgg(figure)
    canvas = figure.add_axes((0, 0, 1, 1))
    canvas.set(xlim=(0, _WIDTH), ylim=(0, 2 * _HALF))
    canvas.set_axis_off()
    meta, stl = instantiations(backbone)
    _draw_half(figure, canvas, meta, _HALF)
    canvas.plot([0.3, _WIDTH - 0.3], [_HALF, _HALF], color="#e2e8f0", linewidth=1)
    _draw_half(figure, canvas, stl, 0)
    with temporary(path) as part:
        figure.savefig(part, dpi=130, format=path.suffix.removeprefix("."))


def _draw_half(figure: "Figure", canvas: "Axes", shown: Instantiation, bottom: float) -> None:
    middle = bottom + _MIDDLE
    canvas.text(0.3, bottom + _HALF - 0.22, shown.title, fontsize=13, color=_INK, weight="bold", va="center")
    _draw_images(figure, canvas, shown, bottom)
    before = 1.8
    for step, (left, width, kind) in zip(shown.steps[:4], _BOXES, strict=True):
        _arrow(canvas, (before, middle), (left, middle))
        if step.title == "BDC matrix":
            _draw_matrix(figure, canvas, step, shown.matrix, (left, width), bottom)
        else:
            _draw_box(canvas, step, (left, width), middle, _TALL, kind)
        before = left + width
    upper, lower = (bottom + height for height in _END_MIDDLES)
    for step, name, height in zip(shown.steps[4:], shown.arrows, (upper, lower), strict=True):
        _draw_box(canvas, step, (_END_LEFT, _END_WIDTH), height, _END_TALL, "end")
        _arrow(canvas, (before, middle), (_END_LEFT, height))
        note = canvas.text((before + _END_LEFT) / 2, (middle + height) / 2, name, fontsize=9.5, color=_SOFT)
        note.set(ha="center", va="center", style="italic", bbox={"facecolor": "white", "edgecolor": "none", "pad": 2})
    if shown.trained_with_tasks:
        centre = _END_LEFT + _END_WIDTH / 2
        _arrow(canvas, (centre, upper - _END_TALL / 2), (centre, lower + _END_TALL / 2))


def _draw_box(canvas: "Axes", step: Step, place: tuple[float, float], middle: float, tall: float, kind: str) -> None:
    _frame(canvas, place, middle, tall, kind)
    centre = place[0] + place[1] / 2
    top = middle + 0.13 * len(step.lines)
    canvas.text(centre, top, step.title, fontsize=11.5, color=_INK, weight="bold", ha="center", va="center")
    for position, line in enumerate(step.lines, start=1):
        canvas.text(centre, top - 0.05 - 0.24 * position, line, fontsize=9.5, color=_SOFT, ha="center", va="center")


def _frame(canvas: "Axes", place: tuple[float, float], middle: float, tall: float, kind: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    fill, edge = _COLOURS[kind]
    corner = (place[0], middle - tall / 2)
    style = "round,pad=0,rounding_size=0.1"
    canvas.add_patch(FancyBboxPatch(corner, place[1], tall, boxstyle=style, facecolor=fill, edgecolor=edge))


def _draw_matrix(
    figure: "Figure", canvas: "Axes", step: Step, matrix: Tensor, place: tuple[float, float], bottom: float
) -> None:
    """The box of the BDC matrix, with the matrix in it."""
    middle, tall = bottom + _MIDDLE, 2.6
    _frame(canvas, place, middle, tall, "bdc")
    centre, top = place[0] + place[1] / 2, middle + tall / 2
    canvas.text(centre, top - 0.2, step.title, fontsize=11.5, color=_INK, weight="bold", ha="center", va="center")
    for position, line in enumerate(reversed(step.lines)):
        height = middle - tall / 2 + 0.15 + 0.21 * position
        canvas.text(centre, height, line, fontsize=9.5, color=_SOFT, ha="center", va="center")
    side = 1.5
    panel = _panel(figure, centre - side / 2, top - 0.38 - side, side)
    corner = matrix[:_SHOWN_CHANNELS, :_SHOWN_CHANNELS]
    limit = float(corner.abs().quantile(0.97))  # the diagonal is much darker than the rest
    panel.imshow(corner.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")


def _draw_images(figure: "Figure", canvas: "Axes", shown: Instantiation, bottom: float) -> None:
    """Thumbnails of the images; for a task the support class by class, and below it the queries."""
    side, gap = 0.42, 0.06
    task = shown.trained_with_tasks
    rows = [shown.images[label * SHOT : (label + 1) * SHOT] for label in range(WAY)]
    columns = [torch.cat([rows[label], shown.images[WAY * SHOT + label][None]]) for label in range(WAY)]
    left, top = 0.35, bottom + _MIDDLE + 1.5 * side + gap + (0.18 if task else 0)
    for label, column in enumerate(columns):
        for position, image in enumerate(column):
            below = 0.42 if task and position == SHOT else 0.0
            panel = _panel(figure, left + label * (side + gap), top - side - position * (side + gap) - below, side)
            panel.imshow(image.permute(1, 2, 0).numpy())
    centre = left + 1.5 * side + gap
    title = f"support: {WAY} classes × {SHOT}" if task else "images of all classes"
    canvas.text(centre, top + 0.15, title, fontsize=9.5, color=_SOFT, ha="center", va="center")
    if task:
        height = top - SHOT * (side + gap) - 0.2
        canvas.text(centre, height, "query", fontsize=9.5, color=_SOFT, ha="center", va="center")


def _panel(figure: "Figure", left: float, low: float, side: float) -> "Axes":
    panel = figure.add_axes((left / _WIDTH, low / (2 * _HALF), side / _WIDTH, side / (2 * _HALF)))
    panel.set_xticks([])
    panel.set_yticks([])
    panel.spines[:].set_color("#cbd5e1")
    return panel


def _arrow(canvas: "Axes", start: tuple[float, float], end: tuple[float, float]) -> None:
    style = {"arrowstyle": "-|>", "color": _LINE, "linewidth": 1.3, "shrinkA": 3, "shrinkB": 3}
    canvas.annotate("", xy=end, xytext=start, arrowprops=style)
