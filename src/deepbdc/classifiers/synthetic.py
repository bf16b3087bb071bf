"""A linear layer trained on synthetic representations, which a learnt generator makes from the support images."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from deepbdc._modes import one_thread, separate_random_numbers
from deepbdc.classifiers._layers import applied
from deepbdc.classifiers._tasks import Tasks, chosen, sorted_tasks
from deepbdc.classifiers.base import grouped_by_class, membership, positive, shots
from deepbdc.classifiers.linear import LinearClassifier, LinearRule
from deepbdc.errors import UserError

_NUMBERS_AT_A_TIME = 2**22
"""Hidden numbers that the generator computes at a time."""
_BETAS, _EPSILON = (0.9, 0.999), 1e-8  # of Adam
_DECAY = 0.9


class DeltaEncoderClassifier(LinearClassifier):
    """The classifier of the Δ-encoder (Schwartz et al., NeurIPS 2018).

    An encoder expresses the difference of two images of one training class by a few numbers, the code E(x, y). A
    decoder applies it to an image of a new class, x̂ = D(y, code). Both have one hidden layer with LeakyReLU and
    dropout. For each class of a task, ``synthetic`` representations are decoded from its support images in turn, with
    codes drawn at random from the buffer ``codes``. Together with the support images they train a linear layer with
    cross-entropy: Adam from zero weights, whose rate is multiplied by 0.9 after each epoch with a larger loss than the
    one before.

    All tasks are trained at once, each with random numbers of its own: see `sorted_tasks`. No gradient flows through
    the scores.

    Args:
        features: Numbers in a representation.
        hidden: Numbers in the hidden layers of encoder and decoder, the parameter group ``delta``.
        code: Numbers in a code.
        dropout: Probability of dropout on the hidden layers.
        synthetic: Synthetic representations per class.
        pairs: Codes of pairs of training images to keep.
        epochs: Passes over all representations of a task.
        learning_rate: Initial rate of Adam for the layer of a task.
        batch_size: Representations in a step.
        seed: Of the choice of codes and of the batches.
    """

    named_parameter_groups = {"delta": ("encoder", "decoder")}  # noqa: RUF012
    codes: Tensor

    def __init__(
        self,
        features: int,
        hidden: int = 512,
        code: int = 16,
        dropout: float = 0.5,
        synthetic: int = 256,
        pairs: int = 4096,
        epochs: int = 25,
        learning_rate: float = 1e-3,
        batch_size: int = 100,
        seed: int = 0,
    ) -> None:
        super().__init__(
            features=features,
            hidden=hidden,
            code=code,
            dropout=dropout,
            synthetic=synthetic,
            pairs=pairs,
            epochs=epochs,
            learning_rate=learning_rate,
            batch_size=batch_size,
            seed=seed,
        )
        self.hidden = int(positive("hidden", hidden))
        self.synthetic = int(positive("synthetic", synthetic))
        self.epochs = int(positive("epochs", epochs))
        self.learning_rate = positive("learning_rate", learning_rate)
        self.batch_size = int(positive("batch_size", batch_size))
        self.seed = seed
        with separate_random_numbers():
            self.encoder = _two_layers(2 * features, hidden, int(positive("code", code)), dropout)
            self.decoder = _two_layers(features + code, hidden, features, dropout)
        self.register_buffer("codes", torch.zeros(int(positive("pairs", pairs)), code))

    def encode(self, image: Tensor, reference: Tensor) -> Tensor:
        """How an image differs from another one of its class: ``(n, features), (n, features) -> (n, code)``."""
        codes: Tensor = applied(self.encoder, torch.cat([image, reference], dim=-1))
        return codes

    def decode(self, reference: Tensor, codes: Tensor) -> Tensor:
        """An image that differs like that from a reference: ``(n, features), (n, code) -> (n, features)``."""
        images: Tensor = applied(self.decoder, torch.cat([reference, codes], dim=-1))
        return images

    @torch.no_grad()
    def rule(self, support: Tensor, support_labels: Tensor, way: int) -> LinearRule:
        """``(e, s, features), (e, s)`` -> logits of the layer."""
        if not bool(self.codes.any()):
            raise UserError("this method remembers no codes of its training classes: train it, or call remember")
        tasks = sorted_tasks(support, support_labels, way, self.seed)
        images, labels = self.training_set(tasks, way)
        with one_thread():
            weights, intercepts = self._train(tasks, images, membership(labels, way, images.dtype))
        return LinearRule(
            tasks.by_label(weights), tasks.by_label(intercepts).transpose(-2, -1).double(), normalize=False
        )

    def training_set(self, tasks: Tasks, way: int) -> tuple[Tensor, Tensor]:
        """Synthetic and real representations ``(e, way · synthetic + s, features)``, and their labels."""
        count = self.synthetic
        grouped, _ = grouped_by_class(tasks.support, tasks.labels, way)  # (e, way, most, features)
        turns = torch.arange(count, device=grouped.device) % shots(tasks.labels, way).unsqueeze(-1)  # (e, way, count)
        classes = torch.arange(way, device=grouped.device)
        references = chosen(grouped.flatten(0, 1), turns.flatten(0, 1)).flatten(0, 1)
        drawn = (tasks.uniform(0, way, count) * len(self.codes)).long().clamp_(max=len(self.codes) - 1).flatten()
        rows = max(1, _NUMBERS_AT_A_TIME // self.hidden)
        codes = self.codes.to(references.dtype)
        decoded = [
            self.decode(some, codes[which])
            for some, which in zip(references.split(rows), drawn.split(rows), strict=True)
        ]
        synthetic = torch.cat(decoded).reshape(len(grouped), way * count, -1)
        labels = classes.repeat_interleave(count).expand(len(grouped), -1)
        return torch.cat([synthetic, tasks.support], dim=1), torch.cat([labels, tasks.labels], dim=1)

    def batches(self, tasks: Tasks, images: int) -> Iterator[tuple[Tensor, ...]]:
        """For each epoch the batches ``(e, n)`` of places in the training set."""
        for epoch in range(self.epochs):
            yield tasks.order(1 + epoch, images).split(self.batch_size, dim=1)

    def _train(self, tasks: Tasks, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Weights ``(e, way, features)`` and intercepts ``(e, way, 1)`` for images ``(e, n, features)``."""
        images = nn.functional.pad(images, (0, 1), value=1.0)  # the last weight is the intercept
        weights = images.new_zeros(len(images), targets.shape[-1], images.shape[-1])
        first, second = torch.zeros_like(weights), torch.zeros_like(weights)
        rates = images.new_full((len(images), 1, 1), self.learning_rate)
        before = images.new_full((len(images), 1, 1), float("inf"))
        step = 0
        for batches in self.batches(tasks, images.shape[1]):
            losses = []
            for batch in batches:
                step += 1
                some, answers = chosen(images, batch), chosen(targets, batch).transpose(-2, -1)
                logs = log_softmax(weights @ some.transpose(-2, -1), dim=1)  # (e, way, n)
                losses.append(-(logs * answers).sum(dim=(1, 2)) / batch.shape[1])
                gradient = (logs.exp() - answers) @ some / batch.shape[1]
                first.lerp_(gradient, 1 - _BETAS[0])
                second.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
                spread = (second / (1 - _BETAS[1] ** step)).sqrt_().add_(_EPSILON)
                weights -= rates / (1 - _BETAS[0] ** step) * first / spread
            mean = torch.stack(losses).mean(dim=0)[:, None, None]
            rates = torch.where(mean > before, _DECAY * rates, rates)
            before = mean
        return weights[..., :-1], weights[..., -1:]

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """The training set, some copies of it, and the random numbers; each support image may be a class of its own."""
        return support[0] * (self.synthetic + 1) * (5 * 4 * support[-1] + 32)


def reconstruction_loss(images: Tensor, reconstructed: Tensor) -> Tensor:
    """The mean over images of Σ w_j e_j, with the errors e_j = |x_j - x̂_j| and w_j = e_j² / (Σ e_j² + 1e-7)."""
    errors = (images - reconstructed).abs()
    squares = errors.square()
    return ((squares * errors).sum(dim=-1) / (squares.sum(dim=-1) + 1e-7)).mean()


def _two_layers(inputs: int, hidden: int, outputs: int, dropout: float) -> nn.Sequential:
    layers = nn.Sequential(
        nn.Linear(inputs, hidden), nn.LeakyReLU(0.2), nn.Dropout(dropout), nn.Linear(hidden, outputs)
    )
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)
    return layers
