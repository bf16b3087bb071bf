"""The losses that a recipe adds by name: against naive twins, with every method, and when a training is resumed."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import deepbdc
from deepbdc.data.loading import load_dataset
from deepbdc.errors import UserError
from deepbdc.methods.base import methods
from deepbdc.recipes import Recipe, load_recipe, recipe_from_dict
from deepbdc.stages import Classification, Loss, Process, losses
from deepbdc.stages.losses import RotationHead, feature_count, rotation_loss
from deepbdc.stages.objectives import Objective
from deepbdc.training.devices import DeviceOptions, start
from deepbdc.training.loop import Trainer
from deepbdc.training.run import build_batches, build_objective, train
from deepbdc.weight_files import load
from tests.stages.test_objectives import naive_distillation
from tests.training import tiny

ALL: dict[str, Any] = {
    "rotation": {"weight": 0.5, "share": 0.5, "class_weight": 1.0},
    "mixup": {"alpha": 2.0, "layers": [0, 1, 4]},
    "consistency": {"weight": 2.0, "view": "rotation", "both_ways": True},
}
IN_EPISODES: dict[str, Any] = {"rotation": {"weight": 0.5}, "consistency": {"view": "flip"}}


def with_losses(method: str, stage: str, chosen: dict[str, Any], **changes: Any) -> Recipe:
    content = tiny.recipe(method, dropout=0.0).as_dict()
    content[stage] |= {"losses": chosen, **changes}
    return recipe_from_dict(content)


def objective_of(method: str, stage: str, chosen: dict[str, Any], **changes: Any) -> Objective:
    recipe = with_losses(method, stage, chosen, **changes)
    training = next(entry for entry in recipe.trainings if entry.name == stage)
    return build_objective(recipe, training, classes=6).eval()


@pytest.fixture
def images(generator: torch.Generator) -> Tensor:
    return torch.rand(8, 3, 16, 16, generator=generator)


LABELS = torch.tensor([0, 5, 2, 2, 1, 3, 4, 0])


def parts_of(loss: Loss) -> dict[str, float]:
    return {name: float(value) for name, value in loss.numbers.items()}


def test_without_losses_nothing_is_added(images: Tensor) -> None:
    plain, extended = objective_of("protonet", "pretrain", {}), objective_of("protonet", "pretrain", ALL)
    assert not plain.losses
    assert not any(name.startswith("losses") for name in plain.state_dict())
    weights = extended.state_dict()
    for name, value in plain.state_dict().items():  # losses with weights of their own do not change the others
        assert torch.equal(value, weights[name]), name
    assert parts_of(plain(images, LABELS)).keys() == {"accuracy"}


def test_rotation_is_the_cross_entropy_of_turned_images(images: Tensor) -> None:
    objective = objective_of("protonet", "pretrain", {"rotation": {"weight": 0.5, "class_weight": 0.25}})
    assert isinstance(objective, Classification)
    loss = objective(images, LABELS)
    head = objective.losses["rotation"].head.linear
    turn_losses, class_losses, right = [], [], 0
    for turn in range(4):
        for image, label in zip(images, LABELS, strict=True):
            pixels = image.clone()
            for _ in range(turn):  # 90 degrees counter-clockwise: new[i, j] = old[j, size - 1 - i]
                pixels = torch.stack([pixels[:, :, 15 - row] for row in range(16)], dim=1)
            row = objective.method.embed(pixels[None])
            scores = row @ head.weight.T + head.bias
            turn_losses.append(cross_entropy(scores, torch.tensor([turn])))
            right += int(scores.argmax()) == turn
            class_losses.append(cross_entropy(objective.logits(row), label[None]))
    own = cross_entropy(objective.logits(objective.method.embed(images)), LABELS)
    turned = torch.stack(turn_losses).mean()
    torch.testing.assert_close(loss.value, own + 0.5 * (turned + 0.25 * torch.stack(class_losses).mean()))
    numbers = parts_of(loss)
    assert numbers["rotation"] == pytest.approx(turned.item(), rel=1e-5)
    assert numbers["rotation_accuracy"] == pytest.approx(100 * right / 32)
    assert numbers.keys() == {"accuracy", "rotation", "rotation_accuracy", "rotation_class_accuracy"}


def test_a_share_of_the_images_is_rotated(images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    objective = objective_of("protonet", "pretrain", {"rotation": {"share": 0.25, "class_weight": 1.0}}, own_weight=0)
    asked: list[Tensor] = []
    real = objective.method.features
    monkeypatch.setattr(objective.method, "features", lambda given: asked.append(given) or real(given))
    torch.manual_seed(3)
    loss = objective(images, LABELS)
    (turned,) = asked
    assert turned.shape == (8, 3, 16, 16)
    torch.manual_seed(3)
    chosen = torch.randperm(8)[:2]
    assert torch.equal(turned[:2], images[chosen])
    assert torch.equal(turned[2:4], images[chosen].rot90(1, (2, 3)))
    rows = real(turned)
    expected = rotation_loss(objective.losses["rotation"].head(rows)).value
    expected = expected + cross_entropy(objective.logits(rows), LABELS[chosen].repeat(4))
    torch.testing.assert_close(loss.value, expected)


@pytest.mark.parametrize("layer", [0, 1, 3, 4])
def test_mixup_mixes_a_layer_and_the_loss(layer: int, images: Tensor) -> None:
    chosen = {"mixup": {"alpha": 0.7, "layers": [layer], "weight": 2.0}}
    objective = objective_of("protonet", "pretrain", chosen, own_weight=0, label_smoothing=0.1)
    torch.manual_seed(5)
    loss = objective(images, LABELS)
    torch.manual_seed(5)
    share = float(torch.distributions.Beta(torch.tensor(0.7), torch.tensor(0.7)).sample())
    torch.randint(1, ())
    order = torch.randperm(8)
    backbone, x = objective.method.embedding.backbone, images
    for number, block in enumerate([*backbone.blocks, nn.Identity()]):
        if number == layer:
            x = torch.stack([share * x[i] + (1 - share) * x[order[i]] for i in range(8)])
        x = block(x)
    scores = objective.logits(objective.method.embedding.pool(x))
    expected = sum(
        share * cross_entropy(row, LABELS[i], label_smoothing=0.1)
        + (1 - share) * cross_entropy(row, LABELS[order[i]], label_smoothing=0.1)
        for i, row in enumerate(scores)
    )
    torch.testing.assert_close(loss.value, 2 * expected / 8)
    assert parts_of(loss) == {"mixup": pytest.approx(expected.item() / 8)}
    plain = objective.predict(images)
    torch.testing.assert_close(plain, objective.logits(objective.method.embed(images)))  # nothing is mixed afterwards


def naive_with_margin(name: str, scores: Tensor, labels: Tensor) -> Tensor:
    """Scores whose right class has the margin of the method, image by image."""
    found = scores.detach().clone()
    for row, label in zip(found, labels.tolist(), strict=True):
        if name == "neg_cosine":
            row[label] = 30 * (row[label] / 30 + 0.25)
        elif row[label] > 0:
            row[label] = 20 * torch.cos(torch.acos(row[label] / 20) + 0.25)
    return found


@pytest.mark.parametrize(("name", "options"), [("neg_cosine", {"margin": -0.25}), ("aa", {"base_margin": 0.25})])
def test_losses_that_compare_scores_with_labels_have_the_margin_of_the_method(
    name: str, options: dict[str, float], images: Tensor
) -> None:
    chosen = {"rotation": {"class_weight": 1.0}, "mixup": {}, "consistency": {}}
    content = with_losses(name, "pretrain", chosen, own_weight=0).as_dict() | {"options": options}
    recipe = recipe_from_dict(content)
    objective = build_objective(recipe, recipe.trainings[0], classes=6).eval()
    assert isinstance(objective, Classification)
    torch.manual_seed(5)
    found = {key: objective.losses[key](objective.part(images, LABELS)).value.detach() for key in chosen}
    torch.manual_seed(5)
    turned = torch.cat([images.rot90(turn, (2, 3)) for turn in range(4)])
    rows, labels = objective.method.embedding(turned), LABELS.repeat(4)
    classes = cross_entropy(naive_with_margin(name, objective.logits(rows), labels), labels)
    turns = rotation_loss(objective.losses["rotation"].head(rows)).value
    torch.testing.assert_close(found["rotation"], turns.detach() + classes)

    share = float(torch.distributions.Beta(torch.tensor(2.0), torch.tensor(2.0)).sample())
    torch.randint(1, ())
    order = torch.randperm(8)
    scores = objective.logits(objective.method.embedding(share * images + (1 - share) * images[order]))
    own, other = (cross_entropy(naive_with_margin(name, scores, wanted), wanted) for wanted in (LABELS, LABELS[order]))
    torch.testing.assert_close(found["mixup"], share * own + (1 - share) * other)

    first, second = (objective.logits(objective.method.embedding(view)) for view in (images, images.flip(3)))
    expected = naive_distillation(second.double(), first.double(), 1.0)  # no labels, so no margin
    assert float(found["consistency"]) == pytest.approx(expected, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("name", ["resnet10", "resnet12"])
def test_mixup_works_after_every_block(name: str) -> None:
    content = with_losses("good_embed", "pretrain", {}).as_dict()
    content |= {"backbone": {"name": name, "width": 0.1}, "size": 32}
    found = set()
    for layer in range(6 if name == "resnet10" else 5):
        content["pretrain"] |= {"losses": {"mixup": {"layers": [layer]}}, "own_weight": 0}
        recipe = recipe_from_dict(content)
        objective = build_objective(recipe, recipe.trainings[0], classes=6).eval()
        torch.manual_seed(0)
        found.add(float(objective(torch.rand(4, 3, 32, 32), LABELS[:4]).value.detach()))
    assert len(found) == (6 if name == "resnet10" else 5)


@pytest.mark.parametrize("both_ways", [False, True])
def test_consistency_is_the_divergence_of_two_predictions(both_ways: bool, images: Tensor) -> None:
    chosen = {"consistency": {"temperature": 3.0, "both_ways": both_ways}}
    objective, images = objective_of("protonet", "pretrain", chosen, own_weight=0).double(), images.double()
    loss = objective(images, LABELS)
    first, second = (objective.logits(objective.method.embed(view)) for view in (images, images.flip(3)))
    expected = naive_distillation(second, first, 3.0)
    if both_ways:
        expected = (expected + naive_distillation(first, second, 3.0)) / 2
    assert float(loss.value.detach()) == pytest.approx(expected)
    assert parts_of(loss) == {"consistency": pytest.approx(expected)}
    loss.value.backward()
    found = objective.head.weight.grad
    target = first if both_ways else first.detach()
    p, q = (target / 3).softmax(1), (second / 3).softmax(1)
    direct = (p * (p / q).log()).sum() / 8
    if both_ways:
        direct = (direct + (q * (q / p).log()).sum() / 8) / 2
    (wanted,) = torch.autograd.grad(9 * direct, objective.head.weight)
    torch.testing.assert_close(found, wanted)


def test_each_image_is_turned_by_a_random_number_of_quarters(images: Tensor) -> None:
    loss = objective_of("protonet", "pretrain", {"consistency": {"view": "rotation"}}).losses["consistency"]
    torch.manual_seed(2)
    turned = loss._view(images)
    torch.manual_seed(2)
    turns = torch.randint(1, 4, (8,)).tolist()
    assert len(set(turns)) > 1
    for image, turn, found in zip(images, turns, turned, strict=True):
        assert torch.equal(found, image.rot90(turn, (1, 2)))


def test_in_an_episode_the_predictions_are_those_of_the_queries(images: Tensor) -> None:
    objective = objective_of("protonet", "meta", IN_EPISODES)
    support_labels, query_labels = torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1, 1, 2])
    loss = objective(images, support_labels, query_labels, torch.tensor([4, 0, 2]))

    def scores(view: Tensor) -> Tensor:
        rows = objective.method.embed(view)
        return -((rows[3:, None] - rows[None, :3]) ** 2).sum(dim=2)

    turned = torch.cat([images.rot90(turn, (2, 3)) for turn in range(4)])
    turns = objective.losses["rotation"].head(objective.method.embed(turned))
    expected = cross_entropy(scores(images), query_labels) + 0.5 * cross_entropy(
        turns, torch.arange(4).repeat_interleave(8)
    )
    expected = expected + naive_distillation(scores(images.flip(3)), scores(images), 1.0)
    torch.testing.assert_close(loss.value, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("name", deepbdc.list_methods())
def test_every_method_takes_them_in_every_stage(name: str, precision: str, tiny_data: Path) -> None:
    data = load_dataset(tiny_data, "train")
    fabric = start(DeviceOptions(accelerator="cpu", devices=1), precision)
    content = tiny.recipe(name, precision=precision).as_dict()
    for stage, kind in methods.find(name).objectives.items():
        if kind.takes_losses:
            content[stage] |= {"losses": IN_EPISODES if "episodes" in content[stage] else ALL}
    recipe, objective = recipe_from_dict(content), None
    for stage in recipe.trainings[:2]:
        objective = build_objective(recipe, stage, len(data.class_names), objective)
        trainer = Trainer(fabric, recipe, stage, objective)
        batches = build_batches(recipe, stage, data, objective.method, Process())
        if not stage.settings.losses:
            continue
        before = objective.losses["rotation"].head.linear.weight.clone()
        result = trainer.step([batches.load(0, 0, 0)], 0, 0)
        assert {"rotation", "rotation_accuracy", "consistency"} <= result.numbers.keys()
        assert all(torch.tensor(value).isfinite() for value in (result.loss, *result.numbers.values()))
        assert all(value.grad.isfinite().all() for value in objective.parameters() if value.grad is not None)
        assert not torch.equal(objective.losses["rotation"].head.linear.weight, before)
        groups = trainer.optimiser.param_groups
        (heads,) = [group["params"] for group in groups if group["name"] == "head"]
        assert any(value is objective.losses["rotation"].head.linear.weight for value in heads)


def test_a_run_with_losses_resumes_bit_for_bit_and_logs_them(
    tiny_data: Path, tmp_path: Path, power_cut: Callable[..., None]
) -> None:
    content = with_losses("protonet", "pretrain", ALL, epochs=2, milestones=[]).as_dict()
    content["meta"] |= {"epochs": 1, "losses": IN_EPISODES}
    recipe = recipe_from_dict(content | {"dropout": 0.5, "channels_last": True})
    train(recipe, tmp_path / "whole", data=tiny_data, quiet=True)
    power_cut(4, 14)
    for resume in (False, True):
        with pytest.raises(RuntimeError, match="power cut"):
            train(recipe, tmp_path / "cut", data=tiny_data, quiet=True, checkpoint_every=0.0, resume=resume)
    train(recipe, tmp_path / "cut", data=tiny_data, quiet=True, resume=True)
    for file in ("checkpoints/pretrain.safetensors", "model.safetensors"):
        whole, cut = (load(tmp_path / folder / file)[0] for folder in ("whole", "cut"))
        assert whole.keys() == cut.keys()
        assert "losses.rotation.head.linear.weight" in whole
        assert all(torch.equal(value, cut[key]) for key, value in whole.items())
    lines = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    epochs = {line["stage"]: line for line in lines if line["kind"] == "epoch"}
    assert {"rotation", "rotation_accuracy", "consistency"} <= epochs["meta"].keys()
    assert {"rotation", "rotation_class_accuracy", "mixup", "consistency"} <= epochs["pretrain"].keys()


def test_a_student_can_have_losses(tiny_data: Path, tmp_path: Path) -> None:
    content = with_losses("good_embed", "distill", ALL, epochs=1, milestones=[], generations=1).as_dict()
    content["pretrain"] |= {"epochs": 1, "milestones": []}
    train(recipe_from_dict(content), tmp_path / "run", data=tiny_data, quiet=True)
    assert '"mixup": ' in (tmp_path / "run" / "log.jsonl").read_text()


@pytest.mark.parametrize(
    ("stage", "chosen", "message"),
    [
        ("pretrain", {"rotatoin": {}}, r"pretrain\.losses: no loss is called 'rotatoin': did you mean 'rotation'"),
        ("pretrain", {"rotation": {"wait": 1}}, r"'pretrain\.losses\.rotation\.wait' that does not exist"),
        ("pretrain", {"rotation": {"weight": "a"}}, r"pretrain\.losses\.rotation\.weight must be a finite number"),
        ("pretrain", {"rotation": {"weight": 0}}, r"pretrain\.losses\.rotation\.weight must be positive.*null leaves"),
        ("pretrain", {"rotation": {"share": 2}}, r"rotation\.share must be above 0 and at most 1"),
        ("pretrain", {"rotation": {"class_weight": -1}}, r"rotation\.class_weight must not be negative"),
        ("pretrain", {"rotation": 0.5}, r"pretrain\.losses\.rotation must hold keys and values"),
        ("pretrain", {"mixup": {"alpha": 0}}, r"mixup\.alpha must be positive"),
        ("pretrain", {"mixup": {"layers": []}}, r"mixup\.layers must be one or more"),
        ("pretrain", {"consistency": {"view": "up"}}, r"consistency\.view must be one of flip, rotation, none"),
        ("pretrain", {"consistency": {"temperature": 0}}, r"consistency\.temperature must be positive"),
        ("meta", {"mixup": {}}, r"meta\.losses\.mixup mixes labels .* a stage without episodes"),
        ("meta", {"rotation": {"class_weight": 1}}, r"meta\.losses\.rotation\.class_weight .* without episodes"),
    ],
)
def test_wrong_settings_are_explained(stage: str, chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        with_losses("protonet", stage, chosen)


def test_the_weight_of_the_own_loss_is_checked() -> None:
    with pytest.raises(UserError, match=r"pretrain\.own_weight .* only beside other losses"):
        with_losses("protonet", "pretrain", {}, own_weight=0)
    with pytest.raises(UserError, match=r"pretrain\.own_weight must not be negative"):
        with_losses("protonet", "pretrain", ALL, own_weight=-1)


def test_what_does_not_fit_the_method_is_found_before_the_training(tiny_data: Path, tmp_path: Path) -> None:
    recipe = with_losses("good_embed", "distill", {"mixup": {"layers": [0, 5]}})
    with pytest.raises(UserError, match=r"distill\.losses\.mixup\.layers: the backbone has 4 blocks"):
        train(recipe, tmp_path / "run", data=tiny_data, quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_stage_that_cannot_add_losses_says_so() -> None:
    class Other(Classification):
        takes_losses = False

    recipe = with_losses("protonet", "pretrain", ALL)
    objective = objective_of("protonet", "pretrain", {})
    with pytest.raises(UserError, match="stretch: losses cannot be added to this stage"):
        Other.check(recipe.stages["pretrain"], objective.method, "stretch")


def test_losses_come_back_from_files_and_can_be_overridden(tmp_path: Path) -> None:
    recipe = with_losses("protonet", "pretrain", ALL)
    assert recipe_from_dict(json.loads(json.dumps(recipe.as_dict()))) == recipe
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe.as_yaml(), encoding="utf-8")
    assert load_recipe(path) == recipe
    changed = load_recipe(path, ["pretrain.losses.rotation.weight=3", "pretrain.losses.mixup=null"])
    chosen = changed.stages["pretrain"].losses
    assert chosen.keys() == {"rotation", "consistency"}
    assert chosen["rotation"] == replace(recipe.stages["pretrain"].losses["rotation"], weight=3.0)


def test_the_head_of_the_turns_averages_maps(generator: torch.Generator) -> None:
    head = RotationHead(5, relu=True)
    maps = torch.randn(8, 5, 2, 3, generator=generator)
    torch.testing.assert_close(head(maps), head(maps.mean(dim=(2, 3))))
    assert bool((head(maps) >= 0).all())
    assert feature_count(deepbdc.create_method("dn4", "conv4")) == 64
    assert losses.names() == ["consistency", "mixup", "rotation"]


def test_the_example_of_the_page_works(images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "recipes.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    monkeypatch.setattr(losses, "_factories", dict(losses._factories))
    exec(example, {"__name__": "example"})
    objective = objective_of("protonet", "pretrain", {"entropy": {"temperature": 2.0}}, own_weight=0)
    p = (objective.predict(images) / 2).softmax(dim=1)
    torch.testing.assert_close(objective(images, LABELS).value, -(p * p.log()).sum() / 8)
