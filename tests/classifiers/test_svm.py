"""The SVM against scikit-learn on the explicit features."""

import numpy as np
import pytest
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from deepbdc.classifiers import create_classifier
from deepbdc.classifiers.svm import BLOCK
from tests.classifiers.conftest import MakeEpisodes


@pytest.mark.parametrize("C", [0.01, 1.0, 100.0])
@pytest.mark.parametrize(("shots", "features"), [([1, 1], 7), ([2, 1, 4], 3), ([1] * 5, 40), ([5] * 5, BLOCK + 100)])
def test_agrees_with_the_explicit_features(
    make_episodes: MakeEpisodes, shots: list[int], features: int, C: float
) -> None:
    support, labels, query = make_episodes(shots, features, episodes=2)
    support[..., 1], query[..., 1] = 3.0, 2.0  # almost constant after the normalisation
    support[..., 2], query[..., 2] = 0.0, 2.0  # constant
    scores = create_classifier("svm", C=C)(support, labels, query)
    for episode in range(2):
        x, y = (
            part[episode].double().numpy() / (np.linalg.norm(part[episode].double(), axis=-1, keepdims=True) + 1e-6)
            for part in (support, query)
        )
        model = make_pipeline(StandardScaler(), SVC(kernel="linear", C=C)).fit(x, labels[episode].numpy())
        expected = model.decision_function(y)
        expected = np.stack([-expected, expected], axis=-1) if expected.ndim == 1 else expected
        np.testing.assert_allclose(scores[episode].numpy(), expected, rtol=1e-3, atol=1e-4)


def test_steps_can_be_left_out(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([3, 2, 2], features=10, dtype=torch.float64)
    scores = create_classifier("svm", C=2.0, normalize=False, standardize=False)(support, labels, query)
    model = SVC(kernel="linear", C=2.0).fit(support[0].numpy(), labels[0].numpy())
    np.testing.assert_allclose(scores[0].numpy(), model.decision_function(query[0].numpy()), rtol=1e-3, atol=1e-4)


def test_one_class_is_answered() -> None:
    with pytest.raises(ValueError, match="needs at least 2"):
        create_classifier("svm")(torch.ones(2, 3), torch.tensor([0, 0]), torch.ones(1, 3))
