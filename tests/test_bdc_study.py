"""The arithmetic of benchmarks/bdc_study.py: the same accuracies as `deepbdc.evaluate`."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from deepbdc.classifiers import create_classifier
from deepbdc.data.dataset import ArrayDataset
from deepbdc.embedding import pixel_embedding
from deepbdc.episodes import sample_episodes
from deepbdc.evaluation import evaluate
from deepbdc.feature_bank import build_bank
from deepbdc.methods import Method

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from study import frozen, products, scratch


@pytest.fixture(scope="module")
def pictures() -> ArrayDataset:
    """Noise with a weak pattern for each class."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), 12)
    patterns = generator.integers(0, 256, (8, 6, 6, 3))
    noise = generator.integers(0, 256, (96, 6, 6, 3))
    return ArrayDataset((0.3 * patterns[labels] + 0.7 * noise).astype(np.uint8), labels, list("abcdefgh"), "p", "test")


@pytest.mark.parametrize(
    ("score", "name", "options"),
    [
        (products.prototype("euclidean"), "prototype", {"similarity": "euclidean"}),
        (products.prototype("inner_product"), "prototype", {"similarity": "inner_product"}),
        (products.prototype("cosine"), "prototype", {"similarity": "cosine"}),
        (products.logistic(10.0), "logistic", {"C": 10.0}),
        (products.svm(10.0), "svm", {"C": 10.0, "standardize": False}),
    ],
)
@pytest.mark.parametrize("shot", [1, 3])
def test_products_give_the_accuracies_of_evaluate(pictures, score, name, options, shot) -> None:
    embedding = pixel_embedding(6)
    episodes = sample_episodes(pictures, 5, shot, 6, 40, 0)
    expected = evaluate(Method(embedding, create_classifier(name, **options)), pictures, episodes=episodes)
    vectors = build_bank(embedding, pictures).features
    found = products.right_answers(products.products_of(vectors), episodes, score)
    assert 25 < expected.mean < 95
    np.testing.assert_allclose(100 * found / 30, expected.accuracies, atol=1e-9)


def test_a_mean_is_subtracted_before_the_products() -> None:
    vectors, mean = torch.randn(5, 3), torch.randn(3)
    expected = torch.tensor([[float((a - mean) @ (b - mean)) for b in vectors] for a in vectors])
    torch.testing.assert_close(products.products_of(vectors, mean), expected)


def test_normalised_products_are_cosines() -> None:
    vectors = torch.randn(6, 4)
    expected = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
    torch.testing.assert_close(products.normalised(vectors @ vectors.T), expected, atol=1e-5, rtol=0)


def test_second_moment_is_that_of_the_formula() -> None:
    maps = torch.randn(2, 3, 2, 2)
    for image, row in zip(maps, frozen.second_moment(maps), strict=True):
        x = image.reshape(3, 4)
        expected = []
        for k in range(3):
            for other in range(k, 3):
                moment = float((x[k] * x[other]).mean())
                expected.append(np.sign(moment) * abs(moment) ** 0.5)
        np.testing.assert_allclose(row.numpy(), expected, rtol=1e-5)


def test_the_weights_make_the_weighted_vector() -> None:
    from deepbdc import BDCPool

    maps = torch.randn(2, 5, 3, 3)
    weighted: Tensor = BDCPool(5, output="weighted")(maps)
    torch.testing.assert_close(BDCPool(5)(maps) * scratch.triangle_weights(5), weighted)


def test_runs_share_what_they_have_in_common() -> None:
    """A run of episodes goes on from the transfer run of the same settings; a second generation from the first."""
    baseline, bdc = scratch.Setting("x", "y", "z", both=("pretrain.lr=0.1",), bdc=("dropout=0.5",), pair="meta").runs()
    assert baseline.parent == scratch.Run("good_embed", ("pretrain.lr=0.1",))
    assert bdc.parent == scratch.Run("stl_deepbdc", ("dropout=0.5", "pretrain.lr=0.1"))
    assert bdc.parent.parent is None
    second = scratch.Run("stl_deepbdc", ("distill.generations=2",))
    assert second.parent == scratch.Run("stl_deepbdc", ("distill.generations=1",))
    assert second.parent.parent == scratch.Run("stl_deepbdc", ())
    for run in (baseline, bdc, second):
        parent = run.parent
        assert parent is not None
        assert run.recipe().pretrain == parent.recipe().pretrain
        assert run.recipe().seed == parent.recipe().seed
        assert run.recipe().evaluation is None  # the test classes are left alone


def test_the_best_strength_is_chosen_on_the_validation_classes() -> None:
    percent = {
        "last, bdc, prototypes, 5-way 1-shot": 90.0,
        "last, bdc, logistic C=1, 5-way 1-shot": 50.0,
        "last, bdc, logistic C=10, 5-way 1-shot": 60.0,
        "last, bdc, logistic C=100, 5-way 1-shot": 60.0,
    }
    assert frozen.best_strengths(percent) == {"last, bdc, logistic, 1-shot": 10.0}
