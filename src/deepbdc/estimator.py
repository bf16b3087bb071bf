"""`FewShotClassifier`: learns classes from a few of a person's own pictures, as a scikit-learn estimator."""

import warnings
from collections.abc import Iterator, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepbdc.classifiers.linear import LinearRule
from deepbdc.embedding import Embedding
from deepbdc.errors import Note, UserError
from deepbdc.methods.base import Method
from deepbdc.own_images import files, networks, pictures
from deepbdc.own_images.confidence import Confidence, class_directions, learn_confidence
from deepbdc.own_images.explanation import NONE_OF_THESE, Explanation, Neighbour, Prediction, explain_picture
from deepbdc.own_images.familiarity import likeness
from deepbdc.own_images.fitting import DEFAULT_CLASSIFIER, Learnt, fit_rule, fit_run_classifier, named_classifier
from deepbdc.own_images.labels import check_labels, check_same_type, without_duplicates
from deepbdc.own_images.parts import DEFAULT as DEFAULT_PARTS
from deepbdc.own_images.parts import Parts, checked_choice
from deepbdc.own_images.pictures import EmbeddedImage, ImageLike, either
from deepbdc.own_images.reading import OnBad, embed_all, embed_batches, represent, stack_maps
from deepbdc.own_images.rejection import reject_rate
from deepbdc.own_images.sklearn_api import SklearnClassifier

__all__ = ["NONE_OF_THESE", "EmbeddedImage", "Explanation", "FewShotClassifier", "Neighbour", "Prediction"]

_SETTINGS = ("pool", "classifier", "C", "size", "batch_size", "device", "parts")


class FewShotClassifier(SklearnClassifier):
    """Learns classes of pictures from a few examples of each, and says which class a new picture shows.

    A network that was trained before turns each picture into a vector: the network's own features, and the BDC of its
    last feature map. A linear classifier is fitted to the vectors of the examples. A picture may be given as a path,
    the bytes of a file, an open file, a PIL image, an array ``(h, w)`` or ``(h, w, channels)``, a tensor
    ``(channels, h, w)``, or as
    an `EmbeddedImage` that `embed` returned. Any size and colour mode will do.

    Args:
        backbone: The network. ``"efficientnet_lite2"`` (the default) and ``"efficientnet_lite0"``, which takes half the
            time and is less accurate on most photos, come with the installation; both were trained on ImageNet.
            ``"efficientnet_lite1"`` is between the two; ``"efficientnet_lite0_fine"``, an earlier map, is far better
            on handwritten characters and far worse on photos; ``"timm/NAME"`` downloads its weights, unless you give
            them. Also the folder or model file of a run of ``deepbdc train``, the name of a network in the zoo (see
            `load_pretrained`), a `Method`, an `Embedding`, or a network of your own that gives feature maps
            ``(n, channels, h, w)``.
        pool: What describes a picture: the network's ``"own"`` features, the ``"bdc"`` or the ``"average"`` of its
            last map, or ``"both"``, which is the network's own features and BDC side by side (the default). A run,
            `Method` or `Embedding` keeps its own pooling.
        classifier: ``"logistic"``, ``"prototype"`` (cosine similarity) or ``"softmax"``. By default, a run or `Method`
            uses its own classifier, for as many shots as there are examples per class; every other network uses
            ``"logistic"``.
        C: The inverse regularisation strength of ``"logistic"``: larger values fit the examples more closely. The own
            classifier of a run has its own C.
        size: Side of the images given to the network, in pixels (default: the size that the network was made for).
        batch_size: Pictures that go through the network at once: small batches are faster on a CPU, large ones on a
            GPU.
        device: ``"cpu"``, ``"cuda"``, ...
        weights: A file with the weights of the named network (.safetensors, or tensors that ``torch.save`` wrote), if
            they are not to be downloaded.
        parts: The network also looks at two parts of a picture from nearer, if the picture is not tiny: of the
            ``"examples"`` (the default), of ``"all"`` pictures, which is more accurate and takes three times as long,
            or of ``"none"`` (the default with the own classifier of a run or `Method`, as in its evaluation).

    After `fit`, ``classes_`` holds the classes, sorted; ``examples_`` and ``example_labels_`` hold the examples.

    >>> from PIL import Image
    >>> reds = [Image.new("RGB", (64, 64), (200 + shade, 30, 30)) for shade in (0, 20, 40)]
    >>> blues = [Image.new("RGB", (64, 64), (30, 30, 200 + shade)) for shade in (0, 20, 40)]
    >>> classifier = FewShotClassifier().fit(reds + blues, ["red"] * 3 + ["blue"] * 3)
    >>> classifier.predict([Image.new("RGB", (80, 40), (230, 20, 20))]).tolist()
    ['red']
    """

    classes_: NDArray[Any]
    examples_: list[EmbeddedImage]
    example_labels_: NDArray[Any]
    embedding_: Embedding
    method_: Method | None
    rule_: LinearRule
    confidence_: Confidence
    directions_: Tensor
    mean_: Tensor | None
    _representations: Tensor | None

    def __init__(
        self,
        backbone: Any = networks.DEFAULT_BACKBONE,
        pool: str | None = None,
        classifier: str | None = None,
        C: float = 10.0,
        size: int | None = None,
        batch_size: int = 8,
        device: str = "cpu",
        weights: str | Path | None = None,
        parts: str | None = None,
    ) -> None:
        self.backbone = backbone
        self.pool = pool
        self.classifier = classifier
        self.C = C
        self.size = size
        self.batch_size = batch_size
        self.device = device
        self.weights = weights
        self.parts = parts

    # ---- learning

    def fit(
        self, images: Any = None, labels: Any = None, *, unlabelled: Any = None, X: Any = None, y: Any = None
    ) -> Self:
        """Learn classes from their examples.

        Args:
            images: Pictures; or a folder that holds one folder of pictures per class.
            labels: The class of each picture, as strings or numbers. Leave it out with a folder.
            unlabelled: Some dozens of pictures of the same kind without labels, or a folder of them. Their mean
                representation is subtracted from all others. This helps most with a single example per class. If they
                are the pictures that will be classified, the answers are transductive: each depends on all of them.
            X: The same as ``images``, by its name in scikit-learn.
            y: The same as ``labels``.
        """
        images, labels = check_labels(either(images, X), labels if y is None else y)
        embedding = self._find_embedding()
        examples = self._embed(images, embedding, self.looks_at_parts)
        mean = None
        if unlabelled is not None:
            others = self._embed(pictures.find_pictures(unlabelled), embedding)
            if not others:
                raise UserError("unlabelled holds no pictures: leave it out, or give some dozens")
            mean = represent(embedding, stack_maps(others), int(self.batch_size)).mean(dim=0)
        self._learn(embedding, networks.find_method(self.backbone, self.device), examples, labels, mean)
        return self

    def partial_fit(self, images: Any = None, labels: Any = None, *, X: Any = None, y: Any = None) -> Self:
        """Learn from more examples in addition to the known ones. They may show new classes."""
        images, labels = either(images, X), labels if y is None else y
        if not hasattr(self, "examples_"):
            return self.fit(images, labels)
        images, labels = check_labels(images, labels)
        new = self._embed(images, self.embedding_, self.looks_at_parts)
        check_same_type(self.example_labels_, labels)
        together = np.concatenate([self.example_labels_, labels])
        self._learn(self.embedding_, self.method_, [*self.examples_, *new], together, self.mean_)
        return self

    def subtract(self, mean: Tensor) -> None:
        """Subtract the mean representation ``(features,)`` of unlabelled pictures from now on, as `fit` can."""
        self.check_fitted()
        self._learn(self.embedding_, self.method_, self.examples_, self.example_labels_, mean, warn=False)

    def _find_embedding(self) -> Embedding:
        size: Any = self.batch_size  # an integer of numpy will do
        if not isinstance(size, Integral) or size < 1:
            raise UserError(f"batch_size must be a positive whole number, got {size!r}")
        return networks.find_embedding(self.backbone, self.pool, self.size, self.device, self.weights)

    def _learn(
        self,
        embedding: Embedding,
        method: Method | None,
        examples: list[EmbeddedImage],
        labels: NDArray[Any],
        mean: Tensor | None,
        warn: bool = True,
    ) -> None:
        """Fit everything to the examples. Attributes are set at the end, so that an error leaves them as they were."""
        classes, numbers = np.unique(labels, return_inverse=True)
        representations = represent(embedding, stack_maps(examples), int(self.batch_size))
        parts = Parts.of(examples, embedding, int(self.batch_size), representations)
        if mean is not None:
            representations, parts = representations - mean, Parts(parts.vectors - mean, parts.owners)
        chosen, message = without_duplicates(examples, labels)
        if message and warn:
            warnings.warn(message, Note, stacklevel=3)
        support, way, parts = representations[chosen], len(classes), parts.chosen(chosen)
        targets = torch.from_numpy(numbers[chosen]).to(support.device)
        if self.classifier is None and method is not None:
            classifier, rule = fit_run_classifier(method, *parts.beside(support, targets), way)
        else:
            classifier = named_classifier(self.classifier or DEFAULT_CLASSIFIER, self.C)
            rule = fit_rule(classifier, *parts.beside(support, targets), way)
        confidence = learn_confidence(classifier, support, targets, way, parts)
        learnt = Learnt(rule, confidence, class_directions(support, targets, way))
        self._keep(files.SavedClassifier({}, embedding, method, examples, labels, mean, learnt), learnt)
        self._representations = representations

    def _keep(self, content: files.SavedClassifier, learnt: Learnt) -> None:
        """Set the attributes of a fitted classifier."""
        self.rule_, self.confidence_, self.directions_ = learnt.rule, learnt.confidence, learnt.directions
        self.embedding_, self.method_, self.mean_ = content.embedding, content.method, content.mean
        self.examples_, self.example_labels_ = list(content.examples), content.labels
        self.classes_ = np.unique(content.labels)
        self._representations = None
        self._settings = {name: getattr(self, name) for name in _SETTINGS}

    @property
    def representations_(self) -> Tensor:
        """The vectors ``(n, features)`` of the examples."""
        self.check_fitted()
        if self._representations is None:  # a loaded classifier needs them for some questions only
            self._representations = self.representations_of(stack_maps(self.examples_))
        return self._representations

    # ---- answering

    def predict(self, images: Any = None, reject: bool | float = False, *, X: Any = None) -> NDArray[Any]:
        """The class of each picture.

        Args:
            images: Pictures.
            reject: Label pictures that are unlike all examples "none of these": 0.05 (or True) means that about this
                share of the pictures of the known classes may be lost by that.
            X: Another name for ``images``, as scikit-learn has it.
        """
        rate = reject_rate(reject)
        answers = list(self.classify(either(images, X)))
        labels = self.classes_[[int(answer.probabilities.argmax()) for answer in answers]]
        if rate is None:
            return labels
        labels = labels.astype(object)
        labels[[answer.rejected_at(rate) for answer in answers]] = NONE_OF_THESE
        return labels

    def predict_proba(self, images: Any = None, *, X: Any = None) -> NDArray[np.float64]:
        """Probabilities ``(n, classes)`` in the order of ``classes_``. They sum to 1 without "none of these"."""
        found = [answer.probabilities for answer in self.classify(either(images, X))]
        return np.stack(found) if found else np.empty((0, len(self.classes_)))

    def decision_function(self, images: Any = None, *, X: Any = None) -> NDArray[np.float64]:
        """The logarithms of the probabilities ``(n, classes)``.

        As everywhere in scikit-learn, two classes give one column ``(n,)``: positive for the second of ``classes_``.
        """
        scores: NDArray[np.float64] = np.log(np.maximum(self.predict_proba(either(images, X)), 1e-300))
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def classify(self, images: Any, *, on_bad: OnBad | None = None) -> Iterator[Prediction]:
        """Yield the full answer for each picture. Files are read in batches, so that thousands fit into memory.

        Args:
            images: Pictures.
            on_bad: Called with the error of each picture that cannot be read. That picture gets no answer. Without
                ``on_bad`` the error is raised.
        """
        self.check_fitted()
        images, batch_size = pictures.as_list(images), int(self.batch_size)
        parts = self._parts() == "all"
        for batch in embed_batches(images, self.embedding_, batch_size, on_bad, thumbnails=False, parts=parts):
            if batch:  # it is empty if none of its pictures could be read
                yield from self._answers(batch)

    def embed(self, images: Any, *, on_bad: OnBad | None = None, parts: bool = False) -> list[EmbeddedImage]:
        """Send pictures through the network once. The results can be given wherever pictures are expected.

        Args:
            images: Pictures.
            on_bad: Called with the error of each picture that cannot be read. That picture is left out.
            parts: Whether the network looks at two parts of each picture that is not tiny, too, as `fit` does.
        """
        embedding = self.embedding_ if hasattr(self, "embedding_") else self._find_embedding()
        return embed_all(pictures.as_list(images), embedding, int(self.batch_size), on_bad, parts)

    @property
    def looks_at_parts(self) -> bool:
        """Whether the network looks at parts of the examples, too."""
        return self._parts() != "none"

    def _parts(self) -> str:
        if self.parts is not None:
            return checked_choice(self.parts)
        of_run = self.classifier is None and networks.find_method(self.backbone, self.device) is not None
        return "none" if of_run else DEFAULT_PARTS

    def represent(self, embedded: Sequence[EmbeddedImage]) -> Tensor:
        """The vectors ``(n, features)`` that the classifier compares, of pictures that `embed` returned."""
        if hasattr(self, "embedding_"):
            return self.representations_of(stack_maps(embedded))
        return represent(self._find_embedding(), stack_maps(embedded), int(self.batch_size))

    def explain(self, image: ImageLike, label: Any = None, neighbours: int = 5) -> Explanation:
        """Explain the label of a picture: where in the picture the evidence lies, and which examples it resembles.

        Args:
            image: The picture.
            label: The class to find evidence for (default: the predicted one).
            neighbours: How many of the most similar examples to return.
        """
        self.check_fitted()
        (embedded,) = self._embed(pictures.as_list(image), self.embedding_)
        (prediction,) = self._answers([embedded])
        return explain_picture(self, embedded, prediction, label, neighbours)

    def _answers(self, batch: Sequence[EmbeddedImage]) -> list[Prediction]:
        representations = self.representations_of(stack_maps(batch).to(self.device_))
        scores = self._scores(representations)
        for place, image in enumerate(batch):
            if image.parts is not None and self._parts() == "all":
                scores[place] = (scores[place] + self._scores(self.representations_of(image.parts)).sum(dim=0)) / (
                    1 + len(image.parts)
                )
        probabilities = torch.softmax(scores, dim=1)
        likenesses = likeness(representations, self.directions_, probabilities).cpu().numpy()
        familiar = self.confidence_.familiarity.of(likenesses).tolist()
        classes = self.classes_.tolist()
        return [
            Prediction.from_probabilities(image.name, classes, row, share)
            for image, row, share in zip(batch, probabilities.cpu().numpy(), familiar, strict=True)
        ]

    def _scores(self, representations: Tensor) -> Tensor:
        """Scores ``(n, classes)`` whose softmax are the probabilities."""
        return self.rule_(representations.unsqueeze(0))[0].double() * self.confidence_.scale

    # ---- from pictures to representations

    @property
    def device_(self) -> torch.device:
        """Where a fitted classifier computes."""
        return self.rule_.weights.device

    def _embed(self, images: Sequence[ImageLike], embedding: Embedding, parts: bool = False) -> list[EmbeddedImage]:
        return embed_all(images, embedding, int(self.batch_size), parts=parts)

    def representations_of(self, maps: Tensor) -> Tensor:
        """Vectors ``(n, features)`` of feature maps ``(n, d, h, w)``, relative to the mean of unlabelled pictures."""
        representations = represent(self.embedding_, maps, int(self.batch_size))
        return representations if self.mean_ is None else representations - self.mean_

    # ---- files

    def save(self, path: str | Path) -> None:
        """Write the fitted classifier, including the network, into one safetensors file with a JSON header."""
        from deepbdc._files import write_bytes

        write_bytes(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """The content of the file that `save` writes."""
        self.check_fitted()
        learnt = Learnt(self.rule_, self.confidence_, self.directions_)
        content = (self.embedding_, self.method_, self.examples_, self.example_labels_, self.mean_, learnt)
        return files.to_bytes(files.SavedClassifier(self._settings, *content))

    @classmethod
    def load(cls, file: str | Path | bytes, backbone: Any = None, device: str = "cpu") -> Self:
        """Load a fitted classifier from the file that `save` wrote, or from its content.

        Args:
            file: The path or the content.
            backbone: Your own network (or method), if the classifier was fitted with one. It gets the weights of the
                file.
            device: Where to compute.
        """
        saved = files.read(file, backbone, device)
        loaded = cls(backbone=saved.backbone, **saved.settings)
        if saved.learnt is not None:
            loaded._keep(saved, saved.learnt)
        else:  # warnings about the examples were given when the classifier was fitted
            loaded._learn(saved.embedding, saved.method, list(saved.examples), saved.labels, saved.mean, warn=False)
        return loaded

    def to_onnx(self, path: str | Path) -> None:
        """Write the fitted classifier as an ONNX model, which runs without torch and without this package.

        The input ``images`` is float32 ``(n, 3, size, size)``, RGB from 0 to 1, resized and cropped as the metadata of
        the model says. The outputs are ``probabilities`` ``(n, classes)`` and ``rejected`` ``(n,)``. The metadata also
        names the classes. The model looks at whole pictures only, also if this classifier has ``parts="all"``.
        """
        from deepbdc.own_images.onnx import write_onnx

        self.check_fitted()
        write_onnx(
            path,
            embedding=self.embedding_,
            mean=self.mean_,
            rule=self.rule_,
            confidence=self.confidence_,
            directions=self.directions_,
            classes=self.classes_.tolist(),
        )
