"""The losses against naive twins, the batches against what they promise, the schedule against its words."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from deepbdc import weight_files
from deepbdc._seeds import derive
from deepbdc.data.dataset import FolderDataset
from deepbdc.data.loading import load_dataset
from deepbdc.episodes import sample_episodes
from deepbdc.errors import UserError
from deepbdc.preprocessing import Preprocessing
from deepbdc.stages import (
    AugmentedImages,
    BatchSettings,
    Classification,
    Distillation,
    EpisodeBatches,
    EpisodeSettings,
    EpisodeTraining,
    GroupSettings,
    PairedEpisodeBatches,
    Process,
    ShuffledBatches,
    StageSettings,
    TrainingEpisode,
)
from deepbdc.stages.objectives import distillation_loss
from deepbdc.training.optimiser import build_optimiser, rate_factor, set_rates
from deepbdc.training.run import build_objective, train
from tests.training import tiny


def naive_distillation(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> float:
    """T² times the mean over images of Σ p log(p / q)."""
    total = 0.0
    for given, wanted in zip(student.tolist(), teacher.tolist(), strict=True):
        q = [math.exp(value / temperature) for value in given]
        p = [math.exp(value / temperature) for value in wanted]
        q, p = [value / sum(q) for value in q], [value / sum(p) for value in p]
        total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    return temperature**2 * total / len(student)


def test_distillation_loss_is_the_formula(generator: torch.Generator) -> None:
    student, teacher = torch.randn(2, 5, 7, generator=generator, dtype=torch.float64) * 3
    assert float(distillation_loss(student, teacher, 4.0)) == pytest.approx(naive_distillation(student, teacher, 4.0))
    student.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: distillation_loss(x, teacher, 4.0), student)
    assert float(distillation_loss(teacher, teacher, 4.0)) == pytest.approx(0, abs=1e-12)


def test_stages_follow_the_recipe(tiny_data: Path, tmp_path: Path) -> None:
    names = [stage.name for stage in tiny.recipe("stl_deepbdc").trainings]
    assert names == ["pretrain", "distill-1", "distill-2"]
    assert [stage.name for stage in tiny.recipe("protonet").trainings] == ["pretrain", "meta"]
    with pytest.raises(UserError, match="no stage: give it one of pretrain and meta"):
        train(tiny.recipe("protonet", pretrain=None, meta=None), tmp_path / "run", data=tiny_data)


def test_pretrain_is_cross_entropy_of_a_linear_head(generator: torch.Generator) -> None:
    recipe = replace(tiny.recipe("stl_deepbdc"), dropout=0.0)
    objective = build_objective(recipe, recipe.trainings[0], classes=6)
    assert isinstance(objective, Classification)
    assert not objective.head.bias.any()
    images, labels = torch.rand(4, 3, 16, 16, generator=generator), torch.tensor([0, 5, 2, 2])
    loss, numbers = objective(images, labels)
    logits = objective.method.embed(images) @ objective.head.weight.T + objective.head.bias
    expected = -sum(torch.log_softmax(row, 0)[label] for row, label in zip(logits, labels, strict=True)) / 4
    torch.testing.assert_close(loss, expected)
    assert float(numbers["accuracy"]) == 25 * sum(
        int(row.argmax()) == label for row, label in zip(logits, labels, strict=True)
    )


def test_the_teacher_is_frozen_and_in_evaluation_mode(generator: torch.Generator) -> None:
    recipe = tiny.recipe("stl_deepbdc")  # with dropout 0.5, which would show
    first, second = recipe.trainings[:2]
    teacher = build_objective(recipe, first, 6)
    assert isinstance(teacher, Classification)
    objective = build_objective(recipe, second, 6, teacher)
    assert isinstance(objective, Distillation)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    images, labels = torch.rand(8, 3, 16, 16, generator=generator), torch.arange(8) % 6
    objective.train()
    teacher.train()
    torch.manual_seed(3)
    loss, _ = objective(images, labels)
    loss.backward()
    for name, value in teacher.state_dict().items():  # batch norm did not move
        assert torch.equal(value, before[name]), name
    assert all(value.grad is None for value in teacher.parameters())
    assert not any("teacher" in name for name, _ in objective.named_parameters())
    torch.manual_seed(3)
    logits = objective.logits(objective.method.embed(images))
    teacher.eval()
    answers = teacher.logits(teacher.method.embed(images))
    expected = 0.5 * nn.functional.cross_entropy(logits, labels) + 0.5 * naive_distillation(logits, answers, 4.0)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)


def test_students_start_fresh() -> None:
    recipe = tiny.recipe("stl_deepbdc")
    first, second, third = recipe.trainings
    teacher = build_objective(recipe, first, 6)
    assert isinstance(teacher, Classification)
    weights = [
        objective.head.weight
        for objective in (
            teacher,
            build_objective(recipe, second, 6, teacher),
            build_objective(recipe, third, 6, teacher),
        )
    ]  # type: ignore[union-attr]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    assert torch.equal(build_objective(recipe, first, 6).head.weight, weights[0])  # type: ignore[union-attr, arg-type]


def test_students_can_start_from_their_teacher(tiny_data: Path, tmp_path: Path) -> None:
    stage = {"epochs": 1, "batch_size": 12, "lr": 0.02}
    still = {**stage, "lr": 1e-12, "generations": 2, "start": "teacher"}
    train(tiny.recipe("stl_deepbdc", pretrain=stage, distill=still), tmp_path / "run", data=tiny_data, quiet=True)
    kept = [
        weight_files.load(tmp_path / "run" / "checkpoints" / f"{name}.safetensors")[0]
        for name in ("pretrain", "distill-1", "distill-2")
    ]
    trained = [name for name in kept[0] if name.endswith(("weight", "bias", "log_scale"))]
    assert any(name.startswith("head") for name in trained)
    for student in kept[1:]:
        for name in trained:
            torch.testing.assert_close(student[name], kept[0][name], msg=name)


def test_without_weight_the_teacher_does_not_look(generator: torch.Generator) -> None:
    recipe = tiny.recipe("stl_deepbdc", distill={"epochs": 1, "distillation_weight": 0, "start": "teacher"})
    first, second = recipe.trainings[:2]
    teacher = build_objective(recipe, first, 6)
    assert isinstance(teacher, Classification)
    objective = build_objective(recipe, second, 6, teacher)
    objective.continue_from(teacher)
    asked: list[str] = []
    teacher.method.embedding.register_forward_hook(lambda *_: asked.append("teacher"))
    images, labels = torch.rand(9, 3, 16, 16, generator=generator), torch.arange(9) % 6
    loss, numbers = objective.eval()(images, labels)
    logits = teacher.eval().logits(teacher.method.features(images))
    torch.testing.assert_close(loss, nn.functional.cross_entropy(logits, labels))
    assert asked == ["teacher"]  # by this test only
    assert "accuracy" in numbers


def test_meta_is_cross_entropy_of_scores(generator: torch.Generator) -> None:
    recipe = tiny.recipe("meta_deepbdc")
    objective = build_objective(recipe, recipe.trainings[1], 6)
    assert isinstance(objective, EpisodeTraining)
    images = torch.rand(9, 3, 16, 16, generator=generator)
    support_labels, query_labels = torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1, 1, 2, 2])
    loss, _ = objective(images, support_labels, query_labels, torch.tensor([4, 0, 2]))
    vectors = objective.method.embed(images)
    scores = vectors[3:] @ vectors[:3].T  # one shot: inner products
    torch.testing.assert_close(loss, nn.functional.cross_entropy(scores, query_labels))


def test_the_scale_has_its_own_rate() -> None:
    recipe = tiny.recipe("stl_deepbdc")
    objective = build_objective(recipe, recipe.trainings[0], 6)
    optimiser = build_optimiser(objective, StageSettings(epochs=1, lr=0.05, groups={"t": GroupSettings(lr=0.001)}))
    set_rates(optimiser, 0.1)
    rates = {id(value): group["lr"] for group in optimiser.param_groups for value in group["params"]}
    assert len(rates) == sum(1 for _ in objective.parameters())
    scale = objective.method.embedding.pool.t  # type: ignore[union-attr]
    assert rates.pop(id(scale)) == pytest.approx(0.0001)
    assert list(rates.values()) == pytest.approx([0.005] * len(rates))


def test_groups_have_their_own_decay_and_can_be_frozen() -> None:
    recipe = tiny.recipe("meta_baseline")
    objective = build_objective(recipe, recipe.trainings[1], 6)
    groups = {"scale": GroupSettings(weight_decay=0.0), "network": GroupSettings(frozen=True)}
    optimiser = build_optimiser(objective, StageSettings(epochs=1, weight_decay=0.1, groups=groups))
    (group,) = optimiser.param_groups
    assert (group["name"], group["weight_decay"]) == ("scale", 0.0)
    assert [name for name, value in objective.named_parameters() if value.requires_grad] == [
        "method.classifier.scale.scale"
    ]
    with pytest.raises(UserError, match="nothing to train"):
        build_optimiser(objective, StageSettings(epochs=1, groups={**groups, "scale": GroupSettings(frozen=True)}))
    with pytest.warns(UserWarning, match=r"groups\.scal has no effect.*did you mean 'scale'"):
        build_optimiser(objective, StageSettings(epochs=1, groups={"scal": GroupSettings(lr=1.0)}))


@pytest.mark.parametrize(
    ("settings", "kind", "values"),
    [
        ({"optimiser": "sgd", "momentum": 0.5}, torch.optim.SGD, {"momentum": 0.5, "nesterov": True, "dampening": 0}),
        ({"nesterov": False, "dampening": 0.9}, torch.optim.SGD, {"nesterov": False, "dampening": 0.9}),
        ({"momentum": 0.0}, torch.optim.SGD, {"nesterov": False}),
        ({"optimiser": "adam", "betas": (0.5, 0.9)}, torch.optim.Adam, {"betas": (0.5, 0.9)}),
        ({"optimiser": "adamw"}, torch.optim.AdamW, {"weight_decay": 5e-4}),
    ],
)
def test_optimisers(settings: dict[str, Any], kind: type, values: dict[str, object]) -> None:
    recipe = tiny.recipe("protonet")
    objective = build_objective(recipe, recipe.trainings[1], 6)
    optimiser = build_optimiser(objective, StageSettings(epochs=1, **settings))
    assert type(optimiser) is kind
    assert values.items() <= optimiser.param_groups[0].items()


def test_label_smoothing_is_in_every_loss(generator: torch.Generator) -> None:
    images, labels = torch.rand(6, 3, 16, 16, generator=generator), torch.tensor([0, 1, 2, 0, 1, 2])
    for stage, batch in (("pretrain", (images, labels)), ("meta", (images, labels[:3], labels[3:], labels[:3]))):
        losses = []
        for smoothing in (0.0, 0.3):
            changed = {**tiny.recipe("protonet").as_dict()[stage], "label_smoothing": smoothing}
            recipe = tiny.recipe("protonet", **{stage: changed}, dropout=0.0)
            chosen = next(entry for entry in recipe.trainings if entry.name == stage)
            losses.append(build_objective(recipe, chosen, 6).eval()(*batch).value.item())
        assert losses[0] != pytest.approx(losses[1])


def test_the_method_passes_from_stage_to_stage_and_the_head_does_not() -> None:
    recipe = tiny.recipe("meta_baseline")
    first, second = (build_objective(recipe, stage, 6) for stage in recipe.trainings)
    with torch.no_grad():
        first.method.classifier.scale.scale.fill_(3.0)
    second.continue_from(first)
    for name, value in first.method.state_dict().items():
        assert torch.equal(value, second.method.state_dict()[name]), name
    assert not any(name.startswith("head") for name in second.state_dict())


def test_schedules() -> None:
    steps = StageSettings(epochs=10, milestones=(4, 8))
    factors = [rate_factor(steps, epoch, 3, 5) for epoch in range(10)]
    assert factors == pytest.approx([1] * 4 + [0.1] * 4 + [0.01] * 2)
    uneven = StageSettings(epochs=10, milestones=(4, 8), gamma=(0.5, 0.1))
    assert [rate_factor(uneven, epoch, 0, 5) for epoch in (0, 4, 9)] == pytest.approx([1, 0.5, 0.05])
    cosine = StageSettings(epochs=10, schedule="cosine", warmup=2)
    assert rate_factor(cosine, 0, 0, 100) < 0.01
    rising = [rate_factor(cosine, position // 100, position % 100, 100) for position in range(200)]
    assert rising == sorted(rising)
    assert rate_factor(cosine, 2, 0, 100) == pytest.approx(1)
    assert rate_factor(cosine, 6, 0, 100) == pytest.approx(0.5)
    assert rate_factor(cosine, 9, 99, 100) < 0.001


@pytest.fixture
def images(tiny_data: Path) -> AugmentedImages:
    return AugmentedImages(load_dataset(tiny_data, "train"), Preprocessing(16, 16), "paper")


def test_an_epoch_sees_every_image_once(images: AugmentedImages) -> None:
    batches = ShuffledBatches(images, BatchSettings(epochs=2, batch_size=12, accumulate=2), "pretrain", 0, Process())
    assert (batches.steps, batches.parts) == (6, 2)
    orders = [batches._order(epoch) for epoch in (0, 1)]
    assert not np.array_equal(*orders)
    for order in orders:
        assert sorted(order.tolist()) == list(range(72))
    seen = torch.cat([labels for parts in batches.epoch(0, 0, 0) for _, labels in parts])
    assert torch.equal(seen, images.dataset.labels[torch.from_numpy(orders[0])])


def test_a_batch_depends_on_its_place_alone(images: AugmentedImages) -> None:
    batches = ShuffledBatches(images, BatchSettings(epochs=2, batch_size=12), "pretrain", 0, Process())
    later = list(batches.epoch(1, 3, 0))
    whole = list(batches.epoch(1, 0, 0))
    torch.rand(7)  # somebody draws from the global stream
    for parts, again in zip(whole[3:], later, strict=True):
        assert torch.equal(parts[0][0], again[0][0])
    state = torch.get_rng_state()
    list(batches.epoch(0, 0, 0))
    assert torch.equal(torch.get_rng_state(), state)


def test_the_first_epochs_may_have_small_images(images: AugmentedImages) -> None:
    usual = ShuffledBatches(images, BatchSettings(epochs=2, batch_size=12), "pretrain", 0, Process())
    settings = BatchSettings(epochs=2, batch_size=12, small_epochs=1, small_size=8)
    small = ShuffledBatches(images, settings, "pretrain", 0, Process())
    whole = usual.load(0, 1, 0)[0]
    shrunk = torch.nn.functional.interpolate(whole, size=8, mode="bilinear", antialias=True)
    assert torch.equal(small.load(0, 1, 0)[0], shrunk)
    assert all(torch.equal(one, other) for one, other in zip(small.load(1, 1, 0), usual.load(1, 1, 0), strict=True))
    size = images.preprocessing.input_size
    assert settings.full_epochs(size) == pytest.approx(1 + (8 / size) ** 2)
    with pytest.raises(UserError, match="larger than the images"):
        ShuffledBatches(images, replace(settings, small_size=size + 1), "pretrain", 0, Process())
    for wrong in (replace(settings, small_epochs=3), replace(settings, small_size=None)):
        with pytest.raises(UserError, match="small_epochs"):
            wrong.check("pretrain")


def test_files_are_read_by_workers_to_the_same_images(images: AugmentedImages, tmp_path: Path) -> None:
    files = []
    for index in range(24):
        files.append(tmp_path / f"{index:02d}.png")
        images.dataset.image(index).resize((20, 24)).save(files[-1])
    dataset = FolderDataset(files, np.arange(24) % 3, ["a", "b", "c"], "photos", "train")
    for augmentation in ("paper", "crop_flip"):
        loaded = AugmentedImages(dataset, Preprocessing(16, 18), augmentation)
        batches = ShuffledBatches(loaded, BatchSettings(epochs=1, batch_size=8), "pretrain", 0, Process())
        alone, helped = (list(batches.epoch(0, 0, workers)) for workers in (0, 2))
        assert alone[0][0][0].shape == (8, 3, 16, 16)
        for one, other in zip(alone, helped, strict=True):
            assert torch.equal(one[0][0], other[0][0])


def test_no_augmentation_is_the_preparation_for_tests(images: AugmentedImages, tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    images.dataset.image(0).save(file)
    folder = FolderDataset([file], np.zeros(1, dtype=np.int64), ["a"], "photos", "train")
    for dataset in (images.dataset, folder):
        plain = AugmentedImages(dataset, Preprocessing(16, 16), "none")
        one, other = (plain.load(np.arange(1), seed) for seed in (1, 2))
        assert torch.equal(one, other)
        varied = AugmentedImages(dataset, Preprocessing(16, 16), "paper")
        assert not torch.equal(varied.load(np.arange(1), 1), varied.load(np.arange(1), 2))


def test_shots_can_be_drawn_from_a_range(images: AugmentedImages) -> None:
    settings = EpisodeSettings(epochs=1, episodes=20, way=3, shot=(1, 4), query=2)
    batches = EpisodeBatches(images, settings, "meta", 0, Process())
    assert batches.images_per_step == 3 * 6
    shots = {len(batches.load(0, step, 0)[1]) // 3 for step in range(20)}
    assert shots == {1, 2, 3, 4}


def test_a_pair_of_episodes_has_the_same_classes_and_no_common_image(images: AugmentedImages) -> None:
    settings = EpisodeSettings(epochs=1, episodes=4, way=3, shot=(1, 2), query=2)
    batches = PairedEpisodeBatches(images, settings, "meta", 0, Process())
    assert batches.images_per_step == 3 * (4 + 4)
    for step in range(4):
        episode = TrainingEpisode(*batches.load(0, step, 0))
        assert torch.bincount(episode.query_labels).tolist() == [4, 4, 4]
        assert set(torch.bincount(episode.support_labels).tolist()) <= {2, 3, 4}
        drawn = batches.stream[step]
        indices = np.concatenate([drawn.support, drawn.query])
        assert len(set(indices.tolist())) == len(indices)


def test_episodes_are_those_of_sample_episodes_and_shared_by_processes(images: AugmentedImages) -> None:
    stage = EpisodeSettings(epochs=2, episodes=6, episodes_per_step=2, way=3, shot=2, query=4)
    whole = EpisodeBatches(images, stage, "meta", 5, Process())
    halves = [EpisodeBatches(images, stage, "meta", 5, Process(rank, 2)) for rank in (0, 1)]
    drawn = sample_episodes(images.dataset, 3, 2, 4, count=12, seed=derive(5, "meta", "episodes"))
    assert (whole.steps, whole.parts, halves[0].parts) == (3, 2, 1)
    for epoch in (0, 1):
        for step in range(3):
            for rank in (0, 1):
                alone, shared = whole.load(epoch, step, rank), halves[rank].load(epoch, step, 0)
                assert all(torch.equal(a, b) for a, b in zip(alone, shared, strict=True))
                episode = drawn[(epoch * 3 + step) * 2 + rank]
                assert alone[0].shape == (3 * 6, 3, 16, 16)
                assert torch.equal(alone[2], torch.from_numpy(episode.query_labels))
                indices = np.concatenate([episode.support, episode.query])
                assert torch.equal(TrainingEpisode(*alone).base_labels, images.dataset.labels[indices])
    with pytest.raises(ValueError, match="multiple of 4"):
        EpisodeBatches(images, stage, "meta", 5, Process(0, 4))
