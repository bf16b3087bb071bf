import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from deepbdc import BDCPool, Embedding, create_backbone
from deepbdc.classifiers import Classifier, create_classifier
from deepbdc.classifiers.prototype import PrototypeClassifier, class_means
from deepbdc.data.dataset import ArrayDataset
from deepbdc.embedding import pixel_embedding
from deepbdc.episodes import sample_episodes
from deepbdc.evaluation import EvaluationResult, evaluate
from deepbdc.feature_bank import build_bank
from deepbdc.intervals import class_interval
from deepbdc.methods import Method
from deepbdc.pooling import KeepMap
from deepbdc.preprocessing import Preprocessing


def dataset(classes: int = 7, images: int = 20, noise: float = 60, seed: int = 0) -> ArrayDataset:
    """Each class is a picture with noise."""
    generator = np.random.default_rng(seed)
    means = generator.uniform(0, 255, (classes, 1, 16, 16, 3))
    pixels = means + generator.normal(0, noise, (classes, images, 16, 16, 3))
    pixels = np.clip(pixels, 0, 255).astype(np.uint8).reshape(-1, 16, 16, 3)
    return ArrayDataset(
        pixels, np.repeat(np.arange(classes), images), [f"c{i}" for i in range(classes)], "made", "test"
    )


DATA = dataset(noise=250)


def network() -> Embedding:
    torch.manual_seed(0)
    return Embedding(create_backbone("conv4", width=0.25), BDCPool(16), Preprocessing(16, 16)).eval()


def method(name: str = "prototype", embedding: Embedding | None = None) -> Method:
    return Method(embedding or network(), create_classifier(name))


@pytest.mark.parametrize("name", ["prototype", "logistic"])
def test_equals_embedding_and_classifying_episode_by_episode(name: str) -> None:
    tried = method(name)
    result = evaluate(tried, DATA, way=5, shot=2, query=6, episodes=40, seed=3)
    chosen = tried.embedding.preprocessing
    mean, std = (torch.tensor(values)[:, None, None] for values in (chosen.mean, chosen.std))
    expected = []
    for episode in sample_episodes(DATA, way=5, shot=2, query=6, count=40, seed=3):
        images = [torch.from_numpy(DATA.images[indices]) for indices in (episode.support, episode.query)]
        support, query = ((part.permute(0, 3, 1, 2) / 255 - mean) / std for part in images)
        with torch.no_grad():
            scores = tried.classify(tried.embed(support), torch.from_numpy(episode.support_labels), tried.embed(query))
        expected.append(100 * (scores.argmax(1).numpy() == episode.query_labels).mean())
    assert result.accuracies.tolist() == pytest.approx(expected)
    assert 20 < result.mean < 100, "neither chance nor trivial, so the comparison says something"


def test_mean_and_interval_are_the_textbooks() -> None:
    result = evaluate(method(), DATA, episodes=50)
    values = result.accuracies.tolist()
    average = sum(values) / 50
    deviation = math.sqrt(sum((v - average) ** 2 for v in values) / 50)
    assert result.mean == pytest.approx(average)
    assert result.ci95 == pytest.approx(1.96 * deviation / math.sqrt(50))
    assert result.accuracies.shape == (50,)
    assert str(result) == f"{average:.2f} ± {result.ci95:.2f}"


def test_result_says_of_what_it_is() -> None:
    result = evaluate(method(), DATA, way=3, shot=2, query=4, episodes=10, seed=9)
    assert (result.way, result.shot, result.query, result.seed) == (3, 2, 4, 9)
    assert (result.dataset, result.split) == ("made", "test")
    assert result.data_fingerprint == DATA.fingerprint
    assert result.transductive is False
    assert "prototype" in result.classifier.lower()
    assert result.seconds > 0
    with pytest.raises(AttributeError):
        result.way = 4  # type: ignore[misc]


class Assuming(PrototypeClassifier):
    transductive = True
    assumes_balanced_queries = True


def test_a_method_that_assumes_balanced_queries_is_warned_about_on_unbalanced_ones(
    recwarn: pytest.WarningsRecorder,
) -> None:
    assuming = Method(network(), Assuming("euclidean", "mean", None, None))
    balanced = evaluate(assuming, DATA, query=3, episodes=5)
    assert balanced.assumes_balanced_queries
    unbalanced = evaluate(method(), DATA, query=3, episodes=5, unbalanced=True, dirichlet=2)
    assert (unbalanced.unbalanced, unbalanced.dirichlet, unbalanced.assumes_balanced_queries) == (True, 2, False)
    assert not list(recwarn)
    with pytest.warns(UserWarning, match="Assuming assumes that all classes of a task have equally many queries, but"):
        found = evaluate(assuming, DATA, query=3, episodes=5, unbalanced=True, dirichlet=2)
    assert found.episodes_fingerprint == unbalanced.episodes_fingerprint != balanced.episodes_fingerprint


def test_results_of_an_earlier_version_are_read() -> None:
    result = evaluate(method(), DATA, query=3, episodes=5)
    new = ("dirichlet", "assumes_balanced_queries", "classes", "ci95_classes")
    old = {key: value for key, value in result.as_json().items() if key not in new}
    again = EvaluationResult.from_json(old)
    assert again.ci95_classes is None
    assert again.compare(again).ci95_classes is None
    assert again.compare(result) == result.compare(again), "the classes of one of the two are enough"
    assert (again.dirichlet, again.assumes_balanced_queries, again.mean) == (1, False, result.mean)


def test_bank_and_stored_episodes_serve_many_evaluations() -> None:
    embedding = network()
    bank = build_bank(embedding, DATA)
    episodes = sample_episodes(DATA, way=(2, 4), shot=(1, 3), query=3, count=30, unbalanced=True)
    results = [
        evaluate(method(name, embedding), DATA, episodes=episodes, bank=bank) for name in ("prototype", "logistic")
    ]
    assert results[0].episodes_fingerprint == results[1].episodes_fingerprint
    assert all(result.accuracies.shape == (30,) for result in results)
    alone = evaluate(method("prototype", embedding), DATA, episodes=episodes)
    assert alone.accuracies.tolist() == results[0].accuracies.tolist()


def test_batches_of_episodes_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evaluate(method(), DATA, episodes=20)
    monkeypatch.setattr("deepbdc.evaluation._BYTES_AT_A_TIME", 1)
    assert evaluate(method(), DATA, episodes=20).accuracies.tolist() == whole.accuracies.tolist()


def test_a_smaller_bank_gives_the_same_result() -> None:
    torch.manual_seed(0)
    backbone = create_backbone("conv4", width=0.25, removed_downsamplings=1)
    embedding = Embedding(backbone, BDCPool(16), Preprocessing(16, 16)).eval()  # 136 numbers; the map has 16 × 2 × 2
    whole = evaluate(method(embedding=embedding), DATA, episodes=20)
    small = evaluate(method(embedding=embedding), DATA, episodes=20, budget=len(DATA) * 64 * 4)
    assert (whole.kept, small.kept) == ("representations, float32", "reduced maps, float32")
    assert small.accuracies.tolist() == whole.accuracies.tolist()


def test_confusion_counts_every_query() -> None:
    result = evaluate(method(), DATA, way=5, query=6, episodes=30, confusion=True)
    assert result.confusion is not None
    assert result.confusion.sum() == 30 * 5 * 6
    right = result.confusion.diagonal().sum() / result.confusion.sum()
    assert 100 * right == pytest.approx(result.mean)
    weights = result.confusion.sum(axis=1)
    by_class = np.array(list(result.class_accuracies.values()))
    assert (by_class * weights).sum() / weights.sum() == pytest.approx(result.mean)
    with pytest.raises(ValueError, match="confusion=True"):
        _ = evaluate(method(), DATA, episodes=2).class_accuracies


def test_compare_is_a_paired_test() -> None:
    first = evaluate(method(), DATA, episodes=60)
    second = evaluate(method(embedding=pixel_embedding(16)), DATA, episodes=60)
    found = first.compare(second)
    differences = first.accuracies - second.accuracies
    assert found.difference == pytest.approx(first.mean - second.mean)
    assert found.ci95 == pytest.approx(1.96 * differences.std() / math.sqrt(60))
    assert found.p_value == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)
    assert first.compare(first).difference == 0
    assert first.compare(first).p_value == 1
    with pytest.raises(ValueError, match="different episodes"):
        first.compare(evaluate(method(), DATA, episodes=60, seed=1))


def test_a_comparison_takes_the_episodes_that_both_have() -> None:
    """Those of a shorter evaluation are the first ones of a longer one."""
    short, long = (evaluate(method(), DATA, shot=2, episodes=count) for count in (20, 60))
    other = evaluate(method("logistic"), DATA, shot=2, episodes=60)
    assert np.array_equal(short.accuracies, long.accuracies[:20])
    found = short.compare(other)
    assert found.episodes == 20
    assert found.difference == pytest.approx(float((long.accuracies - other.accuracies)[:20].mean()))
    assert other.compare(short).difference == pytest.approx(-found.difference)
    assert long.compare(other).episodes is None
    with pytest.raises(ValueError, match="different episodes"):
        short.compare(evaluate(method(), DATA, shot=1, episodes=60))


def test_a_result_knows_the_classes_of_its_episodes_and_the_interval_over_classes(tmp_path: Path) -> None:
    first = evaluate(method(), DATA, episodes=60)
    second = evaluate(method(embedding=pixel_embedding(16)), DATA, episodes=60)
    drawn = np.stack([episode.classes for episode in sample_episodes(DATA, count=60)])
    assert first.classes is not None
    assert np.array_equal(first.classes, drawn)
    assert first.ci95_classes == class_interval(first.accuracies, drawn)
    assert first.ci95_classes is not None
    assert first.ci95_classes > first.ci95
    assert first.compare(second).ci95_classes == class_interval(first.accuracies - second.accuracies, drawn)
    first.save(tmp_path / "result.json")
    again = EvaluationResult.load(tmp_path / "result.json")
    assert again.classes is not None
    assert np.array_equal(again.classes, drawn)
    assert again.ci95_classes == first.ci95_classes
    assert len((tmp_path / "result.json").read_text().splitlines()) == 2 + len(first.as_json()), "one line per array"


def test_no_interval_over_classes_if_it_cannot_be_had() -> None:
    all_classes = evaluate(method(), DATA, way=7, episodes=30)
    assert all_classes.classes is not None
    assert all_classes.ci95_classes is None
    mixed = evaluate(method(), DATA, way=(2, 4), episodes=30)
    assert (mixed.classes, mixed.ci95_classes, mixed.compare(mixed).ci95_classes) == (None, None, None)


@pytest.mark.parametrize("confusion", [False, True])
def test_save_and_load(confusion: bool, tmp_path: Path) -> None:
    result = evaluate(method(), DATA, way=(2, 3), episodes=10, confusion=confusion)
    result.save(tmp_path / "result.json")
    again = EvaluationResult.load(tmp_path / "result.json")
    assert again.accuracies.tolist() == result.accuracies.tolist()
    assert (again.way, again.classifier) == (result.way, result.classifier)
    assert (again.mean, again.ci95) == (result.mean, result.ci95)
    assert (again.confusion is None) == (not confusion)
    assert again.compare(result).difference == 0


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="class 'c0' has 20 images, but 6 for support"):
        evaluate(method(), DATA, shot=6)
    other = dataset(seed=1)
    with pytest.raises(ValueError, match="drawn from another data set"):
        evaluate(method(), DATA, episodes=sample_episodes(other, count=2))
    with pytest.raises(ValueError, match="bank was made of another data set"):
        evaluate(method(), DATA, episodes=2, bank=build_bank(network(), other))
    with pytest.raises(ValueError, match="made by another network"):
        evaluate(method(), DATA, episodes=2, bank=build_bank(pixel_embedding(16), DATA))


def test_a_pool_inside_the_classifier_is_part_of_the_method_and_in_evaluation_mode() -> None:
    torch.manual_seed(0)
    pool = BDCPool(16, reduce_to=4).train()
    classifier = create_classifier("prototype", prototype="mean_features", pool=pool)
    tried = Method(Embedding(create_backbone("conv4", width=0.25), KeepMap(16), Preprocessing(16, 16)), classifier)
    assert any(name.startswith("classifier.pool.") for name in tried.state_dict())
    before = {name: value.clone() for name, value in tried.state_dict().items()}
    first = evaluate(tried, DATA, episodes=10)
    assert all(torch.equal(before[name], value) for name, value in tried.state_dict().items())
    assert pool.training
    with torch.no_grad():
        pool.t.add_(1)
    assert evaluate(tried, DATA, episodes=10).weights_fingerprint != first.weights_fingerprint


def test_classes_that_were_not_asked_have_no_accuracy() -> None:
    result = evaluate(method(), DATA, way=2, episodes=1, confusion=True)
    assert len(result.class_accuracies) == 2


class Gradients(Classifier):
    """Takes a gradient step on the support set, as methods do that learn at test time."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        prototypes = class_means(support, support_labels, way)
        with torch.enable_grad():
            moved = prototypes.detach().requires_grad_()
            own = moved.gather(1, support_labels.unsqueeze(-1).expand_as(support))
            loss = (support - own).square().sum() * self.weight
            (gradient,) = torch.autograd.grad(loss, moved)
        return query @ (prototypes - 0.1 * gradient).transpose(-2, -1)


def test_a_classifier_may_compute_gradients_at_test_time() -> None:
    assert evaluate(Method(network(), Gradients()), DATA, episodes=5).accuracies.shape == (5,)


def test_parameters_of_a_classifier_are_part_of_the_method() -> None:
    tried = Method(network(), Gradients())
    assert "classifier.weight" in tried.state_dict()
    first = evaluate(tried, DATA, episodes=2)
    with torch.no_grad():
        tried.classifier.weight.add_(1)  # type: ignore[union-attr, operator]
    assert evaluate(tried, DATA, episodes=2).weights_fingerprint != first.weights_fingerprint


class Hungry(Classifier):
    """Notes how many episodes it is given at a time."""

    def __init__(self, memory: int) -> None:
        super().__init__()
        self.memory, self.seen = memory, set[int]()

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        self.seen.add(len(support))
        return query.new_zeros(len(query), query.shape[1], way)

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        assert (support, query) == ((5, 136), (75, 136))
        return self.memory


def test_the_working_memory_of_a_classifier_limits_the_batch() -> None:
    modest, hungry = Hungry(0), Hungry(2**25)
    for classifier in (modest, hungry):
        evaluate(Method(network(), classifier), DATA, episodes=20)
    assert (max(modest.seen), max(hungry.seen)) == (20, 3)


class Elsewhere(Classifier):
    """Has its parameter on another device, and notes where its inputs are."""

    def __init__(self) -> None:
        super().__init__()
        self.devices = set[str]()

    def forward(self, support: Tensor, support_labels: Tensor, query: Tensor) -> Tensor:
        self.devices |= {tensor.device.type for tensor in (support, support_labels, query)}
        return torch.zeros(*query.shape[:2], 5)

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        raise AssertionError


def test_representations_follow_the_device_of_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no GPU here: the device "meta" plays the second device, whose tensors hold no numbers."""
    bank = build_bank(network(), DATA)
    tried, classifier = method(), Elsewhere()
    tried.classifier = classifier
    monkeypatch.setattr("deepbdc.evaluation.device_of", lambda _: torch.device("meta"))
    monkeypatch.setattr("deepbdc.methods.base.shots_of", lambda _: 1)  # would have to read the labels
    evaluate(tried, DATA, episodes=3, bank=bank)
    assert classifier.devices == {"meta"}


def test_evaluate_moves_the_whole_method(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []
    tried = Method(network(), Gradients())
    monkeypatch.setattr(tried, "to", lambda device: (moved.append(str(device)), tried)[1])
    evaluate(tried, DATA, episodes=2, device="cpu")
    assert moved == ["cpu"]
