"""Methods that use the hooks which the built-in ones do not: what they remember, and a stage of their own."""

from collections.abc import Callable, Iterator
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
from deepbdc.recipes import Recipe, build_method, recipe_from_dict
from deepbdc.runs import load_run
from deepbdc.stages import BatchSettings, Classification, Distillation, DistillationSettings, Inputs, Loss, Objective
from deepbdc.stages.objectives import classification_loss, distillation_loss
from deepbdc.training.devices import DeviceOptions
from deepbdc.training.estimate import estimate
from deepbdc.training.run import train
from deepbdc.weight_files import Memory, load, save
from tests.training import tiny


class Rotations(Objective):
    """A stage of its own: recognise by which quarter turn an image was rotated."""

    Settings = BatchSettings
    Batches = Classification.Batches

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        self.turns = nn.Linear(inputs.method.embedding.out_features, 4)

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
        assert not self.training
        assert not torch.is_grad_enabled()
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


def own_recipe(**stage: Any) -> Recipe:
    content = tiny.recipe("protonet").as_dict()
    del content["meta"]
    return recipe_from_dict({**content, "method": "remembering", "pretrain": {**content["pretrain"], **stage}})


@pytest.mark.usefixtures("registered")
def test_a_memory_survives_the_best_epoch_and_a_resumption(
    tiny_data: Path, tmp_path: Path, power_cut: Callable[..., None]
) -> None:
    recipe = own_recipe(select="best")
    train(recipe, tmp_path / "whole", data=tiny_data, quiet=True)
    power_cut(10)
    with pytest.raises(RuntimeError, match="power cut"):
        train(recipe, tmp_path / "cut", data=tiny_data, quiet=True, checkpoint_every=0.0)
    train(recipe, tmp_path / "cut", data=tiny_data, quiet=True, resume=True)
    whole, cut = (load_run(tmp_path / name).method for name in ("whole", "cut"))
    for name, value in whole.state_dict().items():
        assert torch.equal(value, cut.state_dict()[name]), name
    bank = whole.source(load_dataset(tiny_data, "train"))  # it is the memory of the epoch that was kept
    torch.testing.assert_close(whole.memory["mean"], bank.rows(np.arange(72)).mean(dim=0))


@pytest.mark.usefixtures("registered")
def test_a_memory_can_be_estimated_and_is_asked_for_in_words(tiny_data: Path) -> None:
    recipe = own_recipe()
    assert estimate(recipe, DeviceOptions(accelerator="cpu"), data=tiny_data).evaluation_seconds is not None
    with pytest.raises(ValueError, match="remembers no 'mean' of its training classes: train it"):
        evaluate(build_method(recipe), load_dataset(tiny_data, "test"), 3, 1, 5, 2, 0)


@pytest.mark.usefixtures("registered")
def test_own_pictures_never_get_another_classifier_than_the_methods() -> None:
    """Its classify is its own, so the rule of its classifier would give other answers."""
    from PIL import Image

    pictures = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    with pytest.raises(ValueError, match=r"Remembering scores a task in its own way.*classifier=\"logistic\""):
        deepbdc.FewShotClassifier(backbone=build_method(own_recipe()).eval()).fit(pictures, ["red", "blue"])


def test_embed_and_source_go_together() -> None:
    class Half(EpisodicMethod):
        def embed(self, images: Tensor) -> Tensor:
            return super().embed(images) / 2

    backbone = deepbdc.create_backbone("conv4")
    method = Half(Embedding(backbone, AveragePool(64)), create_classifier("prototype"))
    with pytest.raises(NotImplementedError, match="Half overrides embed, so it must override source as well"):
        method.source(None)  # type: ignore[arg-type]


def test_a_memory_is_moved_with_its_method_and_may_share_tensors(tmp_path: Path) -> None:
    memory = Memory()
    memory["a"] = torch.arange(6.0)
    memory["b"] = memory["a"][:3]
    assert "a" in memory
    assert "c" not in memory
    save(tmp_path / "m.safetensors", memory.state_dict(), {})
    again = Memory().to("meta")
    again.load_state_dict(load(tmp_path / "m.safetensors")[0])
    assert again["b"].device.type == "meta"
    assert sorted(again.state_dict()) == ["a", "b"]  # a file has them in any order
    again["c"] = torch.zeros(2)
    assert again["c"].device.type == "meta"


class Tripled(EpisodicMethod):
    """Counts the calls of its own loss."""

    calls = 0

    def batch_loss(self, head: Head, images: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Loss:
        self.calls += 1
        value, numbers = super().batch_loss(head, images, labels, label_smoothing)
        return Loss(3 * value, numbers)


def test_a_student_is_taught_by_the_loss_of_its_method(generator: torch.Generator) -> None:
    torch.manual_seed(0)
    backbones = [deepbdc.create_backbone("conv4", width=0.125, removed_downsamplings=2) for _ in range(2)]
    teacher, student = (Tripled(Embedding(one, AveragePool(8)), create_classifier("prototype")) for one in backbones)
    settings = DistillationSettings(epochs=1, distillation_weight=0.25)
    before = Classification(Inputs(teacher, settings, 5)).eval()
    objective = Distillation(Inputs(student, settings, 5, before=before)).eval()
    images, labels = torch.rand(4, 3, 16, 16, generator=generator), torch.tensor([0, 3, 4, 1])
    value = objective(images, labels).value
    assert student.calls == 1
    logits, answers = (one.logits(one.method.embedding(images)) for one in (objective, before))
    by_labels = nn.functional.cross_entropy(logits, labels)
    expected = 0.75 * 3 * by_labels + 0.25 * distillation_loss(logits, answers, settings.temperature)
    torch.testing.assert_close(value, expected)


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
