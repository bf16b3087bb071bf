"""The category traversal module against loops over images and positions, and gradcheck."""

import pytest
import torch
from torch import Tensor, nn

from deepbdc.classifiers.category_traversal import CategoryTraversalClassifier


def naive(classifier: CategoryTraversalClassifier, support: Tensor, labels: Tensor, query: Tensor) -> Tensor:
    """One episode in evaluation mode, image by image: minus squared distances, added position by position."""
    way = int(labels.max()) + 1
    classes = []
    for label in range(way):
        own = [classifier.concentrator(x[None])[0] for x, y in zip(support, labels.tolist(), strict=True) if y == label]
        classes.append(sum(own) / len(own))
    mean = sum(classes) / way
    largest = classes[0]
    for other in classes[1:]:
        largest = torch.where(other > largest, other, largest)
    mask = classifier.projector(torch.cat([mean, largest])[None])[0]
    hidden, height, width = mask.shape
    scores = torch.zeros(len(query), way, dtype=query.dtype)
    for row in range(height):
        for column in range(width):
            weights = mask[:, row, column].exp()
            weights = hidden * weights / weights.sum()
            for label in range(way):
                own = [
                    classifier.reshaper(x[None])[0, :, row, column] * weights
                    for x, y in zip(support, labels.tolist(), strict=True)
                    if y == label
                ]
                for q, image in enumerate(query):
                    vector = classifier.reshaper(image[None])[0, :, row, column] * weights
                    scores[q, label] -= (vector - sum(own) / len(own)).square().sum() / (height * width)
    return scores * classifier.scale.factor


def with_statistics(classifier: CategoryTraversalClassifier, generator: torch.Generator) -> CategoryTraversalClassifier:
    """In evaluation mode, with batch norm that changes its input."""
    for module in classifier.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = torch.randn(module.num_features, generator=generator)
            module.running_var = 1 + torch.rand(module.num_features, generator=generator)
    return classifier.double().eval()


@pytest.mark.parametrize("labels", [[0, 1, 0, 1], [1, 2, 0, 2]])
@torch.no_grad()
def test_equals_loops(labels: list[int], generator: torch.Generator) -> None:
    classifier = with_statistics(CategoryTraversalClassifier(3, hidden=4, blocks=2, scale=0.5), generator)
    maps = torch.randn(2, 6, 3, 2, 3, generator=generator, dtype=torch.float64)
    given = torch.tensor(labels)
    scores = classifier(maps[:, :4], given.expand(2, -1), maps[:, 4:])
    for episode in range(2):
        expected = naive(classifier, maps[episode, :4], given, maps[episode, 4:])
        torch.testing.assert_close(scores[episode], expected)


@torch.no_grad()
def test_the_mask_depends_on_all_classes_of_the_task(generator: torch.Generator) -> None:
    """A third class changes how much closer a query is to the first class than to the second."""
    classifier = with_statistics(CategoryTraversalClassifier(3, hidden=4), generator)
    maps = torch.randn(4, 3, 2, 2, generator=generator, dtype=torch.float64)
    two = classifier(maps[:2], torch.tensor([0, 1]), maps[3:])[0]
    three = classifier(maps[:3], torch.tensor([0, 1, 2]), maps[3:])[0]
    assert float((two[0] - two[1]) - (three[0] - three[1])) != pytest.approx(0, abs=1e-6)


def test_gradients(generator: torch.Generator) -> None:
    torch.manual_seed(0)
    classifier = with_statistics(CategoryTraversalClassifier(2, hidden=4, blocks=1), generator)
    maps = torch.randn(5, 2, 2, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 1])
    assert torch.autograd.gradcheck(lambda x: classifier(x[:3], labels, x[3:]), maps)
    classifier(maps[:3], labels, maps[3:]).square().sum().backward()
    assert all(value.grad is not None for value in classifier.parameters())


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="similarity must be one of"):
        CategoryTraversalClassifier(4, similarity="manhattan")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="made for 4 channels, got 3"):
        CategoryTraversalClassifier(4)(torch.rand(2, 3, 4, 4), torch.tensor([0, 1]), torch.rand(1, 3, 4, 4))
