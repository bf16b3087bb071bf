"""The measures of ADM against loops and torch's distributions, the values of their fact sheet, and gradcheck."""

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from deepbdc.classifiers.gaussian import GaussianClassifier, Measure

LABELS = [[0, 1, 0, 1], [0, 1, 1, 1], [1, 0, 2, 2]]


def rows(maps: Tensor) -> list[Tensor]:
    """All descriptors of some maps ``(n, d, h, w)``."""
    return [image[:, i, j] for image in maps for i in range(image.shape[1]) for j in range(image.shape[2])]


def gaussian(descriptors: list[Tensor], ridge: float = 0.01) -> tuple[Tensor, Tensor]:
    mean = sum(descriptors, torch.zeros_like(descriptors[0])) / len(descriptors)
    covariance = ridge * torch.eye(len(mean), dtype=mean.dtype)
    for x in descriptors:
        covariance = covariance + torch.outer(x - mean, x - mean) / (len(descriptors) - 1)
    return mean, covariance


def divergence(q: tuple[Tensor, Tensor], c: tuple[Tensor, Tensor], measure: Measure) -> Tensor:
    d, apart = len(q[0]), c[0] - q[0]
    if measure == "wasserstein":
        return apart.square().sum().sqrt() / d + (q[1] - c[1]).square().sum().sqrt() / d**2
    inverse = torch.linalg.inv(c[1])
    logarithms = c[1].det().log() - q[1].det().log()
    value: Tensor = ((inverse @ q[1]).trace() + apart @ inverse @ apart + logarithms - d) / 2
    return value


def naive(support: Tensor, labels: Tensor, query: Tensor, measure: Measure, contrast: bool) -> Tensor:
    """One episode: maps ``(s, d, h, w)`` and ``(q, d, h, w)`` -> ``(q, way)``."""
    way = int(labels.max()) + 1
    scores = torch.zeros(len(query), way, dtype=query.dtype)
    for q in range(len(query)):
        of_query = gaussian(rows(query[q : q + 1]))
        for label in range(way):
            scores[q, label] = -divergence(of_query, gaussian(rows(support[labels == label])), measure)
            if contrast:
                scores[q, label] += divergence(of_query, gaussian(rows(support[labels != label])), measure)
    return scores


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("measure", ["kl", "wasserstein"])
@pytest.mark.parametrize("contrast", [False, True])
def test_equals_loops(labels: list[int], measure: Measure, contrast: bool, generator: torch.Generator) -> None:
    maps = 1 + torch.randn(2, 7, 5, 2, 3, generator=generator, dtype=torch.float64)
    support, query = maps[:, :4], maps[:, 4:]
    given = torch.tensor(labels).expand(2, -1)
    scores = GaussianClassifier(measure, contrast)(support, given, query)
    for episode in range(2):
        expected = naive(support[episode], given[0], query[episode], measure, contrast)
        torch.testing.assert_close(scores[episode], expected)


@pytest.mark.parametrize("channels", [3, 4, 6])
def test_equals_the_divergence_of_distributions(channels: int, generator: torch.Generator) -> None:
    """With more positions than channels, as many, and fewer."""
    maps = torch.randn(5, channels, 2, 2, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 1, 1])
    scores = GaussianClassifier(ridge=0.1)(maps[:3], labels, maps[3:])
    classes = [MultivariateNormal(*gaussian(rows(maps[:3][labels == label]), 0.1)) for label in range(2)]
    for q in range(2):
        own = MultivariateNormal(*gaussian(rows(maps[3 + q : 4 + q]), 0.1))
        expected = torch.stack([-kl_divergence(own, one) for one in classes])
        torch.testing.assert_close(scores[q], expected)


@pytest.mark.parametrize(("measure", "expected"), [("kl", -0.372208), ("wasserstein", -0.5)])
def test_values_worked_out_by_hand(measure: Measure, expected: float) -> None:
    """The corners of a square, and the same moved by (1, 0)."""
    square = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0]]).T.reshape(1, 2, 2, 2)
    moved = square + torch.tensor([1.0, 0.0]).reshape(2, 1, 1)
    score = GaussianClassifier(measure)(moved, torch.tensor([0]), square)
    assert float(score) == pytest.approx(expected, abs=1e-6)


def test_it_is_the_divergence_of_the_query_from_the_class_and_not_the_reverse() -> None:
    """N(0, I) and N((1, 0), 2 I) of two dimensions: 0.443147 one way, 0.806853 the other."""
    narrow = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
    narrow, wide = narrow * (3 / 2) ** 0.5, narrow * 3**0.5 + torch.tensor([1.0, 0.0])  # unbiased covariances I and 2 I
    maps = [points.T.reshape(1, 2, 2, 2) for points in (narrow, wide)]
    classifier, labels = GaussianClassifier(ridge=1e-9), torch.tensor([0])
    assert float(classifier(maps[1], labels, maps[0])) == pytest.approx(-0.443147, abs=1e-6)
    assert float(classifier(maps[0], labels, maps[1])) == pytest.approx(-0.806853, abs=1e-6)


def test_float32_keeps_its_digits_where_a_covariance_is_nearly_singular(generator: torch.Generator) -> None:
    """One image with 25 positions and 64 channels, whose largest variance is a million times the ridge."""
    spread = torch.logspace(-1, 2, 64)[:, None, None]
    maps = spread * torch.randn(6, 64, 5, 5, generator=generator)
    labels = torch.tensor([0, 1, 2])
    single = GaussianClassifier()(maps[:3], labels, maps[3:])
    double = GaussianClassifier()(maps[:3].double(), labels, maps[3:].double())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), double, rtol=1e-6, atol=0)


def test_a_single_position_has_only_the_ridge_as_covariance() -> None:
    maps = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]).reshape(3, 2, 1, 1)
    scores = GaussianClassifier(ridge=0.5)(maps[:2], torch.tensor([0, 1]), maps[2:])
    torch.testing.assert_close(scores, torch.tensor([[0.0, -1.0]]))


def test_classes_that_differ_only_in_their_covariance_are_told_apart(generator: torch.Generator) -> None:
    white = torch.randn(40, 2, 6, 6, generator=generator)
    alike = torch.stack([white[:, 0], 0.8 * white[:, 0] + 0.6 * white[:, 1]], dim=1)
    opposite = alike * torch.tensor([1.0, -1.0]).reshape(2, 1, 1)
    support, query = torch.stack([alike[0], opposite[1]]), torch.cat([alike[2:21], opposite[21:]])
    truth = torch.tensor([0] * 19 + [1] * 19)
    for classifier in (GaussianClassifier(), GaussianClassifier("wasserstein"), GaussianClassifier(contrast=True)):
        right = classifier(support, torch.tensor([0, 1]), query).argmax(dim=1) == truth
        assert right.float().mean() > 0.9


def test_chunks_of_queries_do_not_show(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = torch.randn(2, 9, 4, 3, 3, generator=generator)
    arguments = maps[:, :4], torch.tensor([0, 1, 0, 1]).expand(2, -1), maps[:, 4:]
    whole = GaussianClassifier()(*arguments)
    monkeypatch.setattr("deepbdc.classifiers.gaussian._BYTES_AT_A_TIME", 1)
    torch.testing.assert_close(GaussianClassifier()(*arguments), whole)


@pytest.mark.parametrize("measure", ["kl", "wasserstein"])
@pytest.mark.parametrize("contrast", [False, True])
@pytest.mark.parametrize("channels", [3, 6])
def test_gradients(measure: Measure, contrast: bool, channels: int, generator: torch.Generator) -> None:
    maps = torch.randn(5, channels, 2, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    classifier = GaussianClassifier(measure, contrast, ridge=0.1, scale=0.5).double()
    assert torch.autograd.gradcheck(lambda x: classifier(x[:3], torch.tensor([0, 1, 1]), x[3:]), maps)
    classifier(maps[:3], torch.tensor([0, 1, 1]), maps[3:]).sum().backward()
    assert classifier.scale.scale is not None
    assert classifier.scale.scale.grad is not None


def test_gradients_are_finite_where_a_query_is_the_only_image_of_a_class(generator: torch.Generator) -> None:
    maps = torch.randn(2, 3, 2, 2, generator=generator, requires_grad=True)
    for classifier in (GaussianClassifier(), GaussianClassifier("wasserstein")):
        scores = classifier(maps, torch.tensor([0, 1]), maps)
        torch.testing.assert_close(scores.diagonal(), torch.zeros(2))
        (gradient,) = torch.autograd.grad(scores.sum(), maps)
        assert gradient.isfinite().all()


def test_the_scale_is_on_the_divergence_per_dimension(generator: torch.Generator) -> None:
    maps = torch.randn(5, 4, 3, 3, generator=generator)
    arguments = maps[:3], torch.tensor([0, 1, 1]), maps[3:]
    torch.testing.assert_close(GaussianClassifier(scale=8.0)(*arguments), 2 * GaussianClassifier()(*arguments))
    scaled = GaussianClassifier("wasserstein", scale=8.0)(*arguments)
    torch.testing.assert_close(scaled, 8 * GaussianClassifier("wasserstein")(*arguments))


def test_what_cannot_be_computed_is_said() -> None:
    with pytest.raises(ValueError, match="measure must be one of kl, wasserstein, got 'em'"):
        GaussianClassifier("em")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ridge must be a positive number, got 0"):
        GaussianClassifier(ridge=0)
    with pytest.raises(ValueError, match="needs at least two classes, got 1"):
        GaussianClassifier(contrast=True)(torch.rand(1, 3, 2, 2), torch.tensor([0]), torch.rand(1, 3, 2, 2))


def test_its_working_memory_grows_with_the_channels() -> None:
    small, large = (GaussianClassifier().working_memory((5, d, 2, 2), (15, d, 2, 2)) for d in (8, 64))
    assert large > 32 * small
