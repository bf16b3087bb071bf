"""Branches on one map: their probabilities are averaged, and each keeps its own parameters."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from deepbdc._fingerprint import weights_fingerprint
from deepbdc.classifiers.base import Classifier
from deepbdc.classifiers.fusion import FusionClassifier
from deepbdc.classifiers.gaussian import GaussianClassifier
from deepbdc.classifiers.image_to_class import ImageToClassClassifier
from deepbdc.classifiers.prototype import prototype
from deepbdc.pooling import AveragePool, BDCPool, KeepMap

LABELS = torch.tensor([0, 1, 1, 2])


def fusion(scale: float = 0.5) -> FusionClassifier:
    torch.manual_seed(0)
    branches = [GaussianClassifier(scale=scale), ImageToClassClassifier(2, 0.1), prototype("inner_product")]
    return FusionClassifier(branches, [KeepMap(4, 3), KeepMap(4), BDCPool(4)]).double().eval()


def test_the_probabilities_of_the_branches_are_averaged(generator: torch.Generator) -> None:
    maps = torch.randn(2, 7, 4, 2, 3, generator=generator, dtype=torch.float64)
    support, query = maps[:, :4], maps[:, 4:]
    classifier = fusion()
    scores = classifier(support, LABELS.expand(2, -1), query)
    for episode in range(2):
        total = torch.zeros(3, 3, dtype=torch.float64)
        for branch, pool in zip(classifier.branches, classifier.pools, strict=True):
            own = branch(pool(support[episode]), LABELS, pool(query[episode]))
            total += own.exp() / own.exp().sum(dim=1, keepdim=True)
        torch.testing.assert_close(scores[episode], (total / 3).log())
    torch.testing.assert_close(scores.exp().sum(dim=-1), torch.ones(2, 3, dtype=torch.float64))


def test_the_cross_entropy_is_that_of_the_averaged_probability() -> None:
    """Two branches of which one is sure and wrong: the loss stays finite, where a sum of cross-entropies explodes."""

    class Fixed(Classifier):
        def __init__(self, values: list[float]) -> None:
            super().__init__(values=values)

        def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
            values: list[float] = self.settings["values"]
            return query.new_tensor(values).expand(*query.shape[:2], -1)

    classifier = FusionClassifier([Fixed([0.0, 1e4]), Fixed([0.0, 0.0])], [AveragePool(1), AveragePool(1)])
    maps = torch.zeros(3, 1, 1, 1)
    scores = classifier(maps[:2], torch.tensor([0, 1]), maps[2:])
    torch.testing.assert_close(scores.exp(), torch.tensor([[0.25, 0.75]]))
    assert float(cross_entropy(scores, torch.tensor([0]))) == pytest.approx(1.386294, abs=1e-6)


def test_batch_norm_sees_support_and_query_together(generator: torch.Generator) -> None:
    maps = torch.randn(1, 7, 4, 2, 3, generator=generator, dtype=torch.float64)
    classifier, twin = fusion().train(), fusion().train()
    classifier(maps[:, :4], LABELS[None], maps[:, 4:])
    twin.pools[0](maps[0])
    norms = [next(part for part in one.modules() if isinstance(part, nn.BatchNorm2d)) for one in (classifier, twin)]
    assert norms[0].num_batches_tracked == 1
    torch.testing.assert_close(norms[0].running_mean, norms[1].running_mean)


def test_gradients(generator: torch.Generator) -> None:
    maps = torch.randn(6, 4, 2, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    classifier = fusion()
    assert torch.autograd.gradcheck(lambda x: classifier(x[:4], LABELS, x[4:]), maps)
    cross_entropy(classifier(maps[:4], LABELS, maps[4:]), torch.tensor([0, 2])).backward()
    assert all(value.grad is not None and value.grad.isfinite().all() for value in classifier.parameters())


def test_the_fingerprint_knows_the_options_of_the_branches() -> None:
    assert weights_fingerprint(fusion()) == weights_fingerprint(fusion())
    assert weights_fingerprint(fusion()) != weights_fingerprint(fusion(scale=0.6))


def test_it_is_transductive_if_a_branch_is() -> None:
    class Looking(ImageToClassClassifier):
        transductive = assumes_balanced_queries = True

    both = FusionClassifier([ImageToClassClassifier(), Looking()], [KeepMap(4), KeepMap(4)])
    assert (both.transductive, both.assumes_balanced_queries) == (True, True)
    assert (fusion().transductive, fusion().assumes_balanced_queries) == (False, False)


def test_its_working_memory_is_at_least_that_of_its_branches() -> None:
    branches = [ImageToClassClassifier(), prototype()]
    classifier = FusionClassifier(branches, [KeepMap(8), BDCPool(8, reduce_to=200)])
    support, query = (5, 8, 4, 4), (15, 8, 4, 4)
    vectors = 4 * 20 * 200 * 201 // 2
    assert classifier.working_memory(support, query) > vectors + branches[0].working_memory(support, query)


def test_every_branch_needs_a_pool() -> None:
    with pytest.raises(ValueError, match="every branch needs one pooling layer, got 0 for 1 branches"):
        FusionClassifier([ImageToClassClassifier()], [])
    with pytest.raises(ValueError, match="every branch needs one pooling layer"):
        FusionClassifier([], [])
