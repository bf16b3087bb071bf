"""The softmax classifier trained by stochastic gradient descent, for many episodes at once."""

import torch
from torch import Tensor

from deepbdc._modes import one_thread
from deepbdc.classifiers._products import class_weights, support_products
from deepbdc.classifiers.base import classifiers, membership, positive
from deepbdc.classifiers.linear import LinearClassifier, LinearRule
from deepbdc.errors import UserError


class SoftmaxClassifier(LinearClassifier):
    """A linear layer trained with cross-entropy by SGD with momentum and weight decay (Xie et al., CVPR 2022, S1).

    Starting from zero, the weights stay in the span of the support set: what is trained are the coefficients of the
    support images, which gives the same numbers as training the weights, at a cost that does not grow with the
    features. Weight decay also acts on the intercept, as ``torch.optim.SGD`` does by default. Scores are logits;
    no gradient flows through them.

    `SGDHeadClassifier` trains a similar layer, but from random weights, with an order of the images for each episode,
    and in the precision of the representations; here everything after the inner products is float64. Neither gives
    the numbers of the other.
    """

    def __init__(
        self,
        epochs: int,
        learning_rate: float,
        batch_size: int,
        momentum: float,
        weight_decay: float,
        normalize: bool,
        seed: int,
    ) -> None:
        super().__init__(
            epochs=epochs,
            learning_rate=learning_rate,
            batch_size=batch_size,
            momentum=momentum,
            weight_decay=weight_decay,
            normalize=normalize,
            seed=seed,
        )
        self.epochs = int(positive("epochs", epochs))
        self.learning_rate = positive("learning_rate", learning_rate)
        self.batch_size = int(positive("batch_size", batch_size))
        if not 0 <= momentum < 1:
            raise UserError(f"momentum must be at least 0 and below 1, got {momentum!r}")
        if not 0 <= weight_decay < float("inf"):
            raise UserError(f"weight_decay must not be negative, got {weight_decay!r}")
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.normalize = normalize
        self.seed = seed

    def rule(self, support: Tensor, support_labels: Tensor, way: int) -> LinearRule:
        """``(e, s, features), (e, s)`` -> logits."""
        products, factors = support_products(support, self.normalize)
        with one_thread():
            coefficients, intercept = self._train(products, membership(support_labels, way, products.dtype))
        return LinearRule(class_weights(support, factors, coefficients), intercept, self.normalize)

    def _train(self, products: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients ``(e, s, way)`` and intercepts ``(e, 1, way)`` from products ``(e, s, s)`` and targets."""
        coefficients = torch.zeros_like(targets)
        intercept = torch.zeros_like(targets[:, :1])
        velocity, intercept_velocity = torch.zeros_like(coefficients), torch.zeros_like(intercept)
        for batch in training_batches(targets.shape[1], self.epochs, self.batch_size, self.seed):
            images = batch.to(targets.device)
            logits = products[:, images] @ coefficients + intercept
            errors = (torch.softmax(logits, dim=-1) - targets[:, images]) / len(batch)
            # The gradient of the weights is Σ error · image over the batch, so that of the coefficients is the error.
            velocity = self.momentum * velocity + self.weight_decay * coefficients
            velocity[:, images] += errors
            intercept_velocity = (
                self.momentum * intercept_velocity + self.weight_decay * intercept + errors.sum(dim=1, keepdim=True)
            )
            coefficients = coefficients - self.learning_rate * velocity
            intercept = intercept - self.learning_rate * intercept_velocity
        return coefficients, intercept


@classifiers.register
def softmax(
    epochs: int = 100,
    learning_rate: float = 1e-2,
    batch_size: int = 4,
    momentum: float = 0.9,
    weight_decay: float = 1e-3,
    normalize: bool = False,
    seed: int = 0,
) -> SoftmaxClassifier:
    """The softmax classifier.

    The paper states all of the defaults but the number of epochs, which is our choice.

    Args:
        epochs: Passes over the support set.
        learning_rate: Constant learning rate.
        batch_size: Support images in a step; the last batch of an epoch may be smaller.
        momentum: Of SGD, not Nesterov's.
        weight_decay: Of the weights and the intercept.
        normalize: Divide each representation by its length (+ 1e-6) first. The paper does so for its logistic
            regression and SVM, and does not say it for this one.
        seed: Of the order of the support images.
    """
    return SoftmaxClassifier(epochs, learning_rate, batch_size, momentum, weight_decay, normalize, seed)


def training_batches(images: int, epochs: int, batch_size: int, seed: int) -> list[Tensor]:
    """The support images of every training step, by their positions; each epoch has a new order.

    All episodes take their images in the same order, so that a score does not depend on the episodes beside it.
    """
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(images, generator=generator) for _ in range(epochs)]
    return [batch for order in orders for batch in order.split(batch_size)]
