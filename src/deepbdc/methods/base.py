"""What a few-shot method is: an embedding, a classifier of representations, and how they are trained."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from deepbdc._modes import evaluating, full_precision
from deepbdc._registry import Registry
from deepbdc.classifiers import Classifier, LinearRule
from deepbdc.data.dataset import Dataset
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.feature_bank import FeatureBank, Source, build_bank, device_of
from deepbdc.methods._heads import linear_head
from deepbdc.preprocessing import AtTestTime
from deepbdc.stages import Classification, Distillation, EpisodeTraining, Loss, Objective, TrainingEpisode
from deepbdc.stages.objectives import classification_loss
from deepbdc.weight_files import Memory

Head = Callable[[Tensor], Tensor]
"""From representations ``(n, ...)`` to scores of all training classes ``(n, classes)``."""


class Method(nn.Module):
    """Embeds images once, then classifies queries by a few labelled examples.

    A method overrides only what its paper changed. The defaults are those of ProtoNet (episodes) and Good-Embed
    (ordinary training): training, evaluation and the other rooms call these hooks, and never ask for a method's name.

    Args:
        embedding: From images to representations.
        classifier: From representations and labels to scores.
        settings: Options of the method that are neither in its embedding nor in its classifier.
    """

    objectives: ClassVar[Mapping[str, type[Objective]]] = {
        "pretrain": Classification,
        "distill": Distillation,
        "meta": EpisodeTraining,
    }
    """The stages that can train the method, in their order, and what each minimises."""
    needs_base_images: ClassVar[bool] = False
    """Whether `classify` looks at the training images again, which no file of weights can hold. See `base`."""
    base: "TrainingClasses | None" = None
    """The training classes, for a method that needs their images: set by its `remember`, and for a loaded run by
    `deepbdc.runs.load_run`, which looks for the images only when they are used."""

    def __init__(self, embedding: Embedding, classifier: Classifier, **settings: Any) -> None:
        super().__init__()
        self.embedding = embedding
        self.classifier = classifier
        self.memory = Memory()
        self.settings = settings

    # ---- classification

    @property
    def transductive(self) -> bool:
        """Whether the score of a query depends on the other queries."""
        return bool(getattr(self.classifier, "transductive", False))

    @property
    def assumes_balanced_queries(self) -> bool:
        """Whether a transductive method assumes that all classes have equally many queries."""
        return bool(getattr(self.classifier, "assumes_balanced_queries", False))

    def embed(self, images: Tensor) -> Tensor:
        """What `classify` takes: a representation of each image, ``(n, 3, h, w) -> (n, ...)``."""
        representations: Tensor = self.embedding(images)
        return representations

    def classifier_for(self, shot: int) -> Classifier:
        """The classifier for tasks with ``shot`` support images per class: by default the same for all."""
        return self.classifier

    def classify(self, support: Tensor, support_labels: Tensor, query: Tensor) -> Tensor:
        """Scores ``(..., query, way)`` from representations of support and query images and the labels of the former.

        The computation runs in float32 (or float64, if the representations are), also under autocast.
        """
        classifier = self.classifier_for(shots_of(support_labels))
        if classifier is not self.classifier and isinstance(classifier, nn.Module):
            classifier.train(self.training)
        with full_precision(support):
            scores: Tensor = classifier(at_least_float(support), support_labels, at_least_float(query))
            return scores

    def rule(self, support: Tensor, support_labels: Tensor, way: int) -> LinearRule:
        """What ``(e, s, features), (e, s)`` teach, fitted once for any queries; see `Classifier.rule`.

        A `UserError` says why a method has no such rule.
        """
        if self.transductive:
            raise UserError(
                f"{type(self).__name__} is transductive: its answer for a picture depends on the other pictures that "
                "are classified with it, so nothing can be learnt before they are there"
            )
        if type(self).classify is not Method.classify or type(self).embed is not Method.embed:
            raise UserError(f"{type(self).__name__} scores a task in its own way, which is not a linear rule")
        classifier = self.classifier_for(shots_of(support_labels))
        if not isinstance(classifier, Classifier):
            raise UserError(f"{type(classifier).__name__} has no linear rule")
        return classifier.rule(support, support_labels, way)

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """Bytes that `classify` needs for one episode, besides its inputs and scores; see `Classifier`."""
        return self.classifier.working_memory(support, query)

    def shape_of_one(self) -> tuple[int, ...]:
        """The shape of what `embed` makes of one image."""
        size = self.embedding.preprocessing.input_size
        with evaluating(self), torch.no_grad():
            return tuple(self.embed(torch.zeros(1, 3, size, size, device=device_of(self))).shape[1:])

    def check_test_time(self, test_time: AtTestTime) -> None:
        """Raise a `UserError` if the method cannot be evaluated with these views, this power or this mean."""
        changed = test_time.power != 1 or test_time.centre
        if test_time.crops == 1 and not changed:
            return
        name = type(self.classifier if type(self) is Method else self).__name__
        shape = self.shape_of_one()
        if len(shape) > 1:
            what = "pictures" if type(self).source is not Method.source else "a feature map"
            raise UserError(
                f"{name} takes {what} {shape} of an image and not one vector, which could be averaged over crops, "
                "raised to a power, or centred: leave out crops, power and centre"
            )
        if changed and len(self.memory):
            raise UserError(
                f"{name} compares representations with what it remembers of those of the training images, which are "
                "neither raised to a power nor centred: leave out power and centre"
            )

    def source(self, dataset: Dataset, **options: Any) -> Source:
        """Where the evaluation takes the representations of a data set from: by default every image is embedded once.

        Args:
            dataset: The images.
            options: As for `build_bank`.
        """
        if type(self).embed is not Method.embed:
            raise NotImplementedError(f"{type(self).__name__} overrides embed, so it must override source as well")
        return build_bank(self.embedding, dataset, **options)

    # ---- training

    def head(self, classes: int) -> nn.Module:
        """What turns representations into scores of all training classes, in stages without episodes."""
        return linear_head(self.embedding.out_features, classes)

    def features(self, images: Tensor) -> Tensor:
        """What a head takes: by default the representation of each image, ``(n, 3, s, s) -> (n, ...)``."""
        representations: Tensor = self.embedding(images)
        return representations

    def class_scores(self, head: Head, features: Tensor) -> Tensor:
        """Scores of all training classes from `features`, by default the head's: ``(n, ...) -> (n, classes)``."""
        return head(features)

    def batch_loss(self, head: Head, images: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Loss:
        """The loss of a batch of images ``(n, 3, s, s)`` with labels ``(n,)`` over all training classes."""
        return self.class_loss(self.class_scores(head, self.features(images)), labels, label_smoothing)

    def class_loss(self, scores: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Loss:
        """The loss of scores ``(n, classes)`` of all training classes: by default their cross-entropy.

        A method with a margin changes it here, so that the losses that a recipe adds by name have the margin, too.
        """
        return classification_loss(scores, labels, label_smoothing)

    def episode_loss(self, episode: TrainingEpisode, label_smoothing: float = 0.0) -> Loss:
        """The loss of one episode: by default the cross-entropy of `classify`.

        Support and query images go through the network together, so that batch norm sees both.
        """
        support, query = episode.split(self.embed(episode.images))
        scores = self.classify(support, episode.support_labels, query)
        return classification_loss(scores, episode.query_labels, label_smoothing)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """All parameters by the name of their group, for which a recipe can give a rate, weight decay, or freeze it.

        Layers name groups of their own in ``named_parameter_groups``, by the names of parameters or of submodules; all
        other parameters are the group ``network``.
        """
        groups: dict[str, list[nn.Parameter]] = {"network": []}
        grouped: dict[int, str] = {}
        for module in self.modules():
            for group, names in getattr(module, "named_parameter_groups", {}).items():
                for name, value in module.named_parameters():
                    if name in names or name.startswith(tuple(f"{part}." for part in names)):
                        grouped[id(value)] = group
        for value in self.parameters():
            groups.setdefault(grouped.get(id(value), "network"), []).append(value)
        return groups

    def remember(self, base: "TrainingClasses") -> None:
        """Keep in `memory` what the method needs of the training classes at test time: by default nothing.

        Training calls it before each validation and at the end, so that a trained model needs no training images. A
        method with `needs_base_images` keeps ``base`` itself.
        """


class TrainingClasses:
    """The training images, for methods that remember something of them. Nothing is computed unless it is asked for.

    Args:
        dataset: The images, or a function that loads them when they are first used.
        options: How they are embedded, as for `build_bank`.
    """

    def __init__(self, dataset: Dataset | Callable[[], Dataset], **options: Any) -> None:
        self._dataset = dataset
        self._options = options

    @property
    def dataset(self) -> Dataset:
        """The images."""
        if not isinstance(self._dataset, Dataset):
            self._dataset = self._dataset()
        return self._dataset

    def source(self, method: Method) -> Source:
        """What the method takes of the training images: by default their representations."""
        return method.source(self.dataset, **self._options)

    def bank(self, embedding: Embedding) -> FeatureBank:
        """The representations of the training images, also for a method whose `source` gives pictures."""
        return build_bank(embedding, self.dataset, **self._options)


class TransferMethod(Method):
    """A method that is trained without episodes, and then fits a classifier to each task."""

    objectives: ClassVar[Mapping[str, type[Objective]]] = {"pretrain": Classification, "distill": Distillation}


class EpisodicMethod(Method):
    """A method that is trained with episodes, usually after ordinary training on all classes."""

    objectives: ClassVar[Mapping[str, type[Objective]]] = {"pretrain": Classification, "meta": EpisodeTraining}


methods: Registry[Method] = Registry("method")


def shots_of(support_labels: Tensor) -> int:
    """The number of support images per class, rounded down to at least 1 where classes have unequal numbers.

    >>> shots_of(torch.tensor([0, 0, 1, 1])), shots_of(torch.tensor([0, 1, 1]))
    (2, 1)
    """
    if not isinstance(support_labels, Tensor) or support_labels.numel() == 0:
        return 1  # the classifier says what is wrong
    way = int(support_labels.max()) + 1
    return max(1, support_labels.shape[-1] // max(1, way))


def at_least_float(values: Tensor) -> Tensor:
    """Half-precision numbers as float32; all others stay as they are."""
    half = isinstance(values, Tensor) and values.dtype in (torch.float16, torch.bfloat16)
    return values.float() if half else values


def by_shot(values: float | Mapping[int, float], shot: int) -> float:
    """The value for a number of shots: that of the largest number given which is not larger, else of the smallest.

    >>> [by_shot({1: 0.1, 5: 2.0}, shot) for shot in (1, 3, 5, 10)]
    [0.1, 0.1, 2.0, 2.0]
    """
    if not isinstance(values, Mapping):
        return float(values)
    if not values:
        raise UserError("a mapping from shots to values must not be empty")
    not_larger = [given for given in values if given <= shot]
    return float(values[max(not_larger) if not_larger else min(values)])
