"""Methods that use the hooks which the built-in ones do not: what they remember, and a stage of their own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deepbdc
from deepbdc.backbones.base import Backbone
from deepbdc.classifiers import create_classifier
from deepbdc.data.loading import load_dataset
from deepbdc.embedding import Embedding
from deepbdc.evaluation import evaluate
from deepbdc.methods.base import EpisodicMethod, Head, TrainingClasses, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing
from deepbdc.recipes import recipe_from_dict
from deepbdc.runs import load_run
from deepbdc.stages import BatchSettings, Classification, Loss, Objective
from deepbdc.stages.objectives import classification_loss
from deepbdc.training.run import train
from tests.training import tiny


class Rotations(Objective):
    """A stage of its own: recognise by which quarter turn an image was rotated."""

    Settings = BatchSettings
    Batches = Classification.Batches

    def __init__(self, method: Any, settings: Any, **given: Any) -> None:
        super().__init__(method, settings, **given)
        self.turns = nn.Linear(method.embedding.out_features, 4)

    def forward(self, *batch: Tensor) -> Loss:
        images = torch.cat([batch[0].rot90(turn, dims=(2, 3)) for turn in range(4)])
        labels = torch.arange(4).repeat_interleave(len(batch[0]))
        value, numbers = classification_loss(self.turns(self.method.embedding(images)), labels)
        return Loss(value, {**numbers, "turned": numbers["accuracy"] / 2})


class Remembering(EpisodicMethod):
    """Subtracts the mean of the training classes, and has a loss of its own in the first stage."""

    objectives: ClassVar[Any] = {"rotate": Rotations, "pretrain": Classification}

    def __init__(self, backbone: Backbone, shot: int = 1, preprocessing: Preprocessing | None = None) -> None:
        embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        super().__init__(embedding, create_classifier("prototype", similarity="cosine"))

    def remember(self, base: TrainingClasses) -> None:
        self.memory["mean"] = base.source(self).rows(np.arange(len(base.dataset))).mean(dim=0)

    def classify(self, support: Tensor, support_labels: Tensor, query: Tensor) -> Tensor:
        return super().classify(support - self.memory["mean"], support_labels, query - self.memory["mean"])

    def batch_loss(self, head: Head, images: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Loss:
        value, numbers = super().batch_loss(head, images, labels, label_smoothing)
        return Loss(2 * value, numbers)


@pytest.fixture
def registered() -> Iterator[None]:
    methods.named("remembering")(Remembering)
    yield
    del methods._factories["remembering"]


@pytest.mark.usefixtures("registered")
def test_a_method_with_a_stage_and_a_memory_of_its_own(tiny_data: Path, tmp_path: Path) -> None:
    content = tiny.recipe("protonet").as_dict()
    del content["meta"]
    stage = {"epochs": 2, "batch_size": 12, "lr": 0.01}
    recipe = recipe_from_dict({**content, "method": "remembering", "rotate": stage, "pretrain": stage})
    assert [entry.name for entry in recipe.trainings] == ["rotate", "pretrain"]
    result = train(recipe, tmp_path / "run", data=tiny_data, quiet=True)
    run = load_run(tmp_path / "run")  # needs nothing but its file
    mean = run.method.memory["mean"]
    assert mean.shape == (8,)
    bank = run.method.source(load_dataset(tiny_data, "train"))
    torch.testing.assert_close(mean, bank.rows(np.arange(72)).mean(dim=0))
    again = evaluate(run.method, load_dataset(tiny_data, "test"), 3, 1, 5, 20, 0)
    assert again.accuracies.tolist() == result.results[0].accuracies.tolist()
    run.method.memory["mean"] = mean + 1
    changed = evaluate(run.method, load_dataset(tiny_data, "test"), 3, 1, 5, 20, 0)
    assert changed.weights_fingerprint != again.weights_fingerprint
    log = (tmp_path / "run" / "log.jsonl").read_text()
    assert '"turned": ' in log  # numbers of an objective are logged


@pytest.mark.usefixtures("registered")
def test_its_recipe_names_its_own_stages() -> None:
    with pytest.raises(ValueError, match="'rotat' that does not exist: did you mean 'rotate'"):
        recipe_from_dict({"method": "remembering", "data": "glyphs", "rotat": {"epochs": 2}})
    with pytest.raises(ValueError, match="remembering is trained by rotate and pretrain"):
        recipe_from_dict({"method": "remembering", "data": "glyphs", "meta": {"epochs": 2}})


def test_two_methods_cannot_share_a_name() -> None:
    with pytest.raises(ValueError, match="two factories are registered as the method 'protonet'"):
        methods.named("protonet")(Remembering)
    assert "remembering" not in deepbdc.list_methods()
