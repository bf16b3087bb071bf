"""AA: the network is fine-tuned to each task, together with related images of the training classes."""

import copy
from collections.abc import Iterator
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, one_hot
from torch.nn.modules.batchnorm import _BatchNorm

from deepbdc._fingerprint import weights_fingerprint
from deepbdc._modes import evaluating, full_precision
from deepbdc.backbones.base import Backbone
from deepbdc.classifiers import LinearRule
from deepbdc.classifiers.arcmax import ArcmaxClassifier, arcmax, checked_margin, cosines
from deepbdc.classifiers.base import positive
from deepbdc.classifiers.prototype import class_means, similarities
from deepbdc.data.dataset import Dataset
from deepbdc.embedding import Embedding
from deepbdc.errors import NotFinite, UserError
from deepbdc.feature_bank import Pictures, Source
from deepbdc.methods._heads import ScaledHead
from deepbdc.methods.base import Method, TrainingClasses, at_least_float, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing
from deepbdc.stages import Classification, Loss
from deepbdc.stages.objectives import percent_right

Assignment = Literal["best", "in_turn"]
BatchNorm = Literal["batch", "running"]


@methods.named("aa")
class AssociativeAlignment(Method):
    """Afrasiyabi, Lalonde, Gagné, "Associative Alignment for Few-shot Image Classification", ECCV 2020.

    For each task: (1) fit a cosine classifier with class vectors w_c to the support set (`ArcmaxClassifier`); (2) find
    the related training images of each class c, which that classifier takes for c, in the B training classes of which
    it takes the largest share for c; (3) fine-tune a copy of the network f. Each step draws related images r of each
    class, and with μ_c, the mean support representation, minimises by Adam in turn
    -log softmax_c(-‖f(r) - μ_c‖²) over f, the cross-entropy of the related images over w, and the cross-entropy of the
    support set over f and w. A query q has the scores s · cos(f(q), w_c). Pre-training has a cosine head, too. All
    cross-entropies have an additive margin on the angle of the right class (`arcmax`).

    As the network looks at the pictures of each task, `classify` takes pictures ``(..., n, 3, h, w)``. It needs the
    training images as well: `remember` gives it those that it is trained with; a loaded run looks for them where its
    training found them, and `deepbdc evaluate --base` says where else they are.

    This is the centroid alignment of the paper; its adversarial variant was not published as code. The values and the
    order of the steps are those of the released code for Conv4. There, as far as we know, the network is in evaluation
    mode only for the second loss and for the queries; so in the other two batch norm normalises by the images of the
    step, and its running statistics follow the task: ``batch_norm="batch"``. By default the running statistics of the
    training stay, because a bias before batch norm that normalises by the batch has no gradient but rounding errors,
    which Adam turns into whole steps: scores then depend on the order of the images. On glyphs neither form was better.

    Our readings, which no source that we have confirms: dropout is off; in the first loss, related and support images
    go through the network together; μ_c is that of the network of the moment, and the gradient flows through it; each
    of the three losses has an Adam of its own; related images are not augmented; a step takes the next images from one
    random order of all training images, rather than drawing anew, so that results do not depend on a generator; class
    vectors start from class means. In the original the classes choose their training classes in turn, so that scores
    depend on the order of the classes (``assignment="in_turn"``); by default each training class belongs to the class
    that most of its images are taken for.

    The cost is that of a small training for each task: a step computes the gradient for all support and related images,
    and the related images once more. The authors' 150 steps with 50 images per class cost as much as about 100,000
    images in the network per task; the default has 10 steps. Episodes are fine-tuned one after the other (on the CPU,
    a batch of networks by ``torch.func.vmap`` was slower). Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        steps: Steps of fine-tuning (authors: 150).
        rate: Learning rate of Adam while the network is fine-tuned (authors: 1e-3). It lost accuracy
            in a few steps on small networks: try 1e-4.
        related_classes: B.
        related_images: Related images of each class in a step. If some class has fewer, all have as many as the one
            with the fewest (classes without any are left out).
        scale: s while the network is fine-tuned.
        margin: Of the classifier, in radians.
        first_steps: Steps in which the classifier is fitted to the representations of the unchanged network.
        first_rate: Learning rate of Adam in these steps.
        first_scale: s in these steps.
        base_scale: s of the head in pre-training.
        base_margin: Margin of the head in pre-training.
        assignment: How training classes are given to the classes of a task, ``"best"`` or ``"in_turn"``.
        batch_norm: What batch norm normalises by in the first and the third loss: the ``"running"`` statistics of the
            training, which then never change, or the ``"batch"``.
    """

    objectives = {"pretrain": Classification}  # noqa: RUF012
    needs_base_images = True
    classifier: ArcmaxClassifier

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        steps: int = 10,
        rate: float = 1e-3,
        related_classes: int = 10,
        related_images: int = 50,
        scale: float = 15.0,
        margin: float = 0.001,
        first_steps: int = 200,
        first_rate: float = 1e-3,
        first_scale: float = 5.0,
        base_scale: float = 20.0,
        base_margin: float = 0.01,
        assignment: Assignment = "best",
        batch_norm: BatchNorm = "running",
    ) -> None:
        if assignment not in get_args(Assignment):
            raise UserError(f"assignment must be one of {', '.join(get_args(Assignment))}, got {assignment!r}")
        if batch_norm not in get_args(BatchNorm):
            raise UserError(f"batch_norm must be one of {', '.join(get_args(BatchNorm))}, got {batch_norm!r}")
        embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        super().__init__(
            embedding,
            ArcmaxClassifier(first_steps, first_rate, first_scale, margin),
            steps=steps,
            rate=rate,
            related_classes=related_classes,
            related_images=related_images,
            scale=scale,
            base_scale=base_scale,
            base_margin=base_margin,
            assignment=assignment,
            batch_norm=batch_norm,
        )
        self.steps = int(positive("steps", steps))
        self.rate = positive("rate", rate)
        self.related_classes = int(positive("related_classes", related_classes))
        self.related_images = int(positive("related_images", related_images))
        self.scale = positive("scale", scale)
        self.base_scale = positive("base_scale", base_scale)
        self.base_margin = checked_margin(base_margin)
        self.assignment: Assignment = assignment
        self._known: tuple[str, TrainingClasses, Tensor] | None = None

    # ---- training

    def head(self, classes: int) -> nn.Module:
        """Cosines with class vectors, times ``base_scale``."""
        return ScaledHead(self.embedding.out_features, classes, self.base_scale)

    def class_loss(self, scores: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Loss:
        """Cross-entropy with a margin on the angle of the right class; the accuracy is that of the plain scores."""
        right = one_hot(labels, scores.shape[1]).bool()
        with full_precision(scores):
            moved = arcmax(at_least_float(scores) / self.base_scale, right, self.base_scale, self.base_margin)
        value = cross_entropy(moved, labels, label_smoothing=label_smoothing)
        return Loss(value, {"accuracy": percent_right(scores, labels)})

    def remember(self, base: TrainingClasses) -> None:
        """Keep the training images, and in `memory` only which images they are."""
        self.base, self._known = base, None
        self.memory["base_images"] = torch.tensor(list(base.dataset.fingerprint.encode()), dtype=torch.uint8)

    # ---- classification

    def embed(self, images: Tensor) -> Tensor:
        """The images themselves: the network is another one for each task."""
        return images

    def source(self, dataset: Dataset, **options: Any) -> Source:
        """The pictures of a data set."""
        return Pictures(dataset, self.embedding.preprocessing)

    def rule(self, support: Tensor, support_labels: Tensor, way: int) -> LinearRule:
        """There is none: the representations of the queries depend on the task, too."""
        raise UserError("AA fine-tunes its whole network to each task")

    def classify(self, support: Tensor, support_labels: Tensor, query: Tensor) -> Tensor:
        """Scores ``(..., query, way)`` from pictures ``(..., n, 3, h, w)``, one episode after the other."""
        batch, way = support_labels.shape[:-1], int(support_labels.max()) + 1
        labels = support_labels.reshape(-1, support_labels.shape[-1]).long()
        images, queries = (
            at_least_float(pictures).reshape(len(labels), *pictures.shape[-4:]) for pictures in (support, query)
        )
        with full_precision(support), evaluating(self.embedding), torch.no_grad():
            base, features = self._base_features(images)
            known = self.embedding(images.flatten(0, 1)).unflatten(0, images.shape[:2])
            weights = self.classifier.fit(known, labels, way)  # (e, way, d)
            scores = torch.stack(
                [
                    self._adapted_scores(base, self.related(features, base.dataset.labels, one), one, *episode)
                    for one, *episode in zip(weights, images, labels, queries, strict=True)
                ]
            )
        if not bool(torch.isfinite(scores).all()):
            raise NotFinite("the network that was fine-tuned to the task gives infinite scores: try a smaller rate")
        return scores.reshape(*batch, query.shape[-4], way)

    def related(self, features: Tensor, base_labels: Tensor, weights: Tensor) -> list[Tensor]:
        """The related training images of each class of a task, as indices in a random order that is always the same.

        Args:
            features: Normalised representations of all training images, ``(n, d)``.
            base_labels: Their classes, ``(n,)``.
            weights: Class vectors of the task, ``(way, d)``.
        """
        base_labels, way = base_labels.to(features.device), len(weights)
        near = features @ normalize(weights, dim=-1).T  # (n, way)
        taken_for = near.argmax(dim=1)
        # Without the second term, equal shares would be ordered by the numbers of the classes.
        likeness = one_hot(taken_for, way) + 1e-4 * near
        sizes = torch.bincount(base_labels)
        shares = near.new_zeros(len(sizes), way).index_add_(0, base_labels, likeness) / sizes.clamp(min=1).unsqueeze(-1)
        order = torch.randperm(len(features), generator=torch.Generator().manual_seed(0)).to(features.device)
        chosen = []
        for label, classes in enumerate(self._related_classes(shares)):
            member = (taken_for == label) & torch.isin(base_labels, classes)
            chosen.append(order[member[order]])
        return chosen

    def _related_classes(self, shares: Tensor) -> Iterator[Tensor]:
        """For each class of the task its training classes, by the shares ``(training classes, way)``."""
        free = torch.ones_like(shares, dtype=torch.bool)
        if self.assignment == "best":
            free = one_hot(shares.argmax(dim=1), shares.shape[1]).bool()
        for label in range(shares.shape[1]):
            possible = torch.where(free[:, label], shares[:, label], -torch.inf)
            best = possible.argsort(descending=True, stable=True)[: self.related_classes]
            best = best[free[best, label]]
            free[best] = False
            yield best

    def _adapted_scores(
        self, base: TrainingClasses, related: list[Tensor], first: Tensor, images: Tensor, labels: Tensor, query: Tensor
    ) -> Tensor:
        """Fine-tune to one support set ``(s, 3, h, w)``, and score ``(q, 3, h, w)`` -> ``(q, way)``."""
        network, weights = copy.deepcopy(self.embedding).eval().requires_grad_(True), first.clone().requires_grad_()
        margin, rate = self.classifier.margin, self.rate
        to_align, to_separate = (
            torch.optim.Adam(values, lr=rate) for values in (list(network.parameters()), [weights])
        )
        to_fit = torch.optim.Adam([*network.parameters(), weights], lr=rate)
        norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]

        def embedded(pictures: Tensor) -> Tensor:
            """Representations in training mode, but for dropout."""
            for norm in norms:
                norm.train(self.settings["batch_norm"] == "batch")
            representations: Tensor = network(pictures)
            network.eval()
            return representations

        def loss(representations: Tensor, of: Tensor) -> Tensor:
            right = one_hot(of, len(weights)).bool()
            return cross_entropy(arcmax(cosines(representations, weights), right, self.scale, margin), of)

        pictures = self.source(base.dataset)
        with torch.enable_grad():
            for step in range(self.steps):
                chosen, of = self._draw(related, step)
                if len(chosen):
                    drawn = pictures.rows(chosen.cpu().numpy().astype(np.int64)).to(images)
                    near, support = embedded(torch.cat([drawn, images])).split([len(drawn), len(images)])
                    means = class_means(support[None], labels[None], len(weights))
                    distances = similarities(near[None], means, "euclidean")[0]
                    _step(to_align, cross_entropy(distances, of))
                    with torch.no_grad():
                        near = network(drawn)
                    _step(to_separate, loss(near, of))
                _step(to_fit, loss(embedded(images), labels))
        with torch.no_grad():
            return self.scale * cosines(network(query), weights)

    def _draw(self, related: list[Tensor], step: int) -> tuple[Tensor, Tensor]:
        """The indices ``(m,)`` of the related images of a step, equally many of each class, and their classes."""
        count = min((len(images) for images in related if len(images)), default=0)
        count = min(count, self.related_images)
        places = step * count + torch.arange(count, device=related[0].device)
        chosen = [(images[places % len(images)], label) for label, images in enumerate(related) if len(images)]
        if not chosen:
            return related[0], related[0]
        indices = torch.cat([images for images, _ in chosen])
        return indices, torch.cat([torch.full_like(images, label) for images, label in chosen])

    def _base_features(self, like: Tensor) -> tuple[TrainingClasses, Tensor]:
        """The training images, and their normalised representations ``(n, d)`` by the network as it is now."""
        if self.base is None:
            raise UserError(
                "AA fine-tunes its network to each task together with images of its training classes, and has none: "
                "call method.remember(TrainingClasses(load_dataset(NAME_OR_FOLDER, 'train')))"
            )
        now = weights_fingerprint(self.embedding)
        if self._known is None or self._known[:2] != (now, self.base):
            dataset = self.base.dataset
            if "base_images" in self.memory:
                expected = bytes(self.memory["base_images"].tolist()).decode()
                if dataset.fingerprint != expected:
                    raise UserError(
                        f"the training images in {dataset.name} are not those that this network was trained with: "
                        "AA needs the same ones (deepbdc evaluate RUN --base DATA)"
                    )
            bank = self.base.bank(copy.deepcopy(self.embedding).float())
            self._known = now, self.base, normalize(bank.rows(np.arange(len(dataset))), dim=-1)
        return self.base, self._known[2].to(like)


def _step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward(inputs=[value for group in optimiser.param_groups for value in group["params"]])
    optimiser.step()
