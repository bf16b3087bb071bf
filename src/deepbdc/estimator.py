"""`FewShotClassifier`: from a handful of a person's own pictures to answers, as a scikit-learn estimator."""

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from numbers import Integral
from pathlib import Path
from typing import Any, Self

import numpy as np
import timm  # noqa: F401  (the default network is made with it: it is waited for here, not in the first fit)
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from deepbdc import weight_files
from deepbdc._modes import evaluating
from deepbdc.classifiers import create_classifier
from deepbdc.classifiers.linear import LinearRule
from deepbdc.data.images import BadImage
from deepbdc.data.transforms import test_transform
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.feature_bank import weights_fingerprint
from deepbdc.own_images import networks, pictures
from deepbdc.own_images.confidence import Confidence, class_directions, learn_confidence
from deepbdc.own_images.explanation import (
    NONE_OF_THESE,
    Explanation,
    Neighbour,
    Prediction,
    evidence,
    heat_map,
)
from deepbdc.own_images.pictures import EmbeddedImage, ImageLike

__all__ = ["NONE_OF_THESE", "EmbeddedImage", "Explanation", "FewShotClassifier", "Neighbour", "Prediction"]

OnBad = Callable[[BadImage], None]
_KIND = "classifier"
_LABEL_TYPES = {"str": str, "int": int, "float": float, "bool": bool}
_SETTINGS = ("pool", "classifier", "C", "size", "batch_size", "device")


class FewShotClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Learns classes of pictures from a few examples of each, and says which of them a new picture shows.

    An image is embedded by a network that was trained before, its feature map described by BDC pooling, and a linear
    classifier is fitted to the examples. Wherever pictures are expected there may be paths, the bytes of files, PIL
    images, arrays ``(h, w)`` or ``(h, w, channels)``, tensors ``(channels, h, w)``, of any mode and size, or what
    `embed` made of them.

    Args:
        backbone: ``"efficientnet_lite0"``, trained on ImageNet, which comes with the installation;
            ``"efficientnet_lite0_fine"``, an earlier map of it, far better on handwritten characters and far worse on
            photos; ``"timm/NAME"``, whose weights are fetched; the folder of a run of ``deepbdc train``; or a
            network of your own that gives feature maps ``(n, channels, h, w)``.
        pool: ``"bdc"`` or ``"average"`` (default: BDC; a run keeps its own).
        classifier: ``"logistic"``, ``"prototype"`` (cosine) or ``"softmax"``.
        C: Of the logistic regression, the larger the closer it fits the examples.
        size: Side of the images given to the network, in pixels (default: as the network was made for).
        batch_size: Images that go through the network at once: few are faster on a CPU, many on a GPU.
        device: ``"cpu"``, ``"cuda"``, ...

    After `fit`, ``classes_`` are the classes, sorted; ``examples_`` and ``example_labels_`` what was learnt from.

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
    rule_: LinearRule
    confidence_: Confidence
    directions_: Tensor
    mean_: Tensor | None
    representations_: Tensor

    def __init__(
        self,
        backbone: Any = networks.DEFAULT_BACKBONE,
        pool: str | None = None,
        classifier: str = "logistic",
        C: float = 10.0,
        size: int | None = None,
        batch_size: int = 8,
        device: str = "cpu",
    ) -> None:
        self.backbone = backbone
        self.pool = pool
        self.classifier = classifier
        self.C = C
        self.size = size
        self.batch_size = batch_size
        self.device = device

    # ---- learning

    def fit(self, images: Any, labels: Any = None, *, unlabelled: Any = None) -> Self:
        """Learn classes from their examples.

        Args:
            images: A folder with a folder of pictures for each class; or pictures.
            labels: The class of each picture: strings, numbers. Not with a folder.
            unlabelled: Pictures of the same kind without labels, some dozens, or a folder of them: their mean
                representation is subtracted from all others. It helps most with a single example of each class.
        """
        images, labels = _labelled(images, labels)
        embedding = self._find_embedding()
        examples = self._embedded(images, embedding)
        mean = None
        if unlabelled is not None:
            others = self._embedded(_found(unlabelled), embedding)
            if not others:
                raise UserError("unlabelled holds no pictures: leave it out, or give some dozens")
            mean = self._raw_representations(embedding, _stacked(others)).mean(dim=0)
        self._learn(embedding, examples, labels, mean)
        return self

    def partial_fit(self, images: Any, labels: Any = None) -> Self:
        """Learn from more examples, also of new classes, besides those known already."""
        if not hasattr(self, "examples_"):
            return self.fit(images, labels)
        images, labels = _labelled(images, labels)
        new = self._embedded(images, self.embedding_)
        kinds = [array.dtype.kind.replace("u", "i") for array in (self.example_labels_, labels)]
        if kinds[0] != kinds[1]:
            raise UserError(
                f"labels were {self.example_labels_.dtype} before and are {labels.dtype} now: give all of one type"
            )
        together = np.concatenate([self.example_labels_, labels])
        self._learn(self.embedding_, [*self.examples_, *new], together, self.mean_)
        return self

    def _find_embedding(self) -> Embedding:
        _check_settings(self.batch_size)
        return networks.find_embedding(self.backbone, self.pool, self.size, self.device)

    def _learn(
        self,
        embedding: Embedding,
        examples: list[EmbeddedImage],
        labels: NDArray[Any],
        mean: Tensor | None,
        say: bool = True,
    ) -> None:
        """Everything that depends on the examples. Attributes are set at the end, so that an error changes nothing."""
        classifier = self._classifier()
        classes, numbers = np.unique(labels, return_inverse=True)
        representations = self._raw_representations(embedding, _stacked(examples))
        representations = representations if mean is None else representations - mean
        chosen = _distinct(examples, labels, say)
        support, targets, way = representations[chosen], torch.from_numpy(numbers[chosen]), len(classes)
        rule = classifier.rule(support.unsqueeze(0), targets.to(support.device).unsqueeze(0), way)
        confidence = learn_confidence(classifier, support.cpu(), targets, way)
        directions = class_directions(support, targets.to(support.device), way)
        self.rule_, self.confidence_, self.directions_ = rule, confidence, directions
        self.embedding_, self.mean_ = embedding, mean
        self.examples_, self.example_labels_, self.classes_ = examples, labels, classes
        self.representations_ = representations
        self._settings = {name: _plain(getattr(self, name)) for name in _SETTINGS}

    def _classifier(self) -> Any:
        if self.classifier == "logistic":
            return create_classifier("logistic", C=self.C)
        if self.classifier == "prototype":
            return create_classifier("prototype", similarity="cosine")
        if self.classifier == "svm":
            raise UserError("an SVM votes and gives no probabilities: take logistic, prototype or softmax")
        if self.classifier == "softmax":
            return create_classifier("softmax", normalize=True)
        return create_classifier(self.classifier)

    # ---- answering

    def predict(self, images: Any, reject: bool = False) -> NDArray[Any]:
        """The class of each picture; with ``reject``, "none of these" for pictures that are unlike all examples."""
        answers = list(self.classify(images))
        labels = self.classes_[[int(answer.probabilities.argmax()) for answer in answers]]
        if not reject:
            return labels
        labels = labels.astype(object)
        labels[[answer.rejected for answer in answers]] = NONE_OF_THESE
        return labels

    def predict_proba(self, images: Any) -> NDArray[np.float64]:
        """Probabilities ``(n, classes)``, in the order of ``classes_``. They say nothing of "none of these"."""
        found = [answer.probabilities for answer in self.classify(images)]
        return np.stack(found) if found else np.empty((0, len(self.classes_)))

    def classify(self, images: Any, *, on_bad: OnBad | None = None) -> Iterator[Prediction]:
        """The full answer for each picture, one after the other; thousands of files are read in batches.

        Args:
            images: Pictures.
            on_bad: Called with the error for each picture that cannot be read, which then has no answer. Without it
                the first stops everything.
        """
        check_is_fitted(self, "examples_")
        for batch in self._feature_batches(pictures.as_list(images), self.embedding_, on_bad, thumbnails=False):
            if batch:  # else all of it was unreadable
                yield from self._answers(batch)

    def embed(self, images: Any) -> list[EmbeddedImage]:
        """Send pictures through the network once; the results can stand for them anywhere."""
        embedding = self.embedding_ if hasattr(self, "embedding_") else self._find_embedding()
        return self._embedded(pictures.as_list(images), embedding)

    def explain(self, image: ImageLike, label: Any = None, neighbours: int = 5) -> Explanation:
        """Why a picture gets its label: where in it the evidence lies, and which examples are most like it.

        Args:
            image: The picture.
            label: The class to find evidence for (default: the predicted one).
            neighbours: How many of the nearest examples to name.
        """
        from PIL import Image

        check_is_fitted(self, "examples_")
        (embedded,) = self._embedded(pictures.as_list(image), self.embedding_)
        (prediction,) = self._answers([embedded])
        label = prediction.label if label is None else label
        matches = np.flatnonzero(self.classes_ == label)
        if len(matches) == 0:
            raise UserError(f"{label!r} is none of the classes: {', '.join(map(str, self.classes_[:20]))}")
        values = evidence(embedded.features.to(self._device), self._margin(int(matches[0])))
        picture = Image.open(io.BytesIO(embedded.thumbnail)).convert("RGB")
        heat = heat_map(values.cpu(), picture, self.embedding_.preprocessing)
        nearest = self._nearest(embedded, neighbours)
        return Explanation(prediction, label, heat, picture, nearest, tuple(self.classes_.tolist()))

    def _margin(self, chosen: int) -> Callable[[Tensor], Tensor]:
        """From maps to how far a class is ahead of the others; of a single class, to the similarity with it."""

        def margin(maps: Tensor) -> Tensor:
            representations = self._representations(maps)
            if len(self.classes_) == 1:
                return self._cosines(representations, self.directions_)[:, 0]
            scores = self.rule_(representations.unsqueeze(0))[0]
            others = torch.arange(scores.shape[1], device=scores.device) != chosen
            return scores[:, chosen] - scores[:, others].logsumexp(dim=1)

        return margin

    def _nearest(self, embedded: EmbeddedImage, count: int) -> tuple[Neighbour, ...]:
        own = self._representations(embedded.features.unsqueeze(0).to(self._device))
        similarities = self._cosines(own, self.representations_)[0].cpu().numpy()
        labels = self.example_labels_.tolist()
        found = []
        for index in np.argsort(-similarities, kind="stable")[:count].tolist():
            example = self.examples_[index]
            found.append(Neighbour(index, example.name, labels[index], float(similarities[index]), example.thumbnail))
        return tuple(found)

    def _answers(self, batch: Sequence[EmbeddedImage]) -> list[Prediction]:
        representations = self._representations(_stacked(batch).to(self._device))
        scores = self.rule_(representations.unsqueeze(0))[0].double() * self.confidence_.scale
        probabilities = torch.softmax(scores, dim=1).cpu().numpy()
        similarities = self._cosines(representations, self.directions_).max(dim=1).values
        rejected = (similarities < self.confidence_.threshold).tolist()
        return [
            self._prediction(image.name, row, bool(none))
            for image, row, none in zip(batch, probabilities, rejected, strict=True)
        ]

    def _prediction(self, name: str, probabilities: NDArray[np.float64], rejected: bool) -> Prediction:
        classes = self.classes_.tolist()
        first, *rest = np.argsort(-probabilities, kind="stable")[:2].tolist()
        return Prediction(
            name=name,
            label=classes[first],
            probability=float(probabilities[first]),
            runner_up=classes[rest[0]] if rest else None,
            runner_up_probability=float(probabilities[rest[0]]) if rest else 0.0,
            probabilities=probabilities,
            rejected=rejected,
        )

    # ---- from pictures to representations

    @property
    def _device(self) -> torch.device:
        return self.rule_.weights.device

    def _representations(self, maps: Tensor) -> Tensor:
        representations = self._raw_representations(self.embedding_, maps)
        return representations if self.mean_ is None else representations - self.mean_

    @torch.no_grad()
    def _raw_representations(self, embedding: Embedding, maps: Tensor) -> Tensor:
        device = next(embedding.parameters(), torch.zeros(())).device
        with evaluating(embedding):
            return torch.cat(
                [embedding.represent(part.to(device)).flatten(1) for part in maps.split(int(self.batch_size))]
            )

    @staticmethod
    def _cosines(one: Tensor, other: Tensor) -> Tensor:
        normalise = torch.nn.functional.normalize
        return normalise(one, dim=1) @ normalise(other, dim=1).T

    def _embedded(self, images: Sequence[ImageLike], embedding: Embedding) -> list[EmbeddedImage]:
        found = self._feature_batches(images, embedding, None, thumbnails=True)
        return [image for batch in found for image in batch]

    def _feature_batches(
        self, images: Sequence[ImageLike], embedding: Embedding, on_bad: OnBad | None, thumbnails: bool
    ) -> Iterator[list[EmbeddedImage]]:
        """Send pictures through the network, a batch at a time; the next batch is read meanwhile."""
        network = fingerprint(embedding)
        transform = test_transform(embedding.preprocessing)
        size = embedding.preprocessing.resize

        def read(image: ImageLike, position: int) -> EmbeddedImage | tuple[Tensor, bytes]:
            if isinstance(image, EmbeddedImage):
                if image.network != network:
                    raise UserError(f"{image.name} was embedded by another network or setting: embed it again")
                return image
            picture = pictures.decode(image, position, size)
            try:
                return transform(picture), pictures.thumbnail(picture) if thumbnails else b""
            except Exception as error:  # of a picture that is odd in a way nobody thought of
                name = pictures.name_of(image, position)
                raise BadImage(f"{name}: {picture.width}×{picture.height} pixels cannot be used ({error})") from error

        with ThreadPoolExecutor(max_workers=4) as pool:
            waiting: list[list[tuple[str, Future[Any]]]] = []
            starts = pictures.batches(images, int(self.batch_size))
            while True:
                started = next(starts, None)
                if started is not None:
                    first, batch = started
                    waiting.append(
                        [
                            (pictures.name_of(image, first + place), pool.submit(read, image, first + place))
                            for place, image in enumerate(batch)
                        ]
                    )
                if not waiting:
                    return
                if len(waiting) == 2 or started is None:
                    names, contents = _collected(waiting.pop(0), on_bad)
                    yield _through(embedding, names, contents, network)

    # ---- files

    def save(self, path: str | Path) -> None:
        """Write everything, the network too, into one safetensors file with a JSON header."""
        from deepbdc._files import write_bytes

        write_bytes(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """The content of the file that `save` writes."""
        check_is_fitted(self, "examples_")
        thumbnails = [np.frombuffer(example.thumbnail, dtype=np.uint8) for example in self.examples_]
        tensors = {f"embedding.{name}": value for name, value in self.embedding_.state_dict().items()}
        tensors["features"] = _stacked(self.examples_)
        tensors["thumbnails"] = torch.from_numpy(np.concatenate(thumbnails))
        if self.mean_ is not None:
            tensors["mean"] = self.mean_
        kind = type(self.classes_.tolist()[0]).__name__
        if kind not in _LABEL_TYPES:
            raise UserError(f"labels of type {kind} cannot be saved: use strings or numbers")
        preprocessing = asdict(self.embedding_.preprocessing)
        header = {
            "kind": _KIND,
            "settings": self._settings,
            "embedding": {**self.embedding_.description, "preprocessing": preprocessing},
            "labels": self.example_labels_.tolist(),
            "label_type": kind,
            "names": [example.name for example in self.examples_],
            "thumbnail_sizes": [len(content) for content in thumbnails],
        }
        return weight_files.as_bytes(tensors, header)

    @classmethod
    def load(cls, file: str | Path | bytes, backbone: Any = None, device: str = "cpu") -> Self:
        """A fitted classifier from the file that `save` wrote, or from its bytes.

        Args:
            file: A path, or the content.
            backbone: The network, if it was one of your own: it gets the weights of the file.
            device: Where to compute.
        """
        if isinstance(file, bytes):
            path = Path("the classifier")
            tensors, header = weight_files.from_bytes(file, path)
        else:
            path = Path(file)
            tensors, header = weight_files.load(path)
        if header.get("kind") != _KIND:
            raise UserError(f"{path} is no fitted classifier, but a file of {header.get('kind')}")
        embedding = networks.embedding_from(header["embedding"], backbone, device)
        others = ("features", "thumbnails", "mean")
        weight_files.load_into(embedding, tensors, "embedding.", path, ignore=others)
        settings = {**header["settings"], "device": device}
        named = header["embedding"].get("kind") == "named"
        if not named:
            settings |= {"pool": None, "size": None}  # an embedding has its own
        loaded = cls(backbone=header["embedding"]["name"] if named else embedding, **settings)
        ends = np.cumsum(header["thumbnail_sizes"])
        content, network = tensors["thumbnails"].numpy().tobytes(), fingerprint(embedding)
        examples = [
            EmbeddedImage(name, features, content[end - size : end], network)
            for name, features, size, end in zip(
                header["names"], tensors["features"], header["thumbnail_sizes"], ends, strict=True
            )
        ]
        labels = np.array([_LABEL_TYPES[header["label_type"]](label) for label in header["labels"]])
        mean = tensors.get("mean")
        # What there is to say about the examples was said at the fit.
        loaded._learn(embedding, examples, labels, None if mean is None else mean.to(device), say=False)
        return loaded

    def to_onnx(self, path: str | Path) -> None:
        """Write the fitted classifier as an ONNX model, which needs neither torch nor this package to run.

        Its input ``images`` are float32 ``(n, 3, size, size)``, RGB from 0 to 1, resized and cropped as the metadata of
        the model says; its outputs are ``probabilities`` ``(n, classes)`` and ``rejected`` ``(n,)``. The classes are in
        the metadata, too.
        """
        from deepbdc.own_images.onnx import write_onnx

        check_is_fitted(self, "examples_")
        write_onnx(
            path,
            embedding=self.embedding_,
            mean=self.mean_,
            rule=self.rule_,
            confidence=self.confidence_,
            directions=self.directions_,
            classes=self.classes_.tolist(),
        )


def fingerprint(embedding: Embedding) -> str:
    """Says whether two embeddings give the same maps; found anew only when a weight has changed."""
    reduction = getattr(embedding.pool, "reduction", nn.Identity())
    makers = nn.ModuleDict({"backbone": embedding.backbone, "reduction": reduction})
    state = [(value.data_ptr(), value._version) for value in makers.state_dict().values()]
    known: Any = getattr(embedding, "_fingerprint", None)
    if known is None or known[0] != state:
        known = state, f"{weights_fingerprint(makers)} {embedding.preprocessing}"
        embedding._fingerprint = known
    return str(known[1])


def _labelled(images: Any, labels: Any) -> tuple[Sequence[ImageLike], NDArray[Any]]:
    """Pictures, and their labels as an array of one type."""
    if labels is None:
        if not isinstance(images, (str, Path)):
            raise UserError("labels are missing: give the class of each picture, or a folder with a folder per class")
        images, labels = pictures.folder_examples(images)
    images = pictures.as_list(images)
    labels = [labels] if isinstance(labels, str) and len(images) == 1 else labels
    if isinstance(labels, str):
        raise UserError(f"labels must be one for each picture, got the single text {labels!r}")
    labels = list(labels)
    if len(images) != len(labels):
        raise UserError(f"every picture needs one label: there are {len(images)} pictures and {len(labels)} labels")
    if not labels:
        raise UserError("there is nothing to learn from: give at least one picture")
    array = np.array(labels)
    kinds = {_kind(label) for label in labels}
    if array.ndim != 1 or array.dtype.kind not in "UiufbO" or len(kinds) > 1 or any(label is None for label in labels):
        raise UserError(f"labels must be all strings or all numbers, got {', '.join(sorted(kinds))}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise UserError("labels must not be NaN or infinite")
    if NONE_OF_THESE in labels:
        raise UserError(f"no class may be called {NONE_OF_THESE!r}: it is the answer for pictures of no class")
    return images, array


def _kind(label: Any) -> str:
    """What is to be the same for all labels."""
    if isinstance(label, (int, float, np.number)):
        return "number"
    return "text" if isinstance(label, str) else type(label).__name__


def _found(images: Any) -> Sequence[ImageLike]:
    """Pictures, or all those in a folder."""
    if isinstance(images, (str, Path)) and Path(images).is_dir():
        from deepbdc.data.loading import is_image

        return sorted(file for file in Path(images).rglob("*") if is_image(file))
    return pictures.as_list(images)


def _distinct(examples: Sequence[EmbeddedImage], labels: NDArray[Any], say: bool) -> list[int]:
    """The first of equal pictures of one class; with ``say``, a warning tells what is equal."""
    first_in_class: dict[tuple[bytes, Any], int] = {}
    first: dict[bytes, int] = {}
    notes = []
    for index, (example, label) in enumerate(zip(examples, labels.tolist(), strict=True)):
        twin = first_in_class.setdefault((example.thumbnail, label), index)
        other = first.setdefault(example.thumbnail, index)
        if twin != index:
            notes.append(f"{example.name} is the same picture as {examples[twin].name}: it counts once")
        elif other != index:
            notes.append(
                f"{example.name} is the same picture as {examples[other].name}, but one is labelled {label} "
                f"and the other {labels[other]}"
            )
    for note in notes if say else []:
        warnings.warn(note, stacklevel=4)
    return sorted(first_in_class.values())


def _collected(
    waiting: list[tuple[str, Future[Any]]], on_bad: OnBad | None
) -> tuple[list[str], list[EmbeddedImage | tuple[Tensor, bytes]]]:
    """What was read, without what could not be."""
    names, contents = [], []
    for name, future in waiting:
        try:
            content = future.result()
        except (BadImage, OSError) as error:
            if on_bad is None:
                raise
            on_bad(error if isinstance(error, BadImage) else BadImage(f"{name}: cannot be read ({error})"))
            continue
        names.append(name)
        contents.append(content)
    return names, contents


@torch.no_grad()
def _through(
    embedding: Embedding, names: list[str], contents: list[EmbeddedImage | tuple[Tensor, bytes]], network: str
) -> list[EmbeddedImage]:
    """Send what is not embedded yet through the network."""
    new = [place for place, content in enumerate(contents) if not isinstance(content, EmbeddedImage)]
    result: list[Any] = list(contents)
    if new:
        device = next(embedding.parameters(), torch.zeros(())).device
        with evaluating(embedding):
            maps = embedding.reduced_map(torch.stack([contents[place][0] for place in new]).to(device)).cpu()  # type: ignore[index]
        for place, features in zip(new, maps, strict=True):
            # A copy: a row would keep the whole batch in memory.
            result[place] = EmbeddedImage(names[place], features.clone(), contents[place][1], network)  # type: ignore[index]
    return result


def _plain(value: Any) -> Any:
    """A setting as JSON can hold it."""
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, torch.device) else value


def _stacked(images: Sequence[EmbeddedImage]) -> Tensor:
    return torch.stack([image.features for image in images])


def _check_settings(batch_size: Any) -> None:
    if not isinstance(batch_size, Integral) or batch_size < 1:
        raise UserError(f"batch_size must be a positive whole number, got {batch_size!r}")
