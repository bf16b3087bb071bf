"""The feature-wise transformation: where it acts, when, and with which spread."""

from pathlib import Path
from typing import Any

import pytest
import torch

import deepbdc
from deepbdc.backbones import create_backbone
from deepbdc.data.loading import load_dataset
from deepbdc.evaluation import evaluate
from deepbdc.methods.gnn_ft import GNNWithFT, feature_wise
from deepbdc.preprocessing import Preprocessing
from deepbdc.recipes import recipe_from_dict
from deepbdc.runs import load_run
from deepbdc.stages import TrainingEpisode
from deepbdc.training.run import train
from tests.training import tiny

ORIGINAL = {"slots": 3, "queries_per_graph": "way", "statistics": "batch"}


def create(backbone: str = "conv4", **options: Any) -> GNNWithFT:
    torch.manual_seed(0)
    network = create_backbone(backbone, width=0.125)
    given = {"reduce_to": 4, "hidden": 4, **options}
    method = deepbdc.create_method("gnn_ft", network, preprocessing=Preprocessing(tiny.SIZE, tiny.SIZE), **given)
    assert isinstance(method, GNNWithFT)
    return method


def test_one_scale_and_shift_for_each_channel(generator: torch.Generator) -> None:
    maps = torch.randn(3, 20_000, 2, 1, generator=generator, dtype=torch.float64)
    changed = feature_wise(0.3, 0.5, maps)
    scale = (changed[0, :, 0] - changed[0, :, 1]) / (maps[0, :, 0] - maps[0, :, 1])
    shift = changed[0, :, 0] - scale * maps[0, :, 0]
    torch.testing.assert_close(changed, maps * scale[..., None] + shift[..., None], rtol=1e-6, atol=1e-6)
    assert float(scale.mean()) == pytest.approx(1, abs=0.01)
    assert float(scale.std()) == pytest.approx(0.3, rel=0.03)
    assert float(shift.mean()) == pytest.approx(0, abs=0.015)
    assert float(shift.std()) == pytest.approx(0.5, rel=0.03)


@pytest.mark.parametrize(
    ("backbone", "names"),
    [
        ("conv4", [f"blocks.{block}.1" for block in range(4)]),
        ("resnet10", ["layer1.0.bn2", *(f"layer{n}.0.{part}" for n in (2, 3, 4) for part in ("bn2", "downsample.1"))]),
        ("resnet12", [f"layer{n}.0.{part}" for n in (1, 2, 3, 4) for part in ("bn3", "downsample.1")]),
    ],
)
def test_it_follows_the_last_norm_of_each_block_and_its_shortcut(backbone: str, names: list[str]) -> None:
    method = create(backbone)
    expected = [method.embedding.backbone.get_submodule(name) for name in names]
    assert [id(norm) for norm in method.transformed_norms()] == [id(norm) for norm in expected]


def test_it_acts_in_training_only(generator: torch.Generator) -> None:
    images = torch.rand(9, 3, tiny.SIZE, tiny.SIZE, generator=generator)
    episode = TrainingEpisode(images, torch.tensor([0, 1, 2]), torch.tensor([0, 1, 2, 0, 1, 2]), torch.arange(3))
    plain, changed = create(scale_spread=0.0, shift_spread=0.0), create(scale_spread=0.3, shift_spread=0.5)
    losses: dict[tuple[str, bool], float] = {}
    with torch.no_grad():
        for name, method in (("plain", plain), ("changed", changed)):
            for mode in (False, True):  # first without, because training moves the running statistics
                torch.manual_seed(0)
                losses[name, mode] = float(method.train(mode).episode_loss(episode).value)
            assert torch.equal(method.train().embed(images), method.embed(images)), "ordinary training is not changed"
    assert losses["plain", False] == losses["changed", False]
    assert losses["plain", True] != losses["changed", True]
    assert not any(module._forward_hooks for module in changed.modules())


def test_no_spread_is_no_change(generator: torch.Generator) -> None:
    method = create(scale_spread=0.0, shift_spread=0.0).train()
    images = torch.rand(4, 3, tiny.SIZE, tiny.SIZE, generator=generator)
    with method.transformation():
        inside = method.embed(images)
    torch.testing.assert_close(inside, method.embed(images))
    with pytest.raises(ValueError, match="spreads must not be negative"):
        create(scale_spread=-1.0)
    with pytest.raises(ValueError, match="cannot be taken apart into blocks"):
        deepbdc.create_method("gnn_ft", "timm/resnet10t")


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_the_original_graph_trains_saves_loads_and_evaluates(precision: str, tiny_data: Path, tmp_path: Path) -> None:
    options = {"reduce_to": 4, "hidden": 4, **ORIGINAL}
    content = tiny.recipe("gnn_ft", options=options, precision=precision).as_dict()
    content["pretrain"] |= {"epochs": 1, "milestones": [], "batch_size": 36}
    content["meta"] |= {"epochs": 1, "episodes": 2, "shot": 2, "select": "last"}
    content["evaluation"] = {"episodes": 4, "query": 3, "way": 3, "shots": [1, 3]}
    result = train(recipe_from_dict(content), tmp_path / "run", data=tiny_data, quiet=True)
    run = load_run(tmp_path / "run")
    for one in result.results:
        again = evaluate(run.method, load_dataset(tiny_data, "test"), 3, one.shot, 3, 4, 0)
        assert again.accuracies.tolist() == one.accuracies.tolist()
        assert again.transductive


def test_only_the_default_is_inductive() -> None:
    assert not create().transductive
    assert not create(slots=3).transductive
    assert create(queries_per_graph="way").transductive
    assert create(statistics="batch").transductive
