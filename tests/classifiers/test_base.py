"""The contract that all classifiers share, and how they answer bad input."""

import pytest
import torch

from deepbdc.classifiers import Classifier, create_classifier, list_classifiers
from tests.classifiers.conftest import MakeEpisodes

NAMES = ["logistic", "prototype", "softmax", "svm"]


def test_the_list_is_complete() -> None:
    assert list_classifiers() == NAMES


def test_unknown_names_and_options_are_answered() -> None:
    with pytest.raises(ValueError, match="did you mean 'logistic'"):
        create_classifier("logistics")
    with pytest.raises(TypeError, match="no option 'similarty': did you mean 'similarity'"):
        create_classifier("prototype", similarty="cosine")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("logistic", {"C": 0}, "C must be a positive number, got 0"),
        ("logistic", {"C": float("nan")}, "C must be a positive number, got nan"),
        ("svm", {"C": -1.0}, "C must be a positive number"),
        ("softmax", {"epochs": 0}, "epochs must be a positive number"),
        ("softmax", {"momentum": 1.0}, "momentum must be at least 0 and below 1"),
        ("softmax", {"weight_decay": -1e-3}, "weight_decay must not be negative"),
        ("prototype", {"similarity": "l1"}, "similarity must be one of euclidean, cosine, inner_product, got 'l1'"),
        ("prototype", {"prototype": "median"}, "prototype must be one of mean, mean_features"),
        ("prototype", {"prototype": "mean_features"}, r"give the layer.*pool=deepbdc.BDCPool"),
    ],
)
def test_bad_options_are_answered(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_classifier(name, **options)


@pytest.fixture(params=NAMES)
def classifier(request: pytest.FixtureRequest) -> Classifier:
    options = {"epochs": 3} if request.param == "softmax" else {}
    return create_classifier(request.param, **options)


def test_settings_can_be_recorded(classifier: Classifier) -> None:
    assert classifier.transductive is False
    assert classifier.settings
    name, value = next(iter(classifier.settings.items()))
    assert f"{name}={value!r}" in repr(classifier)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_is_its_episodes(classifier: Classifier, make_episodes: MakeEpisodes, dtype: torch.dtype) -> None:
    support, labels, query = make_episodes([3, 1, 4], features=20, episodes=6, dtype=dtype)
    together = classifier(support.view(2, 3, 8, 20), labels.view(2, 3, 8), query.view(2, 3, 12, 20))
    assert together.shape == (2, 3, 12, 3)
    assert together.dtype == dtype
    alone = torch.stack([classifier(*episode) for episode in zip(support, labels, query, strict=True)])
    tolerance = {"rtol": 1e-4, "atol": 1e-5}  # the logistic regression of a batch goes on until the last is solved
    torch.testing.assert_close(together.flatten(0, 1), alone, **tolerance)


def test_order_of_the_support_does_not_matter(classifier: Classifier, make_episodes: MakeEpisodes) -> None:
    if "seed" in classifier.settings:
        pytest.skip("SGD depends on the order")
    support, labels, query = make_episodes([3, 1, 4], features=20)
    order = torch.tensor([5, 2, 7, 0, 1, 6, 4, 3])
    expected, reordered = classifier(support, labels, query), classifier(support[:, order], labels[:, order], query)
    torch.testing.assert_close(reordered, expected, rtol=1e-3, atol=5e-3)  # LIBSVM stops at 1e-3


def test_finds_easy_classes(classifier: Classifier) -> None:
    support = torch.eye(4).repeat(2, 1) + 0.01
    labels = torch.tensor([2, 0, 1, 3, 2, 0, 1, 3], dtype=torch.int32)
    scores = classifier(support, labels, torch.eye(4))
    assert scores.argmax(dim=-1).tolist() == [2, 0, 1, 3]


def test_no_queries_no_scores(classifier: Classifier, make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([2, 2], features=5, episodes=3)
    assert classifier(support, labels, query[:, :0]).shape == (3, 0, 2)


def test_missing_class_is_named(classifier: Classifier, make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([2, 2, 2], features=5, episodes=4)
    labels[2] = torch.tensor([0, 0, 0, 2, 2, 2])
    with pytest.raises(ValueError, match="class 1 has no support image in episode 2: its support_labels are 0, 2"):
        classifier(support, labels, query)
    with pytest.raises(ValueError, match=r"class 1 has no support image in episode \(1, 0\)"):
        classifier(support.view(2, 2, 6, 5), labels.view(2, 2, 6), query.view(2, 2, 12, 5))
    with pytest.raises(ValueError, match="class 1 has no support image: its"):
        classifier(support[2], labels[2], query[2])


def test_labels_out_of_range_are_answered(classifier: Classifier, make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([2, 2], features=5, episodes=2)
    with pytest.raises(ValueError, match="got -1 in episode 1: number the classes of each episode from 0"):
        classifier(support, torch.where(torch.tensor([[False], [True]]), labels - 1, labels), query)
    with pytest.raises(ValueError, match=r"class 1 has no support image.* largest label of all episodes is 1000000000"):
        classifier(support, labels * 10**9, query)
    with pytest.raises(ValueError, match=r"must be integers, got torch.float32"):
        classifier(support, labels.float(), query)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_broken_features_are_located(classifier: Classifier, make_episodes: MakeEpisodes, value: float) -> None:
    support, labels, query = make_episodes([2, 2], features=5, episodes=2)
    broken = query.clone()
    broken[1, 7, 3] = value
    with pytest.raises(ValueError, match=r"query has NaN or infinite features: 1 of 24 images.* image 7 of episode 1"):
        classifier(support, labels, broken)
    broken = support.clone()
    broken[0, 2] = value
    with pytest.raises(ValueError, match=r"support has NaN or infinite features: 1 of 8 images.* image 2 of episode 0"):
        classifier(broken, labels, query)


def test_overflow_is_not_taken_for_broken_features() -> None:
    support = torch.full((4, 8), 1e30)
    labels, classifier = torch.tensor([0, 0, 1, 1]), create_classifier("prototype", similarity="inner_product")
    with pytest.raises(ValueError, match=r"scores overflow: features go up to 1e\+30"):
        classifier(support, labels, support)
    assert classifier(support.double(), labels, support.double()).isfinite().all()


def test_shapes_and_types_are_answered(classifier: Classifier, make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([2, 2], features=5, episodes=2)
    with pytest.raises(ValueError, match=r"support_labels must have shape \(2, 4\), got \(4,\)"):
        classifier(support, labels[0], query)
    with pytest.raises(ValueError, match=r"same batch of episodes, got \(2,\).*and \(1,\)"):
        classifier(support, labels, query[:1])
    with pytest.raises(ValueError, match=r"represented alike, got \(5,\) and \(4,\)"):
        classifier(support, labels, query[..., :4])
    with pytest.raises(ValueError, match="nothing to learn from"):
        classifier(support[:, :0], labels[:, :0], query)
    with pytest.raises(ValueError, match=r"must have shape \(..., images, features\), got \(5,\)"):
        classifier(support[0], labels[0], query[0, 0])
    with pytest.raises(ValueError, match=r"must be float32 or float64, got torch.float16: convert it with .float\(\)"):
        classifier(support.half(), labels, query)
    with pytest.raises(ValueError, match="one dtype"):
        classifier(support.double(), labels, query)
    with pytest.raises(TypeError, match=r"support_labels must be a torch.Tensor, got list"):
        classifier(support, labels.tolist(), query)  # type: ignore[arg-type]
