"""Associative alignment against a plain twin, which training images are related, and where a run finds them."""

import copy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import deepbdc
from deepbdc.backbones import create_backbone
from deepbdc.cli import main
from deepbdc.data.loading import load_dataset
from deepbdc.evaluation import evaluate
from deepbdc.feature_bank import Pictures
from deepbdc.methods.aa import AssociativeAlignment
from deepbdc.methods.base import TrainingClasses
from deepbdc.preprocessing import Preprocessing
from deepbdc.recipes import recipe_from_dict
from deepbdc.runs import load_run
from deepbdc.training.run import train
from tests.training import tiny

SIZE = tiny.SIZE


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def create(**options: object) -> AssociativeAlignment:
    torch.manual_seed(0)
    backbone = create_backbone("conv4", width=0.0625, removed_downsamplings=2)
    given = {"steps": 2, "first_steps": 3, "related_images": 4, "rate": 0.01, "first_rate": 0.02, **options}
    method = deepbdc.create_method("aa", backbone, preprocessing=Preprocessing(SIZE, SIZE), **given)
    assert isinstance(method, AssociativeAlignment)
    return method.eval()


def cosines(rows: Tensor, vectors: Tensor) -> Tensor:
    return torch.stack([torch.stack([r @ v / r.norm() / v.norm() for v in vectors]) for r in rows])


def loss_of(rows: Tensor, vectors: Tensor, labels: Tensor, scale: float, margin: float) -> Tensor:
    found = cosines(rows, vectors).clamp(-1 + 1e-9, 1 - 1e-9)
    moved = torch.cos(torch.acos(found) + margin)
    right = torch.nn.functional.one_hot(labels, len(vectors)).bool() & (found > 0)
    return cross_entropy(scale * torch.where(right, moved, found), labels)


def naive(method: AssociativeAlignment, images: Tensor, labels: Tensor, query: Tensor) -> Tensor:
    """One episode by the words of the docstring; related images are found one by one."""
    assert method.base is not None
    data, way, margin, rate = method.base.dataset, int(labels.max()) + 1, 0.001, method.rate
    pictures = Pictures(data, method.embedding.preprocessing).rows(np.arange(len(data))).to(images)
    network = copy.deepcopy(method.embedding)
    with torch.no_grad():
        vectors = method.classifier.fit(network(images)[None], labels[None], way)[0]
        near = cosines(network(pictures), vectors)
    taken_for = near.argmax(dim=1).tolist()
    of_class: dict[int, list[int]] = {}
    for place, label in enumerate(data.labels.tolist()):
        of_class.setdefault(label, []).append(place)
    shares = {
        base: [
            sum((taken_for[place] == label) + 1e-4 * float(near[place, label]) for place in places) / len(places)
            for label in range(way)
        ]
        for base, places in of_class.items()
    }
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).tolist()
    related: list[list[int]] = []
    for label in range(way):
        mine = [base for base, share in shares.items() if max(share) == share[label]]
        mine = sorted(mine, key=lambda base: -shares[base][label])[: method.related_classes]
        places = {place for base in mine for place in of_class[base] if taken_for[place] == label}
        related.append([place for place in order if place in places])
    count = min(4, min(len(places) for places in related if places))
    vectors = vectors.clone().requires_grad_()
    network.requires_grad_(True)
    align = torch.optim.Adam(network.parameters(), lr=rate)
    separate = torch.optim.Adam([vectors], lr=rate)
    fit = torch.optim.Adam([*network.parameters(), vectors], lr=rate)
    for step in range(method.steps):
        chosen, of = [], []
        for label, places in enumerate(related):
            for number in range(count if places else 0):
                chosen.append(places[(step * count + number) % len(places)])
                of.append(label)
        known, drawn = torch.tensor(of), pictures[chosen]
        network.train(method.settings["batch_norm"] == "batch")
        rows = network(torch.cat([images, drawn]))
        means = [rows[: len(images)][labels == label].mean(0) for label in range(way)]
        distances = [torch.stack([-(row - mean).square().sum() for mean in means]) for row in rows[len(images) :]]
        for optimiser, training, value in (
            (align, True, lambda distances=distances, known=known: cross_entropy(torch.stack(distances), known)),
            (separate, False, lambda drawn=drawn, known=known: loss_of(network(drawn), vectors, known, 15, margin)),
            (fit, True, lambda: loss_of(network(images), vectors, labels, 15, margin)),
        ):
            network.train(training and method.settings["batch_norm"] == "batch")
            for one in (align, separate, fit):
                one.zero_grad()
            value().backward()
            optimiser.step()
    return 15 * cosines(network.eval()(query), vectors).detach()


@pytest.fixture
def base(tiny_data: Path) -> TrainingClasses:
    return TrainingClasses(load_dataset(tiny_data, "train"))


@pytest.fixture
def task(tiny_data: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Three new classes with 2 support images and 1 query each, in float64."""
    data = load_dataset(tiny_data, "test")
    places = [np.flatnonzero(data.labels.numpy() == label) for label in range(3)]
    pictures = Pictures(data, Preprocessing(SIZE, SIZE))
    support = pictures.rows(np.concatenate([some[:2] for some in places])).double()
    return support, torch.arange(3).repeat_interleave(2), pictures.rows(np.array([some[5] for some in places])).double()


@pytest.mark.parametrize("batch_norm", ["batch", "running"])
def test_equals_the_twin(batch_norm: str, base: TrainingClasses, task: tuple[Tensor, Tensor, Tensor]) -> None:
    method = create(batch_norm=batch_norm).double()
    method.remember(base)
    torch.testing.assert_close(method.classify(*task), naive(method, *task), rtol=1e-4, atol=1e-4)


def test_the_network_itself_stays_as_it_is(base: TrainingClasses, task: tuple[Tensor, Tensor, Tensor]) -> None:
    method = create().double()
    method.remember(base)
    before = {name: value.clone() for name, value in method.state_dict().items()}
    first, second = method.classify(*task), method.classify(*task)
    assert torch.equal(first, second)
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())


def test_no_dropout_while_the_network_is_fine_tuned(base: TrainingClasses, task: tuple[Tensor, Tensor, Tensor]) -> None:
    method = create(batch_norm="batch").double()
    method.embedding.backbone.blocks.append(torch.nn.Dropout(0.5))
    method.remember(base)
    assert torch.equal(method.classify(*task), method.classify(*task))
    with pytest.raises(ValueError, match="batch_norm must be one of batch, running, got 'mean'"):
        create(batch_norm="mean")


def test_related_images_are_of_the_most_similar_classes() -> None:
    """Eight training images of four classes in the plane, and a task of two classes along the axes."""
    angles = torch.tensor([0.0, 10.0, 15.0, 70.0, 80.0, 90.0, 40.0, 30.0]).deg2rad()
    features = torch.stack([angles.cos(), angles.sin()], dim=1)
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])

    def found(**options: object) -> list[list[int]]:
        return [sorted(images.tolist()) for images in create(**options).related(features, labels, torch.eye(2))]

    assert found(related_classes=1) == [[0, 1], [4, 5]]
    assert found(related_classes=2) == [[0, 1, 6, 7], [4, 5]]
    assert found(related_classes=4) == [[0, 1, 2, 6, 7], [4, 5]]  # of the mixed class 1, only the image that is near
    assert found(related_classes=4, assignment="in_turn") == [[0, 1, 2, 6, 7], []]  # the first class takes all


def test_classes_without_related_images_are_left_out() -> None:
    method = create(related_images=4)
    related = [torch.tensor([7, 3, 9]), torch.tensor([], dtype=torch.long), torch.tensor([1, 2])]
    draws = [method._draw(related, step) for step in range(2)]
    assert [images.tolist() for images, _ in draws] == [[7, 3, 1, 2], [9, 7, 1, 2]]
    assert draws[0][1].tolist() == [0, 0, 2, 2]
    assert len(method._draw([related[1]], 0)[0]) == 0


def test_the_margin_is_for_training_only(base: TrainingClasses) -> None:
    method = create(base_margin=0.5)
    head = method.head(6)
    images, labels = torch.rand(4, 3, SIZE, SIZE), torch.tensor([0, 1, 2, 3])
    with torch.no_grad():
        found = method.batch_loss(head, images, labels)
        expected = loss_of(method.embedding(images), head.weight, labels, 20, 0.5)
    torch.testing.assert_close(found.value, expected, rtol=1e-4, atol=1e-4)


def test_without_training_images_it_says_what_to_do(task: tuple[Tensor, Tensor, Tensor]) -> None:
    with pytest.raises(ValueError, match=r"has none: call method\.remember\(TrainingClasses\(load_dataset"):
        create().double().classify(*task)


def test_a_run_finds_its_training_images_or_says_what_to_give(
    tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = tiny.recipe("aa").as_dict()
    content["pretrain"] |= {"epochs": 1, "milestones": [], "batch_size": 36, "select": "last"}
    content |= {
        "options": {"steps": 1, "first_steps": 1, "related_images": 2},
        "validation": {"episodes": 1, "query": 1, "way": 3},
        "evaluation": {"episodes": 2, "query": 2, "way": 3, "shots": [1]},
    }
    data, other = tmp_path / "tiny.npz", tiny.write_data(tmp_path / "other.npz", seed=1)
    data.write_bytes(tiny_data.read_bytes())
    result = train(recipe_from_dict(content), tmp_path / "run", data=data, quiet=True)
    moved = data.rename(tmp_path / "moved.npz")
    test = load_dataset(moved, "test")
    episodes = {"way": 3, "shot": 1, "query": 2, "episodes": 2}
    with pytest.raises(ValueError, match=r"of aa needs the images of its training classes .*--base DATA"):
        evaluate(load_run(tmp_path / "run").method, test, **episodes)
    command = ["evaluate", str(tmp_path / "run"), "--data", str(moved), "--base"]
    main([*command, str(moved)])
    assert f"{result.results[0].mean:.2f}" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="are not those that this network was trained with"):
        main([*command, str(other)])
    moved.rename(data)
    again = evaluate(load_run(tmp_path / "run").method, test, **episodes)
    assert again.accuracies.tolist() == result.results[0].accuracies.tolist()


def test_other_models_refuse_a_base() -> None:
    with pytest.raises(SystemExit, match="pixels does not need the images of its training classes: omit --base"):
        main(["evaluate", "pixels", "--base", "glyphs"])
