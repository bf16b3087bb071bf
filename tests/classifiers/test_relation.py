"""The relation module against loops over concatenated maps, sizes of maps, and gradcheck."""

import pytest
import torch
from torch import Tensor, nn

from deepbdc.classifiers.relation import RelationClassifier


def naive(classifier: RelationClassifier, support: Tensor, labels: Tensor, query: Tensor, padding: int) -> Tensor:
    """One episode in evaluation mode: concatenate each pair, and pass it through plain layers."""
    second, second_norm = classifier.second
    assert isinstance(second, nn.Conv2d)
    layers = [(classifier.compare, classifier.norm), (second, second_norm)]
    scores = torch.zeros(len(query), int(labels.max()) + 1, dtype=query.dtype)
    for q, image in enumerate(query):
        for label in range(scores.shape[1]):
            own = [x for x, y in zip(support, labels.tolist(), strict=True) if y == label]
            total = torch.stack(own).sum(dim=0)
            of_class = total / len(own) if classifier.class_map == "mean" else total
            maps = torch.cat([of_class, image])[None]
            for convolution, norm in layers:
                padded = nn.functional.pad(maps, [padding] * 4)
                maps = nn.functional.conv2d(padded, convolution.weight, convolution.bias)
                maps = norm(maps).clamp(min=0)
                maps = nn.functional.max_pool2d(maps, 2)
            maps = nn.functional.adaptive_avg_pool2d(maps, 3)
            scores[q, label] = classifier.out(maps.flatten(1))[0, 0]
    return scores


def with_statistics(classifier: RelationClassifier, generator: torch.Generator) -> RelationClassifier:
    """In evaluation mode, with batch norm that changes its input and larger weights behind."""
    for module in classifier.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = torch.randn(module.num_features, generator=generator)
            module.running_var = 1 + torch.rand(module.num_features, generator=generator)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, generator=generator)
    return classifier.double().eval()


@pytest.mark.parametrize(("size", "padding"), [((4, 4), 1), ((5, 9), 1), ((10, 12), 0), ((19, 19), 0)])
@pytest.mark.parametrize("class_map", ["sum", "mean"])
@pytest.mark.parametrize("labels", [[0, 1, 0, 1], [1, 2, 0, 2]])
def test_equals_loops(
    size: tuple[int, int], padding: int, class_map: str, labels: list[int], generator: torch.Generator
) -> None:
    classifier = RelationClassifier(3, hidden=4, units=5, class_map=class_map)  # type: ignore[arg-type]
    with_statistics(classifier, generator)
    maps = torch.randn(2, 6, 3, *size, generator=generator, dtype=torch.float64)
    given = torch.tensor(labels)
    scores = classifier(maps[:, :4], given.expand(2, -1), maps[:, 4:])
    for episode in range(2):
        expected = naive(classifier, maps[episode, :4], given, maps[episode, 4:], padding)
        torch.testing.assert_close(scores[episode], expected)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10, 11])
def test_maps_of_any_size_are_taken(size: int, generator: torch.Generator) -> None:
    maps = torch.randn(6, 2, size, size, generator=generator)
    assert RelationClassifier(2)(maps[:4], torch.tensor([0, 1, 0, 1]), maps[4:]).shape == (2, 2)


def test_the_module_of_the_original_has_576_features_before_its_last_layers() -> None:
    """19×19 → 17×17 → 8×8 → 6×6 → 3×3, so the adaptive pooling does nothing."""
    out = RelationClassifier(64).out[0]
    assert isinstance(out, nn.Linear)
    assert (out.in_features, out.out_features) == (576, 8)
    assert out.bias.tolist() == [1.0] * 8


def test_gradients(generator: torch.Generator) -> None:
    classifier = with_statistics(RelationClassifier(2, hidden=3, units=2), generator)
    maps = torch.randn(5, 2, 3, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 1])
    assert torch.autograd.gradcheck(lambda x: classifier(x[:3], labels, x[3:]), maps)
    classifier(maps[:3], labels, maps[3:]).square().sum().backward()
    assert all(value.grad is not None for value in classifier.parameters())


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="class_map must be one of sum, mean"):
        RelationClassifier(4, class_map="max")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="made for 4 channels, got 3"):
        RelationClassifier(4)(torch.rand(2, 3, 4, 4), torch.tensor([0, 1]), torch.rand(1, 3, 4, 4))
    with pytest.raises(ValueError, match="are vectors"):
        RelationClassifier(4)(torch.rand(2, 4), torch.tensor([0, 1]), torch.rand(1, 4))
