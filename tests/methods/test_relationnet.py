"""The two losses of RelationNet."""

import pytest
import torch

import deepbdc
from deepbdc.backbones import create_backbone
from deepbdc.methods.relationnet import relation_loss
from deepbdc.stages import TrainingEpisode


def test_mean_squared_error_by_hand() -> None:
    """Sigmoids 0.5 and 0.75 for a query of class 0, 0.25 and 0.5 for one of class 1."""
    third = torch.tensor(3.0).log()
    scores = torch.stack([torch.stack([third * 0, third]), torch.stack([-third, third * 0])])
    loss, numbers = relation_loss(scores, torch.tensor([0, 1]))
    assert float(loss) == pytest.approx((0.25 + 0.5625 + 0.0625 + 0.25) / 4)
    assert float(numbers["accuracy"]) == 50
    smoothed = relation_loss(scores, torch.tensor([0, 1]), label_smoothing=0.2).value
    assert float(smoothed) == pytest.approx((0.4**2 + 0.65**2 + 0.15**2 + 0.4**2) / 4)


def test_the_loss_is_an_option(generator: torch.Generator) -> None:
    images = torch.rand(8, 3, 16, 16, generator=generator)
    episode = TrainingEpisode(images, torch.tensor([0, 1, 0, 1]), torch.tensor([0, 1, 1, 0]), torch.tensor([3, 5]))
    values = {}
    for loss in ("mse", "cross_entropy"):
        torch.manual_seed(0)
        backbone = create_backbone("conv4", width=0.125, removed_downsamplings=2)
        method = deepbdc.create_method("relationnet", backbone, loss=loss)
        values[loss] = method.episode_loss(episode).value.item()
        assert set(method.parameter_groups()) == {"network", "relation"}
    assert values["cross_entropy"] == pytest.approx(0.693, abs=0.05)  # nearly equal scores at the start
    assert values["mse"] == pytest.approx((0.27**2 + 0.73**2) / 2, abs=0.05)  # sigmoid(1) = 0.73 for all
    with pytest.raises(ValueError, match="loss must be one of mse, cross_entropy"):
        deepbdc.create_method("relationnet", "conv4", loss="hinge")
