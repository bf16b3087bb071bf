"""What a step of the training does with the settings of its stage."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from deepbdc._modes import to_channels_last
from deepbdc.data.loading import load_dataset
from deepbdc.stages import Loss, Process
from deepbdc.training.devices import DeviceOptions, start
from deepbdc.training.loop import Trainer, scalar_parameters
from deepbdc.training.run import build_batches, build_objective
from tests.training import tiny


def prepared(data: Path, **stage: Any) -> tuple[Trainer, list[Any]]:
    """A trainer of a small ProtoNet, and the parts of its first step."""
    content = {"epochs": 3, "batch_size": 12, "lr": 0.1, **stage}
    recipe = tiny.recipe("protonet", pretrain=content, meta=None, dropout=0.0)
    objective = build_objective(recipe, recipe.trainings[0], 6)
    batches = build_batches(recipe, recipe.trainings[0], load_dataset(data, "train"), objective.method, Process())
    trainer = Trainer(start(DeviceOptions(accelerator="cpu", devices=1)), recipe, recipe.trainings[0], objective)
    return trainer, [batches.load(0, 0, part) for part in range(batches.parts)]


def gradient(trainer: Trainer) -> torch.Tensor:
    return torch.cat([value.grad.flatten() for value in trainer.objective.parameters() if value.grad is not None])


def test_gradients_are_clipped(tiny_data: Path) -> None:
    found = {}
    for name, stage in (("free", {}), ("norm", {"clip_norm": 0.5}), ("value", {"clip_value": 0.01})):
        trainer, parts = prepared(tiny_data, **stage)
        trainer.step(parts, 0, 0)
        found[name] = gradient(trainer)
    free = found["free"]
    assert free.norm() > 0.5
    torch.testing.assert_close(found["norm"], 0.5 * free / free.norm(), rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(found["value"], free.clamp(-0.01, 0.01))


def test_parts_of_a_step_add_up(tiny_data: Path) -> None:
    trainer, parts = prepared(tiny_data, accumulate=3)
    assert len(parts) == 3
    result = trainer.step(parts, 0, 0)
    alone = [prepared(tiny_data, accumulate=3)[0] for _ in parts]
    losses = [one.step([part], 0, 0).loss for one, part in zip(alone, parts, strict=True)]
    assert result.loss == pytest.approx(sum(losses) / 3, rel=1e-4)
    torch.testing.assert_close(gradient(trainer), sum(gradient(one) for one in alone) / 3, rtol=1e-3, atol=1e-5)


def test_batch_norm_can_be_frozen_from_an_epoch_on(tiny_data: Path) -> None:
    trainer, parts = prepared(tiny_data, freeze_batchnorm_from=2)
    norms = [module for module in trainer.objective.modules() if isinstance(module, nn.BatchNorm2d)]
    trainer.begin_epoch(0)
    assert all(module.training for module in trainer.objective.modules())
    trainer.step(parts, 0, 0)
    trainer.begin_epoch(1)
    before = [module.running_mean.clone() for module in norms]
    trainer.step(parts, 1, 0)
    assert all(torch.equal(module.running_mean, mean) for module, mean in zip(norms, before, strict=True))
    others = [module for module in trainer.objective.modules() if module not in norms]
    assert all(module.training for module in others)


def test_frozen_parameters_stay(tiny_data: Path) -> None:
    trainer, parts = prepared(tiny_data, groups={"network": {"frozen": True}})
    before = {name: value.clone() for name, value in trainer.objective.named_parameters()}
    trainer.step(parts, 0, 0)
    moved = {name for name, value in trainer.objective.named_parameters() if not torch.equal(value, before[name])}
    assert moved == {"head.weight", "head.bias"}
    norms = [module for module in trainer.objective.modules() if isinstance(module, nn.BatchNorm2d)]
    assert not any(module.running_mean.any() for module in norms)  # frozen as well


def test_a_loss_that_is_not_finite_leaves_the_weights_alone(tiny_data: Path) -> None:
    trainer, parts = prepared(tiny_data)
    before = {name: value.clone() for name, value in trainer.objective.named_parameters()}
    broken = [(parts[0][0] * float("nan"), parts[0][1])]
    assert trainer.step(broken, 0, 0).loss != trainer.step(broken, 0, 0).loss  # NaN
    assert all(torch.equal(value, before[name]) for name, value in trainer.objective.named_parameters())


def test_channels_last_leaves_other_tensors_alone() -> None:
    network = nn.Module()
    for dimensions in (1, 3, 4, 5):
        network.register_buffer(f"b{dimensions}", torch.zeros(*range(2, 2 + dimensions)))
    to_channels_last(network)
    assert network.b4.is_contiguous(memory_format=torch.channels_last)
    assert network.b5.is_contiguous()


def test_numbers_that_only_some_parts_have_are_no_error(tiny_data: Path) -> None:
    trainer, parts = prepared(tiny_data, accumulate=2)
    real, calls = trainer.network, []

    def network(*given: Any) -> Loss:
        calls.append(1)
        value, numbers = real(*given)
        return Loss(value, {**numbers, "rare": torch.tensor(4.0)} if len(calls) == 1 else numbers)

    trainer.network = network
    assert trainer.step(parts, 0, 0).numbers["rare"] == 2.0


def test_single_numbers_are_named_by_their_last_part() -> None:
    network = nn.ModuleDict({"a": nn.Module(), "b": nn.Module(), "c": nn.Linear(2, 2)})
    for part, name in (("a", "t"), ("b", "t"), ("b", "scale")):
        network[part].register_parameter(name, nn.Parameter(torch.tensor(2.0)))
    assert scalar_parameters(network) == {"a.t": 2.0, "b.t": 2.0, "scale": 2.0}
