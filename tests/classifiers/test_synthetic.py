"""The classifier of the Δ-encoder against loops and torch.optim.Adam, one task at a time."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, leaky_relu

from deepbdc.classifiers._tasks import sorted_tasks
from deepbdc.classifiers.synthetic import DeltaEncoderClassifier, reconstruction_loss
from tests.classifiers.conftest import MakeEpisodes


def created(features: int = 6, **options: Any) -> DeltaEncoderClassifier:
    """A small classifier whose weights are large enough to make different images."""
    torch.manual_seed(0)
    sizes = {"hidden": 12, "code": 3, "synthetic": 7, "pairs": 20, "epochs": 4, "batch_size": 8} | options
    classifier = DeltaEncoderClassifier(features, **sizes).double().eval()
    for value in classifier.parameters():
        nn.init.normal_(value, std=0.3)
    classifier.codes.normal_()
    return classifier


def decoded(classifier: DeltaEncoderClassifier, reference: Tensor, code: Tensor) -> Tensor:
    first, last = classifier.decoder[0], classifier.decoder[3]
    hidden = leaky_relu(first.weight @ torch.cat([reference, code]) + first.bias, 0.2)  # type: ignore[operator]
    return last.weight @ hidden + last.bias  # type: ignore[operator]


def naive(classifier: DeltaEncoderClassifier, support: Tensor, labels: Tensor, query: Tensor) -> Tensor:
    """Scores of one task with Python loops; random numbers and the order of images are those of the classifier."""
    way, options = int(labels.max()) + 1, classifier.settings
    tasks = sorted_tasks(support[None], labels[None], way, options["seed"])
    images, classes = tasks.support[0], tasks.labels[0]
    draws = tasks.uniform(0, way, options["synthetic"])[0]
    made, answers = [], []
    for label in range(way):
        references = images[classes == label]
        for place in range(options["synthetic"]):
            code = classifier.codes[int(draws[label, place] * options["pairs"])]
            made.append(decoded(classifier, references[place % len(references)], code).detach())
            answers.append(label)
    x, y = torch.cat([torch.stack(made), images]), torch.cat([torch.tensor(answers), classes])
    layer = nn.Linear(x.shape[1], way).double()
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimiser = torch.optim.Adam(layer.parameters(), lr=options["learning_rate"])
    before = float("inf")
    for batches in classifier.batches(tasks, len(x)):
        losses = []
        for batch in batches:
            optimiser.zero_grad()
            loss = cross_entropy(layer(x[batch[0]]), y[batch[0]])
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        mean = sum(losses) / len(losses)
        if mean > before:
            optimiser.param_groups[0]["lr"] *= 0.9
        before = mean
    with torch.no_grad():
        scores: Tensor = layer(query)
    order = [int(classes[images.eq(support[labels == label][0]).all(dim=1)][0]) for label in range(way)]
    return scores[:, order]


@pytest.mark.parametrize("options", [{}, {"learning_rate": 1.0, "epochs": 12}, {"synthetic": 2, "batch_size": 100}])
@pytest.mark.parametrize("shots", [[1, 1, 1], [2, 5, 3]])
def test_agrees_with_torch(make_episodes: MakeEpisodes, shots: list[int], options: dict[str, Any]) -> None:
    support, labels, query = make_episodes(shots, features=6, episodes=3, dtype=torch.float64)
    classifier = created(**options)
    scores = classifier(support, labels, query)
    for episode in range(3):
        expected = naive(classifier, support[episode], labels[episode], query[episode])
        torch.testing.assert_close(scores[episode], expected, rtol=1e-8, atol=1e-8)


def test_the_rate_falls_in_these_tasks(make_episodes: MakeEpisodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the comparison above would not test it."""
    episodes = make_episodes([2, 5, 3], features=6, episodes=3, dtype=torch.float64)
    scores = created(learning_rate=1.0, epochs=12)(*episodes)
    monkeypatch.setattr("deepbdc.classifiers.synthetic._DECAY", 1.0)
    assert not torch.allclose(created(learning_rate=1.0, epochs=12)(*episodes), scores)


def test_scores_depend_on_nothing_but_the_task(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([2, 3, 1], features=6, episodes=4, dtype=torch.float64)
    classifier = created()
    scores = classifier(support, labels, query)
    torch.testing.assert_close(classifier(support[2], labels[2], query[2]), scores[2])
    order, names = torch.tensor([5, 2, 0, 1, 4, 3]), torch.tensor([1, 2, 0])
    shuffled = classifier(support[:, order], names[labels[:, order]], query)
    torch.testing.assert_close(shuffled[..., names], scores)


def test_the_generator_works_in_pieces(make_episodes: MakeEpisodes, monkeypatch: pytest.MonkeyPatch) -> None:
    support, labels, query = make_episodes([2, 1], features=6, episodes=2, dtype=torch.float64)
    whole = created()(support, labels, query)
    monkeypatch.setattr("deepbdc.classifiers.synthetic._NUMBERS_AT_A_TIME", 60)
    torch.testing.assert_close(created()(support, labels, query), whole)


def test_without_codes_it_says_what_to_do(make_episodes: MakeEpisodes) -> None:
    episodes = make_episodes([1, 1], features=6)
    with pytest.raises(ValueError, match="remembers no codes of its training classes: train it"):
        DeltaEncoderClassifier(6, hidden=4)(*episodes)


def test_the_loss_is_that_of_the_formula(generator: torch.Generator) -> None:
    images, others = (torch.randn(4, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    total = 0.0
    for x, y in zip(images.tolist(), others.tolist(), strict=True):
        errors = [abs(a - b) for a, b in zip(x, y, strict=True)]
        squares = sum(error**2 for error in errors) + 1e-7
        total += sum(error**2 / squares * error for error in errors)
    torch.testing.assert_close(reconstruction_loss(images, others), torch.tensor(total / 4, dtype=torch.float64))
    assert torch.autograd.gradcheck(reconstruction_loss, (images.requires_grad_(), others.requires_grad_()))


def test_the_code_of_a_pair_and_its_reconstruction(generator: torch.Generator) -> None:
    classifier = created()
    one, other = (torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(2))
    first, last = classifier.encoder[0], classifier.encoder[3]
    hidden = leaky_relu(first.weight @ torch.cat([one, other]) + first.bias, 0.2)  # type: ignore[operator]
    code = classifier.encode(one[None], other[None])[0]
    torch.testing.assert_close(code, last.weight @ hidden + last.bias)  # type: ignore[operator]
    torch.testing.assert_close(classifier.decode(other[None], code[None])[0], decoded(classifier, other, code))
