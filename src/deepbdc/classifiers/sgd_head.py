"""A linear or cosine layer that SGD fits to each task in random batches, for many tasks at once."""

from typing import Literal, get_args

import torch
from torch import Tensor

from deepbdc._modes import one_thread
from deepbdc.classifiers._products import NORM_EPSILON
from deepbdc.classifiers._tasks import Tasks, sorted_tasks
from deepbdc.classifiers.base import lengths, membership, positive
from deepbdc.classifiers.linear import LinearClassifier, LinearRule
from deepbdc.errors import UserError

Form = Literal["linear", "cosine"]


class SGDHeadClassifier(LinearClassifier):
    """The new layer that Baseline and Baseline++ train for each task (Chen et al., ICLR 2019).

    - ``"linear"``: score_c = scale · (w_c · z + b_c)
    - ``"cosine"``: score_c = scale · g_c · cos(w_c, z), with z divided by its length + 1e-6

    All of w, b and g are trained with cross-entropy by SGD with momentum, dampening and weight decay, as
    ``torch.optim.SGD`` does (which does not dampen the first step). w and b start from uniform random numbers in
    ±1/√features, as a layer of torch does, and g from the length of w.

    All tasks are trained at once, each with random numbers of its own: see `sorted_tasks`. If an image has more
    features than there are support images, the images are first expressed in an orthonormal basis of their span. Then a
    step costs the same whatever the number of features, and the weights are the same up to rounding. No gradient flows
    through the scores.

    Args:
        form: The formula of the scores.
        scale: Factor on all scores.
        bias: Of the linear form: train b (else it is 0).
        gain: Of the cosine form: train g (else it is 1).
        epochs: Passes over the support set.
        learning_rate: Constant learning rate.
        batch_size: Support images in a step; the last batch of an epoch may be smaller.
        momentum: Of SGD, not Nesterov's.
        dampening: Of the momentum.
        weight_decay: Of w, b and g.
        seed: Of the initial weights and of the order of the support images.
    """

    def __init__(
        self,
        form: Form = "linear",
        scale: float = 1.0,
        bias: bool = True,
        gain: bool = True,
        epochs: int = 100,
        learning_rate: float = 0.01,
        batch_size: int = 4,
        momentum: float = 0.9,
        dampening: float = 0.9,
        weight_decay: float = 1e-3,
        seed: int = 0,
    ) -> None:
        super().__init__(
            form=form,
            scale=scale,
            bias=bias,
            gain=gain,
            epochs=epochs,
            learning_rate=learning_rate,
            batch_size=batch_size,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            seed=seed,
        )
        if form not in get_args(Form):
            raise UserError(f"form must be one of {', '.join(get_args(Form))}, got {form!r}")
        if not 0 <= momentum < 1 or not 0 <= dampening < 1:
            raise UserError(f"momentum and dampening must be in [0, 1), got {momentum!r} and {dampening!r}")
        if not 0 <= weight_decay < float("inf"):
            raise UserError(f"weight_decay must not be negative, got {weight_decay!r}")
        self.cosine = form == "cosine"
        self.scale = positive("scale", scale)
        self.trains_offset = gain if self.cosine else bias
        self.epochs = int(positive("epochs", epochs))
        self.learning_rate = positive("learning_rate", learning_rate)
        self.batch_size = int(positive("batch_size", batch_size))
        self.momentum, self.dampening, self.weight_decay = momentum, dampening, weight_decay
        self.seed = seed

    @torch.no_grad()
    def rule(self, support: Tensor, support_labels: Tensor, way: int) -> LinearRule:
        """``(e, s, features), (e, s)`` -> logits."""
        with one_thread():
            tasks = sorted_tasks(support, support_labels, way, self.seed)
            images = tasks.support
            if self.cosine:
                images = images / (lengths(images).unsqueeze(-1) + NORM_EPSILON)
            weights, offsets = self.start(tasks, way)
            coordinates, weights, basis = _in_span(images, weights)
            self._train(tasks, coordinates, weights, offsets)
            weights = basis.undo(weights)
        if self.cosine:
            weights, offsets = weights * (offsets / _norms(weights)), torch.zeros_like(offsets)
        intercepts = self.scale * tasks.by_label(offsets).transpose(-2, -1).double()
        return LinearRule(self.scale * tasks.by_label(weights), intercepts, normalize=self.cosine)

    def start(self, tasks: Tasks, way: int) -> tuple[Tensor, Tensor]:
        """The initial w ``(e, way, features)``, and b or g ``(e, way, 1)``."""
        features = tasks.support.shape[-1]
        weights, offsets = (2 * tasks.uniform(0, way, features + 1) - 1).div_(features**0.5).split([features, 1], -1)
        if self.cosine:
            offsets = _norms(weights) if self.trains_offset else torch.ones_like(offsets)
        elif not self.trains_offset:
            offsets = torch.zeros_like(offsets)
        return weights.contiguous(), offsets.contiguous()

    def batches(self, tasks: Tasks, epoch: int) -> tuple[Tensor, ...]:
        """The support images of each step of an epoch, as places ``(e, n)`` in the sorted tasks."""
        batches: tuple[Tensor, ...] = tasks.order(1 + epoch, tasks.labels.shape[1]).split(self.batch_size, dim=1)
        return batches

    def _train(self, tasks: Tasks, images: Tensor, weights: Tensor, offsets: Tensor) -> None:
        """Train weights ``(e, way, r)`` and offsets ``(e, way, 1)`` in place, for images ``(e, s, r)``."""
        targets = membership(tasks.labels, weights.shape[1], images.dtype)
        episodes = torch.arange(len(images), device=images.device).unsqueeze(-1)
        parameters = [weights, offsets] if self.trains_offset else [weights]
        velocities: list[Tensor] | None = None
        for epoch in range(self.epochs):
            batches = self.batches(tasks, epoch)
            order, sizes = torch.cat(batches, dim=1), [batch.shape[1] for batch in batches]
            parts = zip(images[episodes, order].split(sizes, 1), targets[episodes, order].split(sizes, 1), strict=True)
            for batch, answers in parts:
                gradients = self._gradients(batch, answers, weights, offsets)
                for value, gradient in zip(parameters, gradients, strict=False):
                    gradient.add_(value, alpha=self.weight_decay)
                if velocities is None:
                    velocities = gradients
                else:
                    for velocity, gradient in zip(velocities, gradients, strict=True):
                        velocity.mul_(self.momentum).add_(gradient, alpha=1 - self.dampening)
                for value, velocity in zip(parameters, velocities, strict=False):
                    value.sub_(velocity, alpha=self.learning_rate)

    def _gradients(self, images: Tensor, targets: Tensor, weights: Tensor, offsets: Tensor) -> list[Tensor]:
        """Of the mean cross-entropy of images ``(e, n, r)`` with targets ``(e, n, way)``: for weights and offsets."""
        if not self.cosine:
            errors = self._errors(torch.baddbmm(offsets, weights, images.transpose(-2, -1)), targets)
            return [errors @ images, errors.sum(dim=-1, keepdim=True)]
        norms = _norms(weights)
        directions = weights / norms
        errors = self._errors((directions * offsets) @ images.transpose(-2, -1), targets)
        along = errors @ images  # the gradient for g · direction
        gains = (along * directions).sum(dim=-1, keepdim=True)
        return [along.sub_(gains * directions).mul_(offsets / norms), gains]

    def _errors(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The gradient for unscaled logits ``(e, way, n)`` with targets ``(e, n, way)``."""
        errors = torch.softmax(self.scale * logits, dim=1).sub_(targets.transpose(-2, -1))
        return errors.mul_(self.scale / targets.shape[1])

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """Sorted and expressed images, and weights; there are at most as many classes as support images."""
        images, features = support[0], support[-1]
        reduced = min(images + 1, features)
        return 8 * images * (6 * features + 6 * reduced)


def _norms(weights: Tensor) -> Tensor:
    """Lengths ``(e, way, 1)``, never 0."""
    return lengths(weights).clamp(min=torch.finfo(weights.dtype).tiny).unsqueeze(-1)


class _Basis:
    """From coordinates of weights in the span of the images back to features."""

    def __init__(self, basis: Tensor | None, outside: Tensor | None) -> None:
        self._basis, self._outside = basis, outside

    def undo(self, weights: Tensor) -> Tensor:
        """``(e, way, r) -> (e, way, features)``."""
        if self._basis is None or self._outside is None:
            return weights
        inside, along = weights[..., :-1], weights[..., -1:]
        return inside @ self._basis.transpose(-2, -1) + along * self._outside


def _in_span(images: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, _Basis]:
    """Express images ``(e, s, features)`` and initial weights ``(e, way, features)`` by fewer coordinates.

    Gradients are combinations of images, so what changes of a weight is its part in their span, and the length of the
    rest. Inner products and lengths are the same in the basis (s directions, and one more for the rest of each weight).
    """
    count, features = images.shape[1:]
    if features <= count + 1:
        return images, weights, _Basis(None, None)
    basis, triangle = torch.linalg.qr(images.transpose(-2, -1))  # (e, features, s), (e, s, s)
    inside = weights @ basis
    outside = weights - inside @ basis.transpose(-2, -1)
    norms = _norms(outside)
    coordinates = torch.nn.functional.pad(triangle.transpose(-2, -1), (0, 1))
    return coordinates, torch.cat([inside, norms], dim=-1), _Basis(basis, outside / norms)
