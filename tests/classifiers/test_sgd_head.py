"""The SGD head against a layer trained by torch.optim.SGD, one task at a time."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from deepbdc.classifiers._tasks import sorted_tasks
from deepbdc.classifiers.sgd_head import SGDHeadClassifier
from tests.classifiers.conftest import MakeEpisodes


class Layer(nn.Module):
    """One head, written with torch's own weight norm and autograd."""

    def __init__(self, classifier: SGDHeadClassifier, weight: Tensor, offset: Tensor) -> None:
        super().__init__()
        self.settings = classifier.settings
        self.weight = nn.Parameter(weight.clone())
        self.offset = nn.Parameter(offset.clone(), requires_grad=classifier.trains_offset)

    def forward(self, images: Tensor) -> Tensor:
        scale: float = self.settings["scale"]
        if self.settings["form"] == "linear":
            return scale * (images @ self.weight.T + self.offset)
        images = images / (images.norm(dim=-1, keepdim=True) + 1e-6)
        return scale * images @ (self.offset[:, None] * self.weight / self.weight.norm(dim=1, keepdim=True)).T


def trained(classifier: SGDHeadClassifier, support: Tensor, labels: Tensor, query: Tensor) -> Tensor:
    """Logits of one task; the initial weights and the batches are those of the classifier."""
    way, options = int(labels.max()) + 1, classifier.settings
    tasks = sorted_tasks(support[None], labels[None], way, options["seed"])
    images, classes = tasks.support[0], tasks.labels[0]
    weights, offsets = classifier.start(tasks, way)
    layer = Layer(classifier, weights[0], offsets[0, :, 0])
    optimiser = torch.optim.SGD(
        [value for value in layer.parameters() if value.requires_grad],
        lr=options["learning_rate"],
        momentum=options["momentum"],
        dampening=options["dampening"],
        weight_decay=options["weight_decay"],
    )
    for epoch in range(options["epochs"]):
        for batch in classifier.batches(tasks, epoch):
            optimiser.zero_grad()
            cross_entropy(layer(images[batch[0]]), classes[batch[0]]).backward()
            optimiser.step()
    with torch.no_grad():
        scores: Tensor = layer(query)
    return torch.stack([scores[:, classes[images.eq(one).all(dim=1)][0]] for one in first_images(support, labels)], 1)


def first_images(support: Tensor, labels: Tensor) -> list[Tensor]:
    """One image of each class, by which the renumbered classes are recognised."""
    return [support[labels == label][0] for label in range(int(labels.max()) + 1)]


FORMS: list[dict[str, Any]] = [
    {"form": "linear"},
    {"form": "linear", "bias": False, "scale": 5.0},
    {"form": "cosine", "scale": 2.0},
    {"form": "cosine", "scale": 5.0, "gain": False},
]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-3)])
@pytest.mark.parametrize("shots", [[1, 1, 1, 1, 1], [2, 5, 2]])
@pytest.mark.parametrize("features", [3, 60])
@pytest.mark.parametrize("options", FORMS, ids=str)
def test_agrees_with_torch(
    make_episodes: MakeEpisodes,
    options: dict[str, Any],
    features: int,
    shots: list[int],
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    support, labels, query = make_episodes(shots, features, episodes=3, dtype=dtype)
    classifier = SGDHeadClassifier(**options, epochs=12, seed=3)
    scores = classifier(support, labels, query)
    assert scores.dtype == dtype
    for episode in range(3):
        expected = trained(classifier, support[episode], labels[episode], query[episode])
        torch.testing.assert_close(scores[episode], expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "changes",
    [
        {"momentum": 0.0, "dampening": 0.0},
        {"dampening": 0.0, "weight_decay": 0.1},
        {"batch_size": 3},
        {"batch_size": 9},
    ],
    ids=str,
)
@pytest.mark.parametrize("form", ["linear", "cosine"])
def test_every_option_of_sgd_is_that_of_torch(make_episodes: MakeEpisodes, form: Any, changes: dict[str, Any]) -> None:
    support, labels, query = make_episodes([3, 2, 2], features=30, dtype=torch.float64)
    classifier = SGDHeadClassifier(form, epochs=8, **changes)
    expected = trained(classifier, support[0], labels[0], query[0])
    torch.testing.assert_close(classifier(support, labels, query)[0], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", ["linear", "cosine"])
def test_scores_depend_on_nothing_but_the_task(make_episodes: MakeEpisodes, form: Any) -> None:
    support, labels, query = make_episodes([2, 3, 1], features=20, episodes=4, dtype=torch.float64)
    classifier = SGDHeadClassifier(form, epochs=5)
    scores = classifier(support, labels, query)
    alone = classifier(support[2], labels[2], query[2])
    torch.testing.assert_close(alone, scores[2])
    order, names = torch.tensor([5, 2, 0, 1, 4, 3]), torch.tensor([1, 2, 0])
    shuffled = classifier(support[:, order], names[labels[:, order]], query)
    torch.testing.assert_close(shuffled[..., names], scores)
    nearly = classifier(support * (1 + 1e-12), labels, query)  # another machine
    torch.testing.assert_close(nearly, scores)


def test_the_seed_decides(make_episodes: MakeEpisodes) -> None:
    episodes = make_episodes([3, 3], features=10)
    first, again, other = (SGDHeadClassifier(epochs=2, seed=seed)(*episodes) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_every_task_has_its_own_random_numbers(make_episodes: MakeEpisodes) -> None:
    support, labels, _ = make_episodes([1] * 5, features=20, episodes=200)
    tasks = sorted_tasks(support, labels, 5, seed=0)
    classifier = SGDHeadClassifier()
    weights, offsets = classifier.start(tasks, 5)
    assert len(weights.flatten(1).unique(dim=0)) > 190
    for values in (weights, offsets):  # uniform in ±1/√20
        scaled = values * 20**0.5
        assert scaled.abs().max() <= 1
        assert abs(float(scaled.mean())) < 0.06
        assert abs(float(scaled.square().mean()) - 1 / 3) < 0.03
    orders = [torch.cat(classifier.batches(tasks, epoch), dim=1) for epoch in (0, 1)]
    for order in orders:
        assert torch.equal(order.sort(dim=1).values, torch.arange(5).expand(200, 5))
        assert len(order.unique(dim=0)) > 60  # of 120
    assert not torch.equal(*orders)
    assert [batch.shape[1] for batch in classifier.batches(tasks, 0)] == [4, 1]


def test_identical_images_and_images_of_zeros(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([2, 2], features=30)
    support[0, 0] = support[0, 1] = support[0, 2]
    support[0, 3] = 0
    for form in ("linear", "cosine"):
        assert SGDHeadClassifier(form, epochs=3)(support, labels, query).isfinite().all()  # type: ignore[arg-type]


def test_it_learns_and_its_rule_gives_its_scores(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([5] * 5, features=100, episodes=20, queries=50)
    for form, scale in (("linear", 1.0), ("cosine", 5.0)):
        classifier = SGDHeadClassifier(form, scale)  # type: ignore[arg-type]
        scores = classifier(support, labels, query)
        assert (scores.argmax(dim=-1) == torch.arange(50) % 5).float().mean() > 0.8
        torch.testing.assert_close(classifier.rule(support, labels, 5)(query), scores)


@pytest.mark.parametrize(
    "options", [{"form": "round"}, {"momentum": 1.0}, {"dampening": -0.1}, {"weight_decay": -1.0}, {"scale": 0.0}]
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        SGDHeadClassifier(**options)
