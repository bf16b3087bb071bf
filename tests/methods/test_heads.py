"""Baseline++, Neg-Cosine, SimpleShot and the Δ-encoder: what the classifiers alone do not show."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import deepbdc
from deepbdc._fingerprint import weights_fingerprint
from deepbdc.data.loading import load_dataset
from deepbdc.evaluation import evaluate
from deepbdc.methods._base_features import mean_of_rows
from deepbdc.methods._heads import ScaledHead
from deepbdc.methods.base import Method, TrainingClasses
from deepbdc.methods.delta_encoder import DeltaEncoder, DeltaTraining, PairedBatches, random_pairs
from deepbdc.preprocessing import Preprocessing
from deepbdc.recipes import load_recipe
from deepbdc.runs import load_run
from deepbdc.stages import AugmentedImages, BatchSettings, Inputs, Process
from deepbdc.training.run import train
from tests.training import tiny


def create(name: str, **options: Any) -> Method:
    torch.manual_seed(0)
    backbone = deepbdc.create_backbone("conv4", width=0.125, removed_downsamplings=2)
    preprocessing = Preprocessing(tiny.SIZE, tiny.SIZE)
    return deepbdc.create_method(name, backbone, preprocessing=preprocessing, **options).eval()


def cosine(a: list[float], b: list[float]) -> float:
    lengths = [math.sqrt(sum(x * x for x in one)) for one in (a, b)]
    return sum(x * y for x, y in zip(a, b, strict=True)) / lengths[0] / lengths[1]


# Heads of the training classes


@pytest.mark.parametrize("gain", [False, True])
def test_cosine_head(gain: bool, generator: torch.Generator) -> None:
    head = ScaledHead(5, 3, scale=2.0, gain=gain).double()
    if head.gain is not None:
        torch.testing.assert_close(head.gain, head.weight.norm(dim=1))  # it starts as a linear layer of directions
        head.gain.data = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    images = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    gains = [0.5, 1.0, 3.0] if gain else [1.0] * 3
    expected = [
        [2 * g * cosine(z, w) for g, w in zip(gains, head.weight.tolist(), strict=True)] for z in images.tolist()
    ]
    torch.testing.assert_close(head(images), torch.tensor(expected, dtype=torch.float64))
    assert torch.autograd.gradcheck(head, (images.requires_grad_(),))


def test_the_scale_of_baseline_plus_plus_depends_on_the_number_of_classes() -> None:
    method = create("baseline++")
    assert [method.head(classes).scale for classes in (64, 200, 201)] == [2, 2, 10]
    assert create("baseline++", training_scale=7.0).head(64).scale == 7


@pytest.mark.parametrize(("form", "scale"), [("cosine", 30.0), ("softmax", 5.0)])
@pytest.mark.parametrize("margin", [-0.3, 0.0, 0.2])
def test_the_margin_loss_is_that_of_the_formula(
    form: Any, scale: float, margin: float, generator: torch.Generator
) -> None:
    method = create("neg_cosine", form=form, margin=margin).double()
    head = method.head(4).double()
    images = torch.rand(5, 3, tiny.SIZE, tiny.SIZE, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 3, 1, 2, 2])
    loss = method.batch_loss(head, images, labels)
    total, right = 0.0, 0
    for z, label in zip(method.embed(images).tolist(), labels.tolist(), strict=True):
        weights = head.weight.tolist()  # type: ignore[operator]
        if form == "cosine":
            similar = [cosine(z, w) for w in weights]
        else:
            similar = [sum(a * b for a, b in zip(z, w, strict=True)) for w in weights]
            similar = [value - min(similar) for value in similar]  # as the authors do
        logits = [scale * (value - (margin if c == label else 0)) for c, value in enumerate(similar)]
        total += math.log(sum(math.exp(value) for value in logits)) - logits[label]
        right += similar.index(max(similar)) == label
    torch.testing.assert_close(loss.value, torch.tensor(total / 5, dtype=torch.float64))
    assert loss.numbers["accuracy"] == 20 * right  # of the scores without margin


def test_a_negative_margin_lowers_the_loss(generator: torch.Generator) -> None:
    images, labels = torch.rand(6, 3, tiny.SIZE, tiny.SIZE, generator=generator), torch.arange(6) % 3
    head = create("neg_cosine").head(3)
    with torch.no_grad():
        methods = [create("neg_cosine", margin=margin) for margin in (-0.1, 0.0, 0.1)]
        losses = [float(method.batch_loss(head, images, labels).value) for method in methods]
    assert losses[0] < losses[1] < losses[2]


def test_heads_of_tasks() -> None:
    assert "form='linear', scale=1.0, bias=True" in repr(create("baseline").classifier)
    assert "form='cosine', scale=2.0, bias=True, gain=True" in repr(create("baseline++").classifier)
    assert "form='cosine', scale=5.0, bias=False, gain=False" in repr(create("neg_cosine").classifier)
    assert "form='linear', scale=5.0, bias=False" in repr(create("neg_cosine", form="softmax").classifier)


def test_a_bad_form_is_refused() -> None:
    with pytest.raises(ValueError, match="form must be one of cosine, softmax, got 'round'"):
        create("neg_cosine", form="round")
    with pytest.raises(ValueError, match="transform must be one of CL2N, L2N, UN, got 'Z'"):
        create("simpleshot", transform="Z")


# SimpleShot


@pytest.mark.parametrize("transform", ["CL2N", "L2N", "UN"])
def test_simpleshot_against_numpy(transform: Any, tiny_data: Path, generator: torch.Generator) -> None:
    method = create("simpleshot", transform=transform)
    base = load_dataset(tiny_data, "train")
    with torch.no_grad():
        method.remember(TrainingClasses(base))
    rows = method.source(base).rows(np.arange(len(base))).double().numpy()
    support, query = (torch.rand(n, 8, generator=generator, dtype=torch.float64) for n in (5, 4))
    labels = torch.tensor([0, 1, 1, 2, 2])

    def transformed(x: Tensor) -> np.ndarray:
        values: np.ndarray = x.numpy()
        if transform == "CL2N":
            values = values - rows.mean(axis=0)
        return values if transform == "UN" else values / np.linalg.norm(values, axis=1, keepdims=True)

    means = np.stack([transformed(support)[labels.numpy() == c].mean(axis=0) for c in range(3)])
    expected = -((transformed(query)[:, None] - means) ** 2).sum(axis=2)
    found = method.classify(support, labels, query)
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-5, atol=1e-6)  # the mean is in float32


def test_the_mean_is_summed_in_parts(tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = create("baseline").source(load_dataset(tiny_data, "train"))
    whole = mean_of_rows(source, 72)
    torch.testing.assert_close(whole, source.rows(np.arange(72)).mean(dim=0))
    monkeypatch.setattr("deepbdc.methods._base_features._IMAGES_AT_A_TIME", 7)
    torch.testing.assert_close(mean_of_rows(source, 72), whole)


@pytest.mark.parametrize(("name", "kept"), [("simpleshot", "memory.mean"), ("delta_encoder", "classifier.codes")])
def test_a_run_needs_no_training_images(name: str, kept: str, tiny_data: Path, tmp_path: Path) -> None:
    options = {"hidden": 16, "synthetic": 8, "pairs": 30, "epochs": 3} if name == "delta_encoder" else {}
    result = train(tiny.recipe(name, options=options), tmp_path / "run", data=tiny_data, quiet=True)
    method = load_run(tmp_path / "run").method
    again = evaluate(method, load_dataset(tiny_data, "test"), 3, 1, 5, 20, 0)
    assert again.accuracies.tolist() == result.results[0].accuracies.tolist()
    stored = method.state_dict()[kept].clone()
    with torch.no_grad():
        method.remember(TrainingClasses(load_dataset(tiny_data, "train")))  # with the weights of the last epoch
    torch.testing.assert_close(method.state_dict()[kept], stored)
    assert weights_fingerprint(method) == again.weights_fingerprint


# The Δ-encoder


def test_random_pairs_are_two_images_of_a_class() -> None:
    labels = torch.tensor([2, 0, 1, 0, 2, 2, 0, 2])
    ones, others = random_pairs(labels, 500, seed=0)
    assert torch.equal(labels[torch.from_numpy(ones)], labels[torch.from_numpy(others)])
    pairs = {(int(a), int(b)) for a, b in zip(ones, others, strict=True)}
    all_of_them = {(a, b) for a in range(8) for b in range(8) if labels[a] == labels[b] and a != b}
    assert pairs == all_of_them | {(2, 2)}  # the only image of its class is its own partner


def test_each_image_has_a_partner_of_its_class_and_is_one(tiny_data: Path) -> None:
    data = load_dataset(tiny_data, "train")
    images = AugmentedImages(data, Preprocessing(tiny.SIZE, tiny.SIZE), "none")
    batches = PairedBatches(images, BatchSettings(epochs=2, batch_size=10), "delta", 1, Process())
    assert (batches.steps, batches.images_per_step) == (7, 20)
    partners = batches.partners(0)
    assert sorted(partners) == list(range(72))
    assert torch.equal(data.labels[torch.from_numpy(partners)], data.labels)
    assert (partners != batches.partners(1)).mean() > 0.5
    (loaded,) = batches.load(0, 3, 0)
    indices = batches.piece(0, 3, 0)
    torch.testing.assert_close(loaded, images.load(np.concatenate([indices, partners[indices]]), 0))


def test_pairs_are_distributed_over_processes_and_parts(tiny_data: Path) -> None:
    images = AugmentedImages(load_dataset(tiny_data, "train"), Preprocessing(tiny.SIZE, tiny.SIZE), "none")
    settings = BatchSettings(epochs=2, batch_size=12, accumulate=3)
    (whole,) = PairedBatches(images, BatchSettings(epochs=2, batch_size=12), "delta", 1, Process()).load(1, 2, 0)
    found: list[Tensor] = []
    for part in range(3):
        for rank in range(2):
            found += PairedBatches(images, settings, "delta", 1, Process(rank, 2)).load(1, 2, part)
    ones = torch.cat([pair.chunk(2)[0] for pair in found])
    partners = torch.cat([pair.chunk(2)[1] for pair in found])
    torch.testing.assert_close(torch.cat([ones, partners]), whole)


def test_its_stage_leaves_the_network_alone(generator: torch.Generator) -> None:
    method = create("delta_encoder", hidden=16)
    objective = DeltaTraining(Inputs(method, BatchSettings(epochs=1), 6)).train()
    before = {name: value.clone() for name, value in method.embedding.state_dict().items()}
    images = torch.rand(8, 3, tiny.SIZE, tiny.SIZE, generator=generator)
    objective(images).value.backward()
    for name, value in method.embedding.state_dict().items():
        assert torch.equal(value, before[name]), name  # batch norm as well
    graded = {name for name, value in method.named_parameters() if value.grad is not None}
    assert graded == {name for name, _ in method.named_parameters() if name.startswith("classifier.")}
    assert {id(value) for value in method.parameter_groups()["delta"]} == {
        id(value) for value in method.classifier.parameters()
    }


def test_its_network_starts_like_that_of_other_methods() -> None:
    networks = [create(name).embedding.state_dict() for name in ("delta_encoder", "baseline")]
    assert all(torch.equal(value, networks[1][name]) for name, value in networks[0].items())
    states = []
    for name in ("delta_encoder", "baseline"):
        create(name)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)  # so do heads


def test_small_recipes_share_their_pretraining() -> None:
    for folder in ("glyphs", "cifar_fs"):
        shared = load_recipe(f"{folder}/good_embed").stages["pretrain"]
        for name in ("baseline", "baseline++", "neg_cosine", "simpleshot"):
            recipe = load_recipe(f"{folder}/{name}")
            assert recipe.stages == {"pretrain": shared}
        delta = load_recipe(f"{folder}/delta_encoder")
        assert list(delta.stages) == ["pretrain", "delta"]
        assert delta.stages["pretrain"] == shared


def test_a_delta_encoder_remembers_the_codes_of_its_pairs(tiny_data: Path) -> None:
    method = create("delta_encoder", hidden=16, pairs=50)
    assert isinstance(method, DeltaEncoder)
    base = load_dataset(tiny_data, "train")
    with torch.no_grad():
        method.remember(TrainingClasses(base))
    source = method.source(base)
    ones, others = random_pairs(base.labels, 50, 0)
    expected = torch.cat(
        [
            method.classifier.encode(source.rows(a[None]), source.rows(b[None]))
            for a, b in zip(ones, others, strict=True)
        ]
    )
    torch.testing.assert_close(method.classifier.codes, expected.detach())
