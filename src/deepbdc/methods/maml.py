"""MAML: a learnt starting point for the whole network, adapted to each task."""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from deepbdc._modes import full_precision
from deepbdc.backbones.base import Backbone
from deepbdc.classifiers import LinearRule
from deepbdc.classifiers.adapted_linear import AdaptedLinearClassifier
from deepbdc.data.dataset import Dataset
from deepbdc.embedding import Embedding
from deepbdc.errors import NotFinite, UserError
from deepbdc.feature_bank import Pictures, Source
from deepbdc.methods.base import EpisodicMethod, at_least_float, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing

Parameters = dict[str, Tensor]


@methods.named("maml")
class MAML(EpisodicMethod):
    """Finn, Abbeel, Levine, "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks", ICML 2017.

    For each task, J gradient steps on the support set adapt all weights, θ ← θ - α ∇ L_support(θ), starting from learnt
    ones; the adapted network classifies the queries. The outer loss, the cross-entropy of the queries, is
    differentiated through these steps (``first_order`` leaves out that part). The network looks at the pictures of each
    task again, so nothing is embedded beforehand: the "representation" of an image is the image, and `classify` takes
    pictures ``(..., n, 3, h, w)``. It computes in float32 also under autocast.

    Differences from the original: by default the last layer starts from 0, so that the method works for any number and
    order of classes (``slots`` gives the original, see `AdaptedLinearClassifier`); features are averaged over
    positions, where the original flattens them; ``rate`` belongs to a loss that is the mean over the support set (the
    original sums over classes, so its 0.01 is 0.05 here with five classes).

    Like the original, batch norm normalises by the images that are in the network together, and has no running
    statistics. The queries of a task then influence each other, so the method is transductive; ``batch_norm="running"``
    uses running statistics and is inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        steps: J in training.
        test_steps: J at test time.
        rate: α.
        first_order: Treat the gradients of the inner steps as constants in the backward pass.
        batch_norm: ``"batch"`` or ``"running"`` statistics.
        slots: Number of classes with learnt start weights (None: start from 0).
    """

    classifier: AdaptedLinearClassifier

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        steps: int = 5,
        test_steps: int = 10,
        rate: float = 0.05,
        first_order: bool = False,
        batch_norm: Literal["batch", "running"] = "batch",
        slots: int | None = None,
    ) -> None:
        if batch_norm not in ("batch", "running"):
            raise UserError(f"batch_norm must be 'batch' or 'running', got {batch_norm!r}")
        if batch_norm == "batch":
            _forget_running_statistics(backbone)
        embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        head = AdaptedLinearClassifier(embedding.out_features, slots, steps, test_steps, rate, first_order)
        super().__init__(embedding, head, batch_norm=batch_norm)

    @property
    def transductive(self) -> bool:
        """Whether batch norm lets the queries of a task influence each other."""
        return bool(self.settings["batch_norm"] == "batch")

    def embed(self, images: Tensor) -> Tensor:
        """The images themselves: the network is another one for each task."""
        return images

    def source(self, dataset: Dataset, **options: Any) -> Source:
        """The pictures of a data set."""
        return Pictures(dataset, self.embedding.preprocessing)

    def classify(self, support: Tensor, support_labels: Tensor, query: Tensor) -> Tensor:
        """Scores ``(..., query, way)`` from pictures ``(..., n, 3, h, w)``, one episode after the other."""
        batch, way = support_labels.shape[:-1], int(support_labels.max()) + 1
        with full_precision(support):
            scores = [
                self._adapted_scores(at_least_float(images), labels, at_least_float(queries), way)
                for images, labels, queries in zip(
                    support.reshape(-1, *support.shape[-4:]),
                    support_labels.reshape(-1, support_labels.shape[-1]),
                    query.reshape(-1, *query.shape[-4:]),
                    strict=True,
                )
            ]
        stacked = torch.stack(scores)
        if not bool(torch.isfinite(stacked.detach()).all()):
            raise NotFinite("the network that was adapted to the task gives infinite scores: try a smaller rate")
        return stacked.reshape(*batch, query.shape[-4], way)

    def rule(self, support: Tensor, support_labels: Tensor, way: int) -> LinearRule:
        """There is none: the representations of the queries depend on the task, too."""
        raise UserError("MAML adapts its whole network to each task")

    def _adapted_scores(self, images: Tensor, labels: Tensor, queries: Tensor, way: int) -> Tensor:
        """Adapt to one support set ``(s, 3, h, w)``, and score ``(q, 3, h, w)`` -> ``(q, way)``."""
        head, differentiable = self.classifier, torch.is_grad_enabled()
        weight, bias = head.start(way, images.new_empty(self.embedding.out_features))
        # In channels-last layout the second derivative of batch norm takes about three times as long.
        images, queries = images.contiguous(), queries.contiguous()
        network = {name: value.contiguous() for name, value in self.embedding.named_parameters()}
        adapted: Parameters = {**network, "head.weight": weight, "head.bias": bias}
        with torch.enable_grad():
            for _ in range(head.steps if self.training else head.test_steps):
                # In evaluation each step starts from plain numbers, so that the memory does not grow with the steps.
                adapted = {
                    name: value if differentiable and value.requires_grad else value.detach().requires_grad_()
                    for name, value in adapted.items()
                }
                loss = cross_entropy(self._scores(adapted, images), labels.long())
                second_order = differentiable and not head.first_order
                gradients = torch.autograd.grad(loss, list(adapted.values()), create_graph=second_order)
                steps = zip(adapted.items(), gradients, strict=True)
                adapted = {name: value - head.rate * gradient for (name, value), gradient in steps}
        return self._scores(adapted, queries)

    def _scores(self, adapted: Parameters, images: Tensor) -> Tensor:
        """Scores ``(n, way)`` of the network with other weights."""
        network = {name: value for name, value in adapted.items() if not name.startswith("head.")}
        representations: Tensor = functional_call(self.embedding, network, (images,))
        return representations @ adapted["head.weight"].T + adapted["head.bias"]


def _forget_running_statistics(network: nn.Module) -> None:
    """Let batch norm use the statistics of the batch, in training and evaluation mode."""
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
