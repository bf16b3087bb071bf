"""What every registered method must do. A new method is tested here by being registered."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import deepbdc
from deepbdc._fingerprint import weights_fingerprint
from deepbdc.backbones import create_backbone
from deepbdc.data.loading import load_dataset
from deepbdc.data.transforms import BatchTestTransform
from deepbdc.episodes import Episode, Episodes, Settings, sample_episodes
from deepbdc.errors import UserError
from deepbdc.evaluation import evaluate
from deepbdc.methods.base import Method, TrainingClasses, methods
from deepbdc.preprocessing import Preprocessing
from deepbdc.recipes import Recipe, list_recipes, recipe_from_dict
from deepbdc.runs import load_run
from deepbdc.stages import Process
from deepbdc.training.devices import DeviceOptions, start
from deepbdc.training.loop import Trainer
from deepbdc.training.run import build_batches, build_objective, train
from deepbdc.weight_files import load
from tests.settings import other_values
from tests.training import tiny

NOT_OPTIONS = ("self", "backbone", "shot", "preprocessing")
SIZE = tiny.SIZE

pytestmark = pytest.mark.parametrize("name", deepbdc.list_methods())


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def short(name: str, **changes: Any) -> Recipe:
    """Two steps in every stage that the method has."""
    content = tiny.recipe(name).as_dict()
    for stage in methods.find(name).objectives:
        content[stage] |= {"epochs": 2, "milestones": [], "select": "last"}
        content[stage] |= {"generations": 1} if "generations" in content[stage] else {}
        content[stage] |= {"episodes": 2} if "episodes" in content[stage] else {"batch_size": 36}
    content |= {
        "validation": {"episodes": 2, "query": 2, "way": 3},
        "evaluation": {"episodes": 4, "query": 3, "way": 3},
    }
    return recipe_from_dict(content | changes)


@cache
def training_classes() -> TrainingClasses:
    with TemporaryDirectory() as folder:
        return TrainingClasses(load_dataset(tiny.write_data(Path(folder) / "tiny.npz"), "train"))


@torch.no_grad()
def create(name: str, seed: int = 0, **options: Any) -> Method:
    torch.manual_seed(seed)
    backbone = create_backbone("conv4", width=0.125, removed_downsamplings=2)
    method = deepbdc.create_method(name, backbone, preprocessing=Preprocessing(SIZE, SIZE), **options).eval()
    method.remember(training_classes())
    return method


def tasks(method: Method, shot: int = 2, batch: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Representations of random episodes with three classes, ``(batch, ...)``."""
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(batch, 3 * shot + 4, 3, SIZE, SIZE, generator=generator)
    with torch.no_grad():
        rows = method.embed(images.flatten(0, 1)).unflatten(0, images.shape[:2])
    labels = torch.arange(3).repeat_interleave(shot).expand(batch, -1)
    return rows[:, : 3 * shot], labels, rows[:, 3 * shot :]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_it_trains_in_every_stage(name: str, precision: str, tiny_data: Path) -> None:
    recipe = short(name, precision=precision)
    fabric = start(DeviceOptions(accelerator="cpu", devices=1), precision)
    data, trained, objective = load_dataset(tiny_data, "train"), set(), None
    assert {stage.section for stage in recipe.trainings} == set(methods.find(name).objectives)
    for stage in recipe.trainings:
        objective = build_objective(recipe, stage, len(data.class_names), objective)
        batches = build_batches(recipe, stage, data, objective.method, Process())
        trainer = Trainer(fabric, recipe, stage, objective)
        before = {key: value.clone() for key, value in objective.method.state_dict().items()}
        for step in range(2):
            result = trainer.step([batches.load(0, step, part) for part in range(batches.parts)], 0, step)
            assert np.isfinite(result.loss)
            for key, value in objective.method.named_parameters():
                if value.grad is not None:
                    assert value.grad.isfinite().all(), key
                    trained.add(key)
        assert any(not torch.equal(value, before[key]) for key, value in objective.method.state_dict().items())
    assert objective is not None
    assert trained == {key for key, _ in objective.method.named_parameters()}, "some parameter never has a gradient"


def test_it_resumes_bit_for_bit_saves_and_loads(
    name: str, tiny_data: Path, tmp_path: Path, power_cut: Callable[..., None]
) -> None:
    recipe, arguments = short(name), {"data": tiny_data, "quiet": True, "checkpoint_every": 0.0}
    result = train(recipe, tmp_path / "whole", **arguments)
    power_cut(2, 7, 11)
    with pytest.raises(RuntimeError, match="power cut"):
        train(recipe, tmp_path / "cut", **arguments)
    for _ in range(3):
        try:
            train(recipe, tmp_path / "cut", **arguments, resume=True)
            break
        except RuntimeError:
            continue
    whole, cut = (load(tmp_path / folder / "model.safetensors")[0] for folder in ("whole", "cut"))
    assert whole.keys() == cut.keys()
    assert all(torch.equal(value, cut[key]) for key, value in whole.items())
    run = load_run(tmp_path / "cut")
    for one in result.results:
        again = evaluate(run.method, load_dataset(tiny_data, "test"), 3, one.shot, 3, 4, 0)
        assert again.accuracies.tolist() == one.accuracies.tolist()
        assert (again.weights_fingerprint, again.transductive) == (one.weights_fingerprint, one.transductive)
    stored = json.loads((tmp_path / "cut" / "result.json").read_text())
    assert [one["mean"] for one in stored["results"]] == [one.mean for one in result.results]


@pytest.mark.parametrize("shot", [1, 5])
def test_it_evaluates(name: str, shot: int, tiny_data: Path) -> None:
    data = load_dataset(tiny_data, "test")
    episodes = sample_episodes(data, way=3, shot=shot, query=3, count=10)
    result = evaluate(create(name), data, episodes=episodes)
    assert result.accuracies.shape == (10,)
    assert 15 < result.mean <= 100  # chance is 33; random weights are not much worse
    assert result.transductive == create(name).transductive


def test_it_evaluates_unequal_shots(name: str, tiny_data: Path) -> None:
    data = load_dataset(tiny_data, "test")
    labels = data.labels.numpy()
    of_class = [np.flatnonzero(labels == label) for label in range(3)]
    shots = (1, 4, 2)
    support = np.concatenate([images[:shot] for images, shot in zip(of_class, shots, strict=True)])
    query = np.concatenate([images[6:8] for images in of_class])
    item = Episode(support, np.repeat(np.arange(3), shots), query, np.repeat(np.arange(3), 2), np.arange(3))
    drawn = Episodes((item,), Settings(3, (1, 4), 2, 1, 0), data.fingerprint)
    assert 0 <= evaluate(create(name), data, episodes=drawn).mean <= 100


def test_scores_permute_with_the_classes(name: str) -> None:
    method = create(name)
    support, labels, query = tasks(method)
    scores = method.classify(support, labels, query)
    order = torch.tensor([2, 0, 1])
    permuted = method.classify(support, order[labels], query)
    torch.testing.assert_close(permuted[..., order], scores, rtol=1e-3, atol=1e-3)
    centred = scores - scores.mean(dim=-1, keepdim=True)  # what all classes have in common tells nothing
    assert not torch.allclose(centred, centred[..., order], rtol=1e-3, atol=1e-5)


def test_the_order_of_the_support_does_not_matter(name: str) -> None:
    method = create(name)
    support, labels, query = tasks(method)
    order = torch.tensor([4, 1, 5, 0, 3, 2])
    shuffled = method.classify(support[:, order], labels[:, order], query)
    torch.testing.assert_close(shuffled, method.classify(support, labels, query), rtol=1e-3, atol=1e-3)


def test_a_batch_of_episodes_is_scored_as_one_by_one(name: str) -> None:
    method = create(name)
    support, labels, query = tasks(method)
    together = method.classify(support, labels, query)
    assert together.shape == (3, 4, 3)
    for place in range(3):
        alone = method.classify(support[place], labels[place], query[place])
        torch.testing.assert_close(together[place], alone, rtol=1e-3, atol=1e-4)


def test_only_transductive_methods_look_at_the_other_queries(name: str) -> None:
    method = create(name)
    support, labels, query = tasks(method, batch=1)
    together = method.classify(support, labels, query)
    alone = method.classify(support, labels, query[:, :1])
    if method.transductive:
        assert not torch.allclose(together[:, :1], alone, rtol=1e-3, atol=1e-4)
    else:
        torch.testing.assert_close(together[:, :1], alone, rtol=1e-3, atol=1e-4)


def test_the_fingerprint_changes_with_every_option_and_weight(name: str) -> None:
    method = create(name)
    found = {weights_fingerprint(method)}
    assert weights_fingerprint(create(name)) in found
    options = other_values(methods.find(name), NOT_OPTIONS)
    for option, value in options.items():
        found.add(weights_fingerprint(create(name, **{option: value})))
    for value in method.state_dict().values():
        changed = value.clone()
        value.view(-1)[0] += 1
        found.add(weights_fingerprint(method))
        value.copy_(changed)
    assert len(found) == 1 + len(options) + len(method.state_dict())
    other = create(name)
    other.embedding.preprocessing = Preprocessing(SIZE, SIZE + 1)
    assert weights_fingerprint(other) not in found


def test_the_classifier_for_a_number_of_shots_has_no_parameters_of_its_own(name: str) -> None:
    """They would be neither trained nor saved."""
    method = create(name)
    known = {id(value) for value in method.state_dict(keep_vars=True).values()}
    for shot in (1, 5):
        used = method.classifier_for(shot).state_dict(keep_vars=True)
        assert {id(value) for value in used.values()} <= known


@pytest.mark.parametrize("shot", [1, 3])
def test_own_pictures_are_classified_by_the_method_or_refused_in_words(name: str, shot: int) -> None:
    random = np.random.default_rng(0)
    pictures = [random.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8) for _ in range(3 * shot + 6)]
    examples, labels, others = pictures[: 3 * shot], np.repeat(["a", "b", "c"], shot), pictures[3 * shot :]
    method = create(name)
    estimator, refusal = deepbdc.FewShotClassifier(backbone=method), ""
    try:
        estimator.fit(examples, labels)
    except UserError as error:
        refusal = str(error)
    if refusal:
        assert "cannot be used here" in refusal or "only its own method" in refusal
        return
    transform = BatchTestTransform(method.embedding.preprocessing)
    with torch.no_grad():
        support, query = (method.embed(transform(np.stack(part))) for part in (examples, others))
        scores = method.classify(support, torch.arange(3).repeat_interleave(shot), query)
    assert estimator.predict(others).tolist() == [["a", "b", "c"][int(place)] for place in scores.argmax(dim=1)]


def test_its_docstring_names_the_paper_and_says_whether_it_is_transductive(name: str) -> None:
    text = methods.find(name).__doc__
    assert any(str(year) in text for year in range(2015, 2027))
    assert ("ransductive" if create(name).transductive else "nductive") in text
    for option in other_values(methods.find(name), NOT_OPTIONS):
        assert f"{option}: " in text, option


def test_it_has_recipes_for_two_cores(name: str) -> None:
    assert {f"glyphs/{name}", f"cifar_fs/{name}"} <= set(list_recipes())
