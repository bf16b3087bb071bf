"""The two stages of S2M2, and what passes from the first to the second."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from deepbdc.errors import UserError
from deepbdc.methods.s2m2 import ManifoldMixup
from deepbdc.recipes import load_recipe, recipe_from_dict
from deepbdc.stages import Classification
from deepbdc.stages.losses import MixupSettings, RotationSettings
from deepbdc.training.run import build_objective
from tests.training import tiny

ROTATION = {"own_weight": 0, "losses": {"rotation": {"weight": 0.5, "class_weight": 1.0}}}


def stages(**options: object) -> tuple[Classification, ManifoldMixup]:
    content = tiny.recipe("s2m2", options=options, dropout=0.0).as_dict()
    content["pretrain"] |= ROTATION
    recipe = recipe_from_dict(content)
    first, second = (build_objective(recipe, stage, classes=6).eval() for stage in recipe.trainings)
    assert isinstance(first, Classification)
    assert isinstance(second, ManifoldMixup)
    return first, second


@pytest.fixture
def images(generator: torch.Generator) -> Tensor:
    return torch.rand(8, 3, 16, 16, generator=generator)


LABELS = torch.tensor([0, 5, 2, 2, 1, 3, 4, 0])


def naive_rotation(objective: Classification, images: Tensor, labels: Tensor) -> Tensor:
    """0.5 · (cross-entropy of turns + cross-entropy of classes) of all turns of all images."""
    total = torch.zeros(())
    for turn in range(4):
        rows = objective.method.embed(images.rot90(turn, (2, 3)))
        turns = objective.losses["rotation"].head.linear(rows)
        total = (
            total + cross_entropy(turns, torch.full((len(rows),), turn)) + cross_entropy(objective.head(rows), labels)
        )
    return total / 8


def test_the_first_stage_sees_four_sides(images: Tensor) -> None:
    first, _ = stages()
    torch.testing.assert_close(first(images, LABELS).value, naive_rotation(first, images, LABELS))


def test_the_second_stage_mixes_and_turns_a_quarter(images: Tensor) -> None:
    _, second = stages()
    for seed in range(6):
        torch.manual_seed(seed)
        loss = second(images, LABELS).value
        torch.manual_seed(seed)
        share = torch.distributions.Beta(torch.tensor(2.0), torch.tensor(2.0)).sample()
        layer, order, chosen = int(torch.randint(4, ())), torch.randperm(8), torch.randperm(8)[:2]
        x = images
        for number, block in enumerate(second.method.embedding.backbone.blocks_in_order()):
            x = share * x + (1 - share) * x[order] if number == layer else x
            x = block(x)
        scores = second.head(second.method.embedding.pool(x))
        mixed = share * cross_entropy(scores, LABELS) + (1 - share) * cross_entropy(scores, LABELS[order])
        torch.testing.assert_close(loss, mixed + naive_rotation(second, images[chosen], LABELS[chosen]))


def test_the_losses_of_the_second_stage_are_those_of_the_paper_unless_a_recipe_has_others() -> None:
    settings = tiny.recipe("s2m2").stages["mixup"]
    assert settings.own_weight == 0
    assert settings.losses == {
        "mixup": MixupSettings(alpha=2.0, layers=(0, 1, 2, 3)),
        "rotation": RotationSettings(weight=0.5, share=0.25, class_weight=1.0),
    }
    other = load_recipe("glyphs/s2m2", ["mixup.losses={mixup: {layers: [0]}}"]).stages["mixup"]
    assert other.losses == {"mixup": MixupSettings(layers=(0,))}


def test_all_heads_pass_to_the_second_stage() -> None:
    first, second = stages()
    assert not torch.equal(first.head.weight, second.head.weight)
    second.continue_from(first)
    weights = first.state_dict()
    assert weights.keys() == second.state_dict().keys()
    for name, value in second.state_dict().items():
        assert torch.equal(value, weights[name]), name


def test_the_head_is_a_cosine_with_gains_or_linear(images: Tensor) -> None:
    first, _ = stages(scale=3.0)
    rows = first.method.embed(images)
    expected = 3 * first.head.gain * torch.cosine_similarity(rows[:, None], first.head.weight[None], dim=2)
    torch.testing.assert_close(first.head(rows), expected)
    linear, _ = stages(head="linear")
    torch.testing.assert_close(linear.head(rows), rows @ linear.head.weight.T + linear.head.bias)
    with pytest.raises(UserError, match="head must be one of cosine, linear"):
        stages(head="quadratic")
