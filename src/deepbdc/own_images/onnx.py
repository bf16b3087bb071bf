"""Exports a fitted classifier as an ONNX model."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deepbdc._files import write_bytes
from deepbdc._modes import evaluating
from deepbdc._optional import require
from deepbdc.classifiers._products import NORM_EPSILON
from deepbdc.classifiers.linear import LinearRule
from deepbdc.embedding import Embedding
from deepbdc.own_images.confidence import Confidence
from deepbdc.own_images.familiarity import PROBABILITY_WEIGHT
from deepbdc.own_images.rejection import USUAL_RATE


class OnnxModel(nn.Module):
    """The network and the classifier in one: images ``(n, 3, size, size)``, RGB from 0 to 1, to answers."""

    def __init__(
        self,
        embedding: Embedding,
        mean: Tensor | None,
        rule: LinearRule,
        confidence: Confidence,
        directions: Tensor,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.normalize = rule.normalize
        preprocessing = embedding.preprocessing
        self.register_buffer("colour_mean", torch.tensor(preprocessing.mean)[:, None, None])
        self.register_buffer("colour_std", torch.tensor(preprocessing.std)[:, None, None])
        self.register_buffer("mean", torch.zeros(()) if mean is None else mean)
        self.register_buffer("weights", rule.weights[0].T.float() * confidence.scale)
        self.register_buffer("intercepts", rule.intercepts[0, 0].float() * confidence.scale)
        self.register_buffer("directions", directions.T.float())
        self.least_likeness = confidence.familiarity.likeness_at(USUAL_RATE)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities ``(n, classes)``, and whether a picture is rejected as none of the classes ``(n,)``."""
        colours = (images - self.colour_mean) / self.colour_std  # type: ignore[operator]
        features = self.embedding(colours).flatten(1) - self.mean
        lengths = torch.sqrt((features * features).sum(dim=1, keepdim=True))
        given = features / (lengths + NORM_EPSILON) if self.normalize else features
        scores = given @ self.weights + self.intercepts
        probabilities = torch.softmax(scores, dim=1)
        similarities = (features / lengths.clamp(min=1e-12)) @ self.directions
        likeness = similarities.amax(dim=1) + PROBABILITY_WEIGHT * probabilities.amax(dim=1)
        return probabilities, likeness < self.least_likeness


def write_onnx(
    path: str | Path,
    *,
    embedding: Embedding,
    mean: Tensor | None,
    rule: LinearRule,
    confidence: Confidence,
    directions: Tensor,
    classes: Sequence[Any],
) -> None:
    """Write the model. Its metadata tells the classes and the pre-processing, as JSON."""
    onnx: Any = require("onnx", extra="onnx")
    require("onnxscript", extra="onnx")
    size = embedding.preprocessing.input_size
    device = rule.weights.device
    model = OnnxModel(embedding, mean, rule, confidence, directions).to(device)
    with evaluating(model), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch warns about its own code
        program = torch.onnx.export(
            model,
            (torch.rand(2, 3, size, size, device=device),),
            dynamo=True,
            input_names=["images"],
            output_names=["probabilities", "rejected"],
            dynamic_shapes=({0: torch.export.Dim("n", min=1, max=4096)},),
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    preprocessing = embedding.preprocessing
    onnx.helper.set_model_props(
        proto,
        {
            "classes": json.dumps(list(classes)),
            "resize": str(preprocessing.resize),
            "size": str(size),
            "interpolation": preprocessing.interpolation,
            "squash": json.dumps(preprocessing.squash),
        },
    )
    write_bytes(path, proto.SerializeToString())
