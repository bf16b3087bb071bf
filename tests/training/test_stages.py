"""The losses against naive twins, the batches against what they promise, the schedule against its words."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from deepbdc.data.dataset import FolderDataset
from deepbdc.data.loading import load_dataset
from deepbdc.episodes import sample_episodes
from deepbdc.preprocessing import Preprocessing
from deepbdc.training.batches import EpisodeBatches, Images, Process, ShuffledBatches
from deepbdc.training.optimiser import build_optimiser, rate_factor, set_rates
from deepbdc.training.recipe import Meta, Optimisation, Pretrain
from deepbdc.training.seeds import derive
from deepbdc.training.stages import (
    DistillTask,
    MetaTask,
    PretrainTask,
    build_method,
    build_task,
    distillation_loss,
    stages_of,
)
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


def test_stages_follow_the_recipe() -> None:
    stages = stages_of(tiny.recipe("stl_deepbdc"))
    assert [(stage.name, stage.start) for stage in stages] == [
        ("pretrain", None),
        ("distill-1", None),
        ("distill-2", None),
    ]
    assert [(stage.name, stage.start) for stage in stages_of(tiny.recipe("protonet"))][1] == ("meta", "pretrain")
    with pytest.raises(ValueError, match="no stage"):
        stages_of(tiny.recipe("protonet", pretrain=None, meta=None))
    with pytest.raises(ValueError, match="good_embed is not trained by a stage 'meta'"):
        build_method(tiny.recipe("good_embed", meta={"epochs": 1}))


def test_pretrain_is_cross_entropy_of_a_linear_head(generator: torch.Generator) -> None:
    recipe = replace(tiny.recipe("stl_deepbdc"), dropout=0.0)
    task = build_task(recipe, stages_of(recipe)[0], classes=6)
    assert isinstance(task, PretrainTask)
    assert not task.head.bias.any()
    images, labels = torch.rand(4, 3, 16, 16, generator=generator), torch.tensor([0, 5, 2, 2])
    loss, accuracy = task(images, labels)
    logits = task.method.embed(images) @ task.head.weight.T + task.head.bias
    expected = -sum(torch.log_softmax(row, 0)[label] for row, label in zip(logits, labels, strict=True)) / 4
    torch.testing.assert_close(loss, expected)
    assert float(accuracy) == 25 * sum(int(row.argmax()) == label for row, label in zip(logits, labels, strict=True))


def test_the_teacher_is_frozen_and_in_evaluation_mode(generator: torch.Generator) -> None:
    recipe = tiny.recipe("stl_deepbdc")  # with dropout 0.5, which would show
    first, second = stages_of(recipe)[:2]
    teacher = build_task(recipe, first, 6)
    assert isinstance(teacher, PretrainTask)
    task = build_task(recipe, second, 6, teacher)
    assert isinstance(task, DistillTask)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    images, labels = torch.rand(8, 3, 16, 16, generator=generator), torch.arange(8) % 6
    task.train()
    teacher.train()
    torch.manual_seed(3)
    loss, _ = task(images, labels)
    loss.backward()
    for name, value in teacher.state_dict().items():  # batch norm did not move
        assert torch.equal(value, before[name]), name
    assert all(value.grad is None for value in teacher.parameters())
    assert not any("teacher" in name for name, _ in task.named_parameters())
    torch.manual_seed(3)
    logits = task.logits(images)
    teacher.eval()
    answers = teacher.logits(images)
    expected = 0.5 * nn.functional.cross_entropy(logits, labels) + 0.5 * naive_distillation(logits, answers, 4.0)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)


def test_students_start_fresh() -> None:
    recipe = tiny.recipe("stl_deepbdc")
    first, second, third = stages_of(recipe)
    teacher = build_task(recipe, first, 6)
    assert isinstance(teacher, PretrainTask)
    weights = [
        task.head.weight
        for task in (teacher, build_task(recipe, second, 6, teacher), build_task(recipe, third, 6, teacher))
    ]  # type: ignore[union-attr]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    assert torch.equal(build_task(recipe, first, 6).head.weight, weights[0])  # type: ignore[union-attr, arg-type]


def test_meta_is_cross_entropy_of_scores(generator: torch.Generator) -> None:
    recipe = tiny.recipe("meta_deepbdc")
    task = build_task(recipe, stages_of(recipe)[1], 6)
    assert isinstance(task, MetaTask)
    images = torch.rand(9, 3, 16, 16, generator=generator)
    support_labels, query_labels = torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1, 1, 2, 2])
    loss, _ = task(images, support_labels, query_labels)
    vectors = task.method.embed(images)
    scores = vectors[3:] @ vectors[:3].T  # one shot: inner products
    torch.testing.assert_close(loss, nn.functional.cross_entropy(scores, query_labels))


def test_the_scale_has_its_own_rate() -> None:
    recipe = tiny.recipe("stl_deepbdc")
    task = build_task(recipe, stages_of(recipe)[0], 6)
    optimiser = build_optimiser(task, Optimisation(epochs=1, lr=0.05, t_lr=0.001))
    set_rates(optimiser, 0.1)
    rates = {id(value): group["lr"] for group in optimiser.param_groups for value in group["params"]}
    assert len(rates) == sum(1 for _ in task.parameters())
    scale = task.method.embedding.pool.t  # type: ignore[union-attr]
    assert rates.pop(id(scale)) == pytest.approx(0.0001)
    assert list(rates.values()) == pytest.approx([0.005] * len(rates))


def test_schedules() -> None:
    steps = Optimisation(epochs=10, milestones=(4, 8))
    factors = [rate_factor(steps, epoch, 3, 5) for epoch in range(10)]
    assert factors == pytest.approx([1] * 4 + [0.1] * 4 + [0.01] * 2)
    cosine = Optimisation(epochs=10, schedule="cosine", warmup=2)
    assert rate_factor(cosine, 0, 0, 100) < 0.01
    rising = [rate_factor(cosine, position // 100, position % 100, 100) for position in range(200)]
    assert rising == sorted(rising)
    assert rate_factor(cosine, 2, 0, 100) == pytest.approx(1)
    assert rate_factor(cosine, 6, 0, 100) == pytest.approx(0.5)
    assert rate_factor(cosine, 9, 99, 100) < 0.001


@pytest.fixture
def images(tiny_data: Path) -> Images:
    return Images(load_dataset(tiny_data, "train"), Preprocessing(16, 16), "paper")


def test_an_epoch_sees_every_image_once(images: Images) -> None:
    batches = ShuffledBatches(images, Pretrain(epochs=2, batch_size=12, accumulate=2), "pretrain", 0, Process())
    assert (batches.steps, batches.parts) == (6, 2)
    orders = [batches._order(epoch) for epoch in (0, 1)]
    assert not np.array_equal(*orders)
    for order in orders:
        assert sorted(order.tolist()) == list(range(72))
    seen = torch.cat([labels for parts in batches.epoch(0, 0, 0) for _, labels in parts])
    assert torch.equal(seen, images.dataset.labels[torch.from_numpy(orders[0])])


def test_a_batch_depends_on_its_place_alone(images: Images) -> None:
    batches = ShuffledBatches(images, Pretrain(epochs=2, batch_size=12), "pretrain", 0, Process())
    later = list(batches.epoch(1, 3, 0))
    whole = list(batches.epoch(1, 0, 0))
    torch.rand(7)  # somebody draws from the global stream
    for parts, again in zip(whole[3:], later, strict=True):
        assert torch.equal(parts[0][0], again[0][0])
    state = torch.get_rng_state()
    list(batches.epoch(0, 0, 0))
    assert torch.equal(torch.get_rng_state(), state)


def test_files_are_read_by_workers_to_the_same_images(images: Images, tmp_path: Path) -> None:
    files = []
    for index in range(24):
        files.append(tmp_path / f"{index:02d}.png")
        images.dataset.image(index).resize((20, 24)).save(files[-1])
    dataset = FolderDataset(files, np.arange(24) % 3, ["a", "b", "c"], "photos", "train")
    for augmentation in ("paper", "crop_flip"):
        loaded = Images(dataset, Preprocessing(16, 18), augmentation)
        batches = ShuffledBatches(loaded, Pretrain(epochs=1, batch_size=8), "pretrain", 0, Process())
        alone, helped = (list(batches.epoch(0, 0, workers)) for workers in (0, 2))
        assert alone[0][0][0].shape == (8, 3, 16, 16)
        for one, other in zip(alone, helped, strict=True):
            assert torch.equal(one[0][0], other[0][0])


def test_episodes_are_those_of_sample_episodes_and_shared_by_processes(images: Images) -> None:
    stage = Meta(epochs=2, episodes=6, episodes_per_step=2, way=3, shot=2, query=4)
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
    with pytest.raises(ValueError, match="multiple of 4"):
        EpisodeBatches(images, stage, "meta", 5, Process(0, 4))
