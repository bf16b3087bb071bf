"""The file of a fitted `FewShotClassifier`: one safetensors file with the network, the examples and a JSON header."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepbdc import weight_files
from deepbdc.classifiers.linear import LinearRule
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.methods.base import Method
from deepbdc.own_images import networks
from deepbdc.own_images.confidence import Confidence
from deepbdc.own_images.familiarity import Familiarity
from deepbdc.own_images.fitting import DEFAULT_CLASSIFIER, Learnt
from deepbdc.own_images.pictures import EmbeddedImage
from deepbdc.own_images.reading import map_fingerprint, stack_maps

_KIND = "classifier"
_EMBEDDING, _METHOD = "embedding.", "method."
_LEARNT = ("rule.weights", "rule.intercepts", "directions")
_DATA = ("features", "parts", "thumbnails", "mean", *_LEARNT)
_LABEL_TYPES = {"str": str, "int": int, "float": float, "bool": bool}


@dataclass(frozen=True, eq=False)
class SavedClassifier:
    """Everything that a file holds."""

    settings: Mapping[str, Any]
    """Arguments of `FewShotClassifier`, without ``backbone``."""
    embedding: Embedding
    method: Method | None
    """The trained method that the embedding belongs to, if there is one."""
    examples: Sequence[EmbeddedImage]
    labels: NDArray[Any]
    mean: Tensor | None
    """The mean representation of unlabelled pictures ``(features,)``, if some were given."""
    learnt: Learnt | None
    """None in files of earlier versions: the classifier is then fitted to the examples again."""

    @property
    def backbone(self) -> Any:
        """The ``backbone`` for `FewShotClassifier`: a name, a trained method or an embedding."""
        if _by_name(self.embedding.description):
            return self.embedding.description["name"]
        return self.embedding if self.method is None else self.method


def to_bytes(saved: SavedClassifier) -> bytes:
    """The content of the file."""
    embedding = saved.embedding
    thumbnails = [np.frombuffer(example.thumbnail, dtype=np.uint8) for example in saved.examples]
    tensors = _weights(saved)
    tensors["features"] = stack_maps(saved.examples)
    parts = [example.parts for example in saved.examples if example.parts is not None]
    if parts:
        tensors["parts"] = torch.cat(parts)
    tensors["thumbnails"] = torch.from_numpy(np.concatenate(thumbnails))
    if saved.mean is not None:
        tensors["mean"] = saved.mean
    if saved.learnt is not None:
        rule = saved.learnt.rule
        tensors |= dict(zip(_LEARNT, (rule.weights, rule.intercepts, saved.learnt.directions), strict=True))
    header = {
        "kind": _KIND,
        **_classifier_entries(saved),
        "embedding": {**embedding.description, "preprocessing": asdict(embedding.preprocessing)},
        "labels": saved.labels.tolist(),
        "label_type": _label_type(saved.labels),
        "names": [example.name for example in saved.examples],
        "thumbnail_sizes": [len(content) for content in thumbnails],
        "parts": [0 if example.parts is None else len(example.parts) for example in saved.examples],
        "learnt": None if saved.learnt is None else _learnt_entry(saved.learnt),
    }
    return weight_files.as_bytes(tensors, header)


def read(file: str | Path | bytes, backbone: Any, device: str) -> SavedClassifier:
    """Read a file, given by its path or its content.

    Args:
        file: The path or the content.
        backbone: The person's own network, if the classifier was fitted with one. It gets the weights of the file.
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
    embedding, method = networks.network_from(header["embedding"], backbone, device)
    if header.get("classifier") == "default":
        method = None  # if the person gave a method, only its network is used, as in the fit
    settings = _settings(header, method, device)
    _load_weights(embedding, method, tensors, path)
    mean = tensors.get("mean")
    return SavedClassifier(
        settings=settings,
        embedding=embedding,
        method=method,
        examples=_examples(tensors, header, map_fingerprint(embedding)),
        labels=np.array([_LABEL_TYPES[header["label_type"]](label) for label in header["labels"]]),
        mean=None if mean is None else mean.to(device),
        learnt=_learnt(tensors, header, device),
    )


def _learnt_entry(learnt: Learnt) -> dict[str, Any]:
    confidence = learnt.confidence
    return {
        "normalize": learnt.rule.normalize,
        "scale": confidence.scale,
        "familiarity": asdict(confidence.familiarity),
    }


def _learnt(tensors: Mapping[str, Tensor], header: Mapping[str, Any], device: str) -> Learnt | None:
    """What the classifier had learnt; None if the file does not say, or not for these classes."""
    entry, way = header.get("learnt"), len(set(header["labels"]))
    if entry is None or any(name not in tensors for name in _LEARNT):
        return None
    weights, intercepts, directions = (tensors[name].to(device) for name in _LEARNT)
    if weights.shape[:2] != (1, way) or intercepts.shape != (1, 1, way) or directions.shape != weights.shape[1:]:
        return None
    familiarity = Familiarity(**{**entry["familiarity"], "others": tuple(entry["familiarity"]["others"])})
    rule = LinearRule(weights, intercepts, entry["normalize"])
    return Learnt(rule, Confidence(entry["scale"], familiarity), directions)


def _weights(saved: SavedClassifier) -> dict[str, Tensor]:
    """The weights of the embedding as ``embedding.*``; if there is a method, its other weights as ``method.*``."""
    if saved.method is None:
        return {f"{_EMBEDDING}{name}": value for name, value in saved.embedding.state_dict().items()}
    return {
        name if name.startswith(_EMBEDDING) else f"{_METHOD}{name}": value
        for name, value in saved.method.state_dict().items()
    }


def _load_weights(embedding: Embedding, method: Method | None, tensors: Mapping[str, Tensor], path: Path) -> None:
    weights = {name.removeprefix(_METHOD): value for name, value in tensors.items() if name not in _DATA}
    if method is None:
        weight_files.load_into(embedding, weights, _EMBEDDING, path)
    else:
        weight_files.load_into(method, weights, "", path)


def _classifier_entries(saved: SavedClassifier) -> dict[str, Any]:
    """The settings, and who chose the classifier: the person ("given"), nobody ("default") or a run ("run").

    By default it is logistic regression. Its name is written into the settings, because earlier versions of this
    package need it to read the file.
    """
    settings = {name: _plain(value) for name, value in saved.settings.items()}
    if settings["classifier"] is not None:
        return {"settings": settings, "classifier": "given"}
    if saved.method is not None:
        return {"settings": settings, "classifier": "run"}
    return {"settings": {**settings, "classifier": DEFAULT_CLASSIFIER}, "classifier": "default"}


def _settings(header: Mapping[str, Any], method: Method | None, device: str) -> dict[str, Any]:
    settings = {**header["settings"], "device": device}
    if not _by_name(header["embedding"]):
        settings |= {"pool": None, "size": None}  # an embedding has its own
    if header.get("classifier", "given") != "given":
        settings["classifier"] = None
    if header.get("classifier") == "run" and method is None:
        raise UserError(
            "this classifier was fitted with the classifier of your own method: give the method to "
            "load(path, backbone=method), not only its network"
        )
    return settings


def _by_name(description: Mapping[str, Any]) -> bool:
    """Whether the name of the network says everything: it does not if its weights came from a person's own file."""
    return description["kind"] == "named" and "weights" not in description


def _examples(tensors: Mapping[str, Tensor], header: Mapping[str, Any], network: str) -> list[EmbeddedImage]:
    sizes, content = header["thumbnail_sizes"], tensors["thumbnails"].numpy().tobytes()
    thumbnails = [content[end - size : end] for size, end in zip(sizes, np.cumsum(sizes), strict=True)]
    # Files of earlier versions have no parts.
    counts = header.get("parts", [0] * len(sizes))
    parts = tensors["parts"].split(counts) if any(counts) else [None] * len(sizes)
    entries = zip(header["names"], tensors["features"], thumbnails, parts, strict=True)
    return [
        EmbeddedImage(name, features, thumbnail, network, own if own is not None and len(own) else None)
        for name, features, thumbnail, own in entries
    ]


def _label_type(labels: NDArray[Any]) -> str:
    kind = type(labels.tolist()[0]).__name__
    if kind not in _LABEL_TYPES:
        raise UserError(f"labels of type {kind} cannot be saved: use strings or numbers")
    return kind


def _plain(value: Any) -> Any:
    """A setting as a value that JSON can hold."""
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, torch.device) else value
