"""A linear classifier that takes a few gradient steps on each support set, from zero or from learnt weights."""

import torch
from torch import Tensor, nn

from deepbdc.classifiers.base import Classifier, membership, positive
from deepbdc.classifiers.linear import LinearRule
from deepbdc.errors import UserError


class AdaptedLinearClassifier(Classifier):
    """The last layer of MAML and ANIL (Finn et al., ICML 2017; Raghu et al., ICLR 2020), on fixed representations.

    Each step is W ← W - α ∇ L(W), with L the mean cross-entropy over the support set. The gradient is written out,
    (softmax(X Wᵀ + b) - Y)ᵀ X / s, so many episodes take their steps at once, and the result can be differentiated with
    respect to the representations.

    In the original, W starts from learnt weights, those of a class being chosen by its place in the episode. Then a
    network works for one number of classes, and scores depend on their order; ``slots`` gives that. By default all
    classes start alike. What they have in common cancels in the softmax, so the common start is 0.

    Args:
        features: Numbers in a representation; needed with ``slots``.
        slots: Number of classes with learnt start weights, the parameter group ``start`` (None: start from 0).
        steps: Gradient steps in training mode.
        test_steps: Gradient steps in evaluation mode.
        rate: α, for a loss that is the mean over the support set.
        first_order: Treat the gradients of the steps as constants in the backward pass.
    """

    named_parameter_groups = {"start": ("weight", "bias")}  # noqa: RUF012

    def __init__(
        self,
        features: int = 1,
        slots: int | None = None,
        steps: int = 5,
        test_steps: int = 10,
        rate: float = 0.05,
        first_order: bool = False,
    ) -> None:
        super().__init__(
            features=features, slots=slots, steps=steps, test_steps=test_steps, rate=rate, first_order=first_order
        )
        self.features = features
        self.steps = int(positive("steps", steps))
        self.test_steps = int(positive("test_steps", test_steps))
        self.rate = positive("rate", rate)
        self.first_order = first_order
        self.weight: nn.Parameter | None = None
        self.bias: nn.Parameter | None = None
        if slots is not None:
            self.weight = nn.Parameter(nn.Linear(features, int(positive("slots", slots))).weight.detach().clone())
            self.bias = nn.Parameter(torch.zeros(slots))

    def start(self, way: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """The weights ``(way, features)`` and intercepts ``(way,)`` before the first step, of the type of ``like``."""
        if self.weight is None or self.bias is None:
            return like.new_zeros(way, like.shape[-1]), like.new_zeros(way)
        if way != len(self.bias):
            raise UserError(f"this classifier was made for {len(self.bias)} classes (slots), got {way}")
        return self.weight.to(like.dtype), self.bias.to(like.dtype)

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, features), (e, s), (e, q, features) -> (e, q, way)``."""
        weight, bias = self._adapted(support, support_labels, way)
        return query @ weight.transpose(-2, -1) + bias

    def rule(self, support: Tensor, support_labels: Tensor, way: int) -> LinearRule:
        """``(e, s, features), (e, s)`` -> the weights and intercepts after the steps."""
        weight, bias = self._adapted(support, support_labels, way)
        return LinearRule(weight.detach(), bias.detach().double(), normalize=False)

    def _adapted(self, support: Tensor, support_labels: Tensor, way: int) -> tuple[Tensor, Tensor]:
        """Weights ``(e, way, features)`` and intercepts ``(e, 1, way)`` after the steps."""
        first_weight, first_bias = self.start(way, support)
        weight, bias = first_weight.expand(len(support), -1, -1), first_bias.expand(len(support), 1, -1)
        targets = membership(support_labels, way, support.dtype)
        for _ in range(self.steps if self.training else self.test_steps):
            errors = (torch.softmax(support @ weight.transpose(-2, -1) + bias, dim=-1) - targets) / targets.shape[1]
            step, bias_step = errors.transpose(-2, -1) @ support, errors.sum(dim=1, keepdim=True)
            if self.first_order:
                step, bias_step = step.detach(), bias_step.detach()
            weight, bias = weight - self.rate * step, bias - self.rate * bias_step
        return weight, bias

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """Weights and their gradient; there are at most as many classes as support images."""
        return 3 * 4 * support[0] * support[1]
