"""Episodes with batches of ordinary classification: when there is one, of which images, and its part of the loss."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from deepbdc.data.loading import load_dataset
from deepbdc.errors import UserError
from deepbdc.preprocessing import Preprocessing
from deepbdc.stages import AugmentedImages, Classification, EpisodeBatches, Process, TrainingEpisode
from deepbdc.stages.co_training import CoTraining, CoTrainingBatches, CoTrainingSettings
from deepbdc.training.run import build_objective
from tests.training import tiny

SETTINGS = CoTrainingSettings(epochs=4, episodes=10, way=3, query=2, auxiliary_batch=8, auxiliary_periods=4)


def batches(data: Path, settings: CoTrainingSettings = SETTINGS, process: Process | None = None) -> CoTrainingBatches:
    images = AugmentedImages(load_dataset(data, "train"), Preprocessing(tiny.SIZE, tiny.SIZE), "none")
    return CoTrainingBatches(images, settings, "meta", 1, process or Process())


def test_batches_become_rarer(tiny_data: Path) -> None:
    """0.9 in the first period, 0.9² in the second, and so on; drawn so."""
    made = batches(tiny_data)
    found = [made.probability(epoch, step) for epoch in range(4) for step in range(10)]
    assert found == pytest.approx([0.9 ** (period + 1) for period in range(4) for _ in range(10)])
    often = batches(tiny_data, replace(SETTINGS, episodes=200, auxiliary_decay=0.6))
    for epoch in range(4):
        share = np.mean([len(often._drawn(epoch, step)) > 0 for step in range(200)])
        assert share == pytest.approx(0.6 ** (epoch + 1), abs=0.11)


def test_the_episodes_are_those_of_a_stage_without(tiny_data: Path) -> None:
    made = batches(tiny_data)
    plain = EpisodeBatches(made.images, SETTINGS, "meta", 1, Process())
    for step in range(10):
        *episode, images, labels = made.load(1, step, 0)
        assert all(torch.equal(a, b) for a, b in zip(episode, plain.load(1, step, 0), strict=True))
        assert len(images) == len(labels) in (0, 8)
        for image, label in zip(images, labels, strict=True):
            same = made.images.load(np.flatnonzero(made.images.dataset.labels.numpy() == int(label)), 0)
            assert (same == image).flatten(1).all(dim=1).any(), "the label is that of the image"
    assert made.images_per_step == plain.images_per_step + 8


def test_processes_and_episodes_share_a_batch(tiny_data: Path) -> None:
    settings = replace(SETTINGS, episodes_per_step=4, auxiliary_decay=1.0)
    whole = torch.cat([batches(tiny_data, settings).load(0, 0, part)[-1] for part in range(4)])
    shared = [batches(tiny_data, settings, Process(rank, 2)) for rank in range(2)]
    pieces = [shared[rank].load(0, 0, part)[-1] for part in range(2) for rank in range(2)]
    assert [len(piece) for piece in pieces] == [2] * 4
    assert torch.equal(torch.cat(pieces), whole)


def test_without_decay_there_are_no_batches(tiny_data: Path) -> None:
    made = batches(tiny_data, replace(SETTINGS, auxiliary_decay=0.0))
    assert all(len(made.load(0, step, 0)[-1]) == 0 for step in range(10))
    for wrong in ({"auxiliary_decay": 1.5}, {"auxiliary_batch": 0}, {"auxiliary_periods": 0}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            replace(SETTINGS, **wrong).check("meta")  # type: ignore[arg-type]


def test_the_loss_is_a_sum_and_the_head_is_kept(tiny_data: Path) -> None:
    recipe = tiny.recipe("tadam", dropout=0.0)
    before = build_objective(recipe, recipe.trainings[0], 6)
    objective = build_objective(recipe, recipe.trainings[1], 6)
    assert isinstance(before, Classification)
    assert isinstance(objective, CoTraining)
    objective.continue_from(before)
    assert torch.equal(objective.head.weight, before.head.weight)  # type: ignore[arg-type]
    assert {id(value) for value in objective.parameter_groups()["head"]} == {id(v) for v in objective.head.parameters()}
    objective.eval()
    *episode, images, labels = batches(tiny_data, replace(SETTINGS, auxiliary_decay=1.0)).load(0, 0, 0)
    value, numbers = objective(*episode, images, labels)
    alone = objective.method.episode_loss(TrainingEpisode(*episode)).value
    scores = objective.head(objective.method.embedding(images))
    expected = torch.nn.functional.cross_entropy(scores, labels)
    torch.testing.assert_close(value, alone + expected)
    torch.testing.assert_close(numbers["auxiliary"], expected.detach())
    without = objective(*episode, images[:0], labels[:0])
    torch.testing.assert_close(without.value, alone)
    assert without.numbers.keys() == numbers.keys()
