"""Δ-encoder: a linear layer trained on representations that a learnt generator makes from the support images."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepbdc._modes import evaluating, full_precision
from deepbdc._seeds import derive
from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.synthetic import DeltaEncoderClassifier, reconstruction_loss
from deepbdc.embedding import Embedding
from deepbdc.methods.base import Method, TrainingClasses, at_least_float, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing
from deepbdc.stages import BatchSettings, Classification, Inputs, Loss, Objective, Process, ShuffledBatches
from deepbdc.stages.batches import AugmentedImages, Batch
from deepbdc.stages.settings import StageSettings

_PAIRS_AT_A_TIME = 1024


class PairedBatches(ShuffledBatches):
    """All images in a new order in every epoch, each with a partner of its own class: (images ``(2 n, 3, s, s)``,).

    The first n images are the ones, the last n their partners. In an epoch the partners of a class are its images in
    another random order, so each image is the partner of exactly one.
    """

    def __init__(
        self, images: AugmentedImages, settings: StageSettings, name: str, seed: int, process: Process
    ) -> None:
        super().__init__(images, settings, name, seed, process)
        self.images_per_step *= 2

    def load(self, epoch: int, step: int, part: int) -> Batch:
        """Load this process's pairs of one part of a step."""
        indices = self.piece(epoch, step, part)
        partners = self.partners(epoch)[indices]
        seed = derive(self.seed, self.name, "images", epoch, step, part * self.process.count + self.process.rank)
        return (self.images.load(np.concatenate([indices, partners]), seed),)

    def partners(self, epoch: int) -> NDArray[np.int64]:
        """The partner of each image of the data set."""
        generator = torch.Generator().manual_seed(derive(self.seed, self.name, "partners", epoch))
        labels = self.images.dataset.labels
        orders = [torch.randperm(len(labels), generator=generator) for _ in range(2)]
        ones, others = (order[labels[order].argsort(stable=True)] for order in orders)  # both are sorted by class
        partners = torch.empty_like(ones)
        partners[ones] = others
        return partners.numpy()


class DeltaTraining(Objective):
    """The error of the decoder's reconstruction of an image from its partner and their code. The network is frozen."""

    Settings = BatchSettings
    Batches = PairedBatches
    method: "DeltaEncoder"

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        self.method.embedding.requires_grad_(False)

    def forward(self, *batch: Tensor) -> Loss:
        """Images and their partners, ``(2 n, 3, s, s)``."""
        (images,) = batch
        with evaluating(self.method.embedding), torch.no_grad():
            representations = self.method.embed(images)
        with full_precision(representations):
            ones, partners = at_least_float(representations).chunk(2)
            classifier = self.method.classifier
            reconstructed = classifier.decode(partners, classifier.encode(ones, partners))
            return Loss(reconstruction_loss(ones, reconstructed), {"size": ones.abs().mean()})


@methods.named("delta_encoder")
class DeltaEncoder(Method):
    """Schwartz et al., "Δ-encoder: an effective sample synthesis method for few-shot object recognition", NeurIPS 2018.

    Ordinary training on all classes (stage ``pretrain``). Then, with the network frozen, an auto-encoder learns the few
    numbers that turn one image of a class into another (stage ``delta``): code = E(x, y), x̂ = D(y, code), with the loss
    Σ_j e_j³ / Σ_j e_j² of the errors e = |x - x̂|. In a task, D applies random codes of the training classes to the
    support images, and a linear layer is trained on the results: see `DeltaEncoderClassifier`. The codes are kept with
    the weights, so that no training images are needed.

    The authors lower the rate of the auto-encoder whenever the loss of an epoch rises; here a recipe gives a schedule.
    They report the epoch that is best on the test images, of the auto-encoder and of each layer; here the last epoch of
    a layer counts. How its weights start is not known to us; here they start from zero. While the network is
    pre-trained, the auto-encoder has its random first weights, so that validation in that stage says little. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        hidden: Numbers in the hidden layers of E and D, the parameter group ``delta``. The authors have 8192.
        code: Numbers in a code.
        dropout: Probability of dropout on the hidden layers.
        synthetic: Synthetic representations per class. The authors have 1024.
        pairs: Codes to keep. The authors draw pairs from all training images instead.
        epochs: Passes over all representations of a task.
        learning_rate: Initial rate of Adam for the layer of a task.
        seed: Of the pairs, of the choice of codes and of the batches of a task.
    """

    objectives: ClassVar[Mapping[str, type[Objective]]] = {"pretrain": Classification, "delta": DeltaTraining}
    classifier: DeltaEncoderClassifier

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        hidden: int = 512,
        code: int = 16,
        dropout: float = 0.5,
        synthetic: int = 256,
        pairs: int = 4096,
        epochs: int = 25,
        learning_rate: float = 1e-3,
        seed: int = 0,
    ) -> None:
        embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        classifier = DeltaEncoderClassifier(
            embedding.out_features,
            hidden=hidden,
            code=code,
            dropout=dropout,
            synthetic=synthetic,
            pairs=pairs,
            epochs=epochs,
            learning_rate=learning_rate,
            seed=seed,
        )
        super().__init__(embedding, classifier)

    def remember(self, base: TrainingClasses) -> None:
        """Keep the codes of random pairs of training images of one class."""
        classifier, source = self.classifier, base.source(self)
        ones, others = random_pairs(base.dataset.labels, len(classifier.codes), classifier.seed)
        starts = range(0, len(ones), _PAIRS_AT_A_TIME)
        parts = [slice(start, start + _PAIRS_AT_A_TIME) for start in starts]
        rows = ((source.rows(ones[part]), source.rows(others[part])) for part in parts)
        classifier.codes.copy_(torch.cat([classifier.encode(*(x.to(classifier.codes) for x in pair)) for pair in rows]))


def random_pairs(labels: Tensor, count: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """``count`` random images and for each another one of its class (itself, if it is the only one)."""
    generator = torch.Generator().manual_seed(derive(seed, "pairs"))
    by_class = labels.argsort(stable=True)
    sizes = torch.bincount(labels)
    starts = sizes.cumsum(dim=0) - sizes
    places = torch.randint(len(labels), (count,), generator=generator)  # in by_class
    classes = labels[by_class[places]]
    others = (sizes[classes] - 1).clamp(min=1)
    away = 1 + (torch.rand(count, generator=generator) * others).long().clamp(max=others - 1)
    partners = starts[classes] + (places - starts[classes] + away) % sizes[classes]
    return by_class[places].numpy(), by_class[partners].numpy()
