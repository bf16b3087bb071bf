import inspect
import io
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from deepbdc import Embedding, FewShotClassifier, create_backbone, create_classifier
from deepbdc.data.images import BadImage
from deepbdc.errors import UserError
from deepbdc.estimator import NONE_OF_THESE, EmbeddedImage
from deepbdc.methods import Method, create_method
from deepbdc.own_images import networks
from deepbdc.pooling import AveragePool, BDCPool
from tests.drawings import CLASSES, draw, examples, save

EXAMPLES = [draw(kind, seed) for kind in CLASSES for seed in range(3)]
LABELS = [kind for kind in CLASSES for _ in range(3)]
NEW = [draw(kind, seed) for kind in CLASSES for seed in (10, 11)]
NEW_LABELS = [kind for kind in CLASSES for _ in range(2)]


MODES = [True, True, False, True]
"""Training modes of the parts of `mixed_modes`."""


def mixed_modes() -> torch.nn.Module:
    """A network in training mode with frozen batch norm."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 5, stride=4), torch.nn.BatchNorm2d(8), torch.nn.Dropout(0.5))
    network[1].eval()
    return network


@pytest.fixture(scope="module", autouse=True)
def on_one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def fitted() -> FewShotClassifier:
    return FewShotClassifier().fit(EXAMPLES, LABELS)


@pytest.fixture(scope="module")
def embedded(fitted: FewShotClassifier) -> list[EmbeddedImage]:
    return fitted.embed(EXAMPLES)


class TestAnswers:
    def test_it_recognises_new_pictures(self, fitted: FewShotClassifier) -> None:
        assert fitted.classes_.tolist() == sorted(CLASSES)
        assert fitted.predict(NEW).tolist() == NEW_LABELS
        assert fitted.score(NEW, NEW_LABELS) == 1

    def test_probabilities_add_up_and_agree_with_labels(self, fitted: FewShotClassifier) -> None:
        probabilities = fitted.predict_proba(NEW)
        assert probabilities.shape == (6, 3)
        assert np.allclose(probabilities.sum(axis=1), 1)
        assert fitted.classes_[probabilities.argmax(axis=1)].tolist() == fitted.predict(NEW).tolist()

    def test_full_answers(self, fitted: FewShotClassifier) -> None:
        (answer,) = fitted.classify(NEW[0])
        assert (answer.name, answer.label) == ("image 0", "circle")
        assert answer.probability == max(answer.probabilities)
        assert answer.runner_up in CLASSES
        assert answer.runner_up != answer.label
        assert answer.runner_up_probability == sorted(answer.probabilities)[-2]

    def test_none_of_these(self, fitted: FewShotClassifier) -> None:
        answers = fitted.predict([*NEW, draw("noise", 0)], reject=True).tolist()
        assert answers[-1] == NONE_OF_THESE
        assert sum(answer == NONE_OF_THESE for answer in answers[:-1]) <= 1
        assert fitted.predict([draw("noise", 0)]).tolist()[0] in CLASSES

    def test_no_pictures(self, fitted: FewShotClassifier) -> None:
        assert fitted.predict([]).tolist() == []
        assert fitted.predict_proba([]).shape == (0, 3)
        assert fitted.predict([], reject=True).tolist() == []

    def test_answers_do_not_depend_on_the_batch(self, fitted: FewShotClassifier) -> None:
        apart = np.concatenate([fitted.predict_proba([image]) for image in NEW])
        assert np.allclose(fitted.predict_proba(NEW), apart, atol=1e-5)

    def test_numbers_as_labels(self, embedded: list[EmbeddedImage]) -> None:
        numbers = [CLASSES.index(label) for label in LABELS]
        fitted = FewShotClassifier().fit(embedded, numbers)
        assert fitted.predict(NEW[:1]).dtype.kind == "i"
        assert fitted.predict([draw("noise", 0)], reject=True).tolist() == [NONE_OF_THESE]

    def test_predictions_do_not_embed_the_examples_again(
        self, fitted: FewShotClassifier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = []
        original = fitted.embedding_.reduced_map
        monkeypatch.setattr(
            fitted.embedding_, "reduced_map", lambda images: seen.append(len(images)) or original(images)
        )
        fitted.predict(NEW[:1])
        fitted.explain(NEW[1])
        assert seen == [1, 1]


class TestFolders:
    def test_folders_files_and_names(self, tmp_path: Path) -> None:
        fitted = FewShotClassifier().fit(examples(tmp_path / "examples"))
        file = save(tmp_path / "new.png", "triangle", 20)
        (answer,) = fitted.classify([str(file)])
        assert (answer.name, answer.label) == (str(file), "triangle")

    def test_a_corrupt_picture_is_named(self, tmp_path: Path, fitted: FewShotClassifier) -> None:
        folder = examples(tmp_path / "examples")
        (folder / "circle" / "broken.jpg").write_bytes(b"\xff\xd8\xff no jpeg")
        with pytest.raises(BadImage, match=r"broken\.jpg: not a readable image"):
            FewShotClassifier().fit(folder)
        bad = []
        mixed = [NEW[0], folder / "circle" / "broken.jpg", tmp_path / "missing.png", NEW[2]]
        answers = list(fitted.classify(mixed, on_bad=bad.append))
        assert [answer.label for answer in answers] == ["circle", "stripes"]
        assert "broken.jpg" in str(bad[0])
        assert "missing.png" in str(bad[1])
        with pytest.raises(BadImage, match="broken"):
            fitted.predict(mixed[:2])

    def test_many_files_are_read_in_batches(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only the batch in the network and the batch that is being read are in memory."""
        from deepbdc.own_images import pictures

        fitted = FewShotClassifier(batch_size=4).fit(EXAMPLES, LABELS)
        file = save(tmp_path / "one.png", "circle", 1)
        decoded = []
        original = pictures.decode
        monkeypatch.setattr(pictures, "decode", lambda *given: decoded.append(1) or original(*given))
        answers = fitted.classify([file] * 40)
        next(answers)
        assert len(decoded) <= 8
        assert len(list(answers)) == 39


class TestLearning:
    @pytest.mark.parametrize(
        ("counts", "right"), [([1, 1, 1], 4), ([3, 1, 2], 5)], ids=["one picture each", "unequal counts"]
    )
    def test_few_pictures(self, counts: list[int], right: int, embedded: list[EmbeddedImage]) -> None:
        chosen = [3 * place + number for place, count in enumerate(counts) for number in range(count)]
        fitted = FewShotClassifier().fit([embedded[index] for index in chosen], [LABELS[index] for index in chosen])
        assert (fitted.predict(NEW) == NEW_LABELS).sum() >= right

    def test_one_class_is_told_apart_from_none_of_these(self, embedded: list[EmbeddedImage]) -> None:
        fitted = FewShotClassifier().fit(embedded[:3], LABELS[:3])
        assert fitted.predict([NEW[0], NEW[2]]).tolist() == ["circle", "circle"]
        assert fitted.predict([NEW[0], NEW[2]], reject=True).tolist() == ["circle", NONE_OF_THESE]
        assert fitted.predict_proba(NEW[:1]).tolist() == [[1.0]]
        assert next(fitted.classify(NEW[0])).runner_up is None
        assert np.abs(fitted.explain(NEW[0]).heat).max() == 1

    def test_one_picture_of_one_class(self, embedded: list[EmbeddedImage]) -> None:
        fitted = FewShotClassifier().fit(embedded[:1], ["circle"])
        assert fitted.predict(embedded[:1], reject=True).tolist() == ["circle"]

    def test_a_hundred_classes(self, embedded: list[EmbeddedImage]) -> None:
        generator = torch.Generator().manual_seed(0)
        many = []
        for number in range(200):
            noise = torch.randn(embedded[0].features.shape, generator=torch.Generator().manual_seed(number // 2))
            noise += 0.1 * torch.randn(noise.shape, generator=generator)
            one = embedded[0]
            many.append(EmbeddedImage(f"{number}", noise, str(number).encode(), one.network))
        labels = [f"class {number // 2:02}" for number in range(200)]
        fitted = FewShotClassifier().fit(many[::2], labels[::2])
        assert len(fitted.classes_) == 100
        assert fitted.score(many[1::2], labels[1::2]) > 0.95

    def test_duplicates_count_once_and_contradictory_labels_warn(self, embedded: list[EmbeddedImage]) -> None:
        plain = FewShotClassifier().fit(embedded, LABELS)
        with pytest.warns(UserWarning, match="the same picture as image 0: it counts once"):
            doubled = FewShotClassifier().fit([*embedded, embedded[0]], [*LABELS, LABELS[0]])
        assert np.allclose(plain.predict_proba(NEW), doubled.predict_proba(NEW))
        assert len(doubled.examples_) == 10
        with pytest.warns(UserWarning, match="one is labelled stripes and the other circle"):
            FewShotClassifier().fit([*embedded, embedded[0]], [*LABELS, "stripes"])

    def test_many_duplicates_are_one_warning(self, embedded: list[EmbeddedImage]) -> None:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            FewShotClassifier().fit([*embedded, *embedded], [*LABELS, *LABELS])
        (message,) = (str(warning.message) for warning in told)
        assert message.count("the same picture as") == 3
        assert message.endswith("and 6 more like these")

    def test_all_unreadable_pictures_are_named_at_once(self, tmp_path: Path) -> None:
        good = save(tmp_path / "good.png", "circle", 0)
        (tmp_path / "empty.png").touch()
        (tmp_path / "text.png").write_text("no picture")
        files = [tmp_path / "empty.png", good, tmp_path / "text.png", tmp_path / "gone.png"]
        with pytest.raises(BadImage, match=r"3 pictures cannot be used") as caught:
            FewShotClassifier().fit(files, ["a", "b", "c", "d"])
        assert [name for name in ("empty", "text", "gone", "good") if f"{name}.png" in str(caught.value)] == [
            "empty",
            "text",
            "gone",
        ]
        with pytest.raises(FileNotFoundError, match=r"there is no picture .*gone\.png"):
            FewShotClassifier().fit(files[3:], ["d"])
        bad: list[BadImage] = []
        assert [image.name for image in FewShotClassifier().embed(files, on_bad=bad.append)] == [str(good)]
        assert len(bad) == 3

    def test_partial_fit_equals_fit_with_all_examples(self, embedded: list[EmbeddedImage]) -> None:
        grown = FewShotClassifier().fit(embedded[:5], LABELS[:5])
        assert len(grown.classes_) == 2
        grown.partial_fit(embedded[5:], LABELS[5:])
        whole = FewShotClassifier().fit(embedded, LABELS)
        assert grown.classes_.tolist() == whole.classes_.tolist()
        assert np.allclose(grown.predict_proba(NEW), whole.predict_proba(NEW))
        first = FewShotClassifier().partial_fit(embedded, LABELS)
        assert np.allclose(first.predict_proba(NEW), whole.predict_proba(NEW))

    def test_partial_fit_does_not_cut_longer_names(self, embedded: list[EmbeddedImage]) -> None:
        grown = FewShotClassifier().fit(embedded[:3], ["a"] * 3).partial_fit(embedded[3:6], ["a much longer name"] * 3)
        assert grown.classes_.tolist() == ["a", "a much longer name"]

    def test_partial_fit_refuses_labels_of_another_type(self, embedded: list[EmbeddedImage]) -> None:
        grown = FewShotClassifier().fit(embedded[:3], LABELS[:3])
        with pytest.raises(ValueError, match="all of one type"):
            grown.partial_fit(embedded[3:4], [7])
        assert grown.classes_.tolist() == ["circle"]

    def test_the_mean_of_unlabelled_pictures_is_subtracted(self, embedded: list[EmbeddedImage], tmp_path: Path) -> None:
        fitted = FewShotClassifier().fit(embedded, LABELS, unlabelled=NEW)
        plain = FewShotClassifier().fit(embedded, LABELS)
        maps = torch.stack([image.features for image in plain.embed(NEW)])
        mean = fitted.embedding_.represent(maps).mean(dim=0)
        assert torch.allclose(fitted.representations_, plain.representations_ - mean, atol=1e-4)
        assert fitted.predict(NEW).tolist() == NEW_LABELS
        fitted.save(tmp_path / "with mean.safetensors")
        again = FewShotClassifier.load(tmp_path / "with mean.safetensors")
        assert np.array_equal(again.predict_proba(NEW), fitted.predict_proba(NEW))
        for number, image in enumerate(NEW):
            image.save(tmp_path / f"{number}.png")
        from_folder = FewShotClassifier().fit(embedded, LABELS, unlabelled=tmp_path)
        assert torch.allclose(from_folder.representations_, fitted.representations_, atol=1e-4)

    @pytest.mark.parametrize(
        ("images", "labels", "message"),
        [
            (EXAMPLES[:2], None, "labels are missing"),
            (EXAMPLES[:2], ["a"], "2 pictures and 1 labels"),
            ([], [], "nothing to learn from"),
            (EXAMPLES[:2], ["a", 1], "all strings or all numbers"),
            (EXAMPLES[:2], ["a", None], "all strings or all numbers"),
            (EXAMPLES[:2], [1.0, float("nan")], "NaN"),
            (EXAMPLES[:2], ["a", NONE_OF_THESE], "may be called"),
        ],
    )
    def test_mistakes_are_explained(self, images: Any, labels: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            FewShotClassifier().fit(images, labels)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"pool": "max"}, "bdc, average"),
            ({"classifier": "svm"}, r"'svm' \(an SVM votes .*Known: logistic, prototype, softmax"),
            ({"classifier": "transport"}, "Known: logistic, prototype, softmax"),
            ({"size": 7}, "pixels from 32 to 2048, got 7"),
            ({"classifier": "logistical"}, "did you mean|Known"),
            ({"C": -1}, "C must be"),
            ({"backbone": "conv4"}, "has no trained weights"),
            ({"backbone": "efficientnet_lite7"}, "no backbone"),
            ({"backbone": "timm/tf_efficientnet_lite"}, "did you mean"),
            ({"batch_size": 0}, "batch_size"),
        ],
    )
    def test_settings_are_checked(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            FewShotClassifier(**settings).fit(EXAMPLES[:2], LABELS[:2])

    def test_a_single_text_is_not_a_list_of_labels(self, embedded: list[EmbeddedImage]) -> None:
        with pytest.raises(ValueError, match="the single text 'robin'"):
            FewShotClassifier().fit(embedded[:5], "robin")
        grown = FewShotClassifier().fit(embedded[:3], LABELS[:3]).partial_fit(embedded[4], "stripes")
        assert grown.classes_.tolist() == ["circle", "stripes"]

    def test_labels_may_mix_numpy_and_python_types(self, embedded: list[EmbeddedImage]) -> None:
        labels = [*np.array(LABELS[:4]), *LABELS[4:]]
        assert len(FewShotClassifier().fit(embedded, labels).classes_) == 3
        grown = (
            FewShotClassifier().fit(embedded[:2], np.array([1, 2], dtype=np.uint8)).partial_fit(embedded[2:3], [300])
        )
        assert grown.classes_.tolist() == [1, 2, 300]

    def test_a_picture_with_two_labels_counts_once_per_label(self, embedded: list[EmbeddedImage]) -> None:
        one = embedded[0]
        with pytest.warns(UserWarning, match="same picture"):
            fitted = FewShotClassifier().fit([one, one, one, embedded[1]], ["a", "b", "b", "b"])
        with pytest.warns(UserWarning, match="same picture"):
            plain = FewShotClassifier().fit([one, one, embedded[1]], ["a", "b", "b"])
        assert np.allclose(fitted.predict_proba(NEW), plain.predict_proba(NEW))

    def test_softmax_with_single_examples(self, embedded: list[EmbeddedImage]) -> None:
        fitted = FewShotClassifier(classifier="softmax").fit(embedded[::3], LABELS[::3])
        assert fitted.score(NEW, NEW_LABELS) > 0.6

    def test_extremely_long_pictures(self, fitted: FewShotClassifier) -> None:
        """Pictures that are extremely long are not enlarged to gigabytes, and raise no error."""
        for size in ((1, 60_000), (60_000, 1), (3, 20_000)):
            assert len(fitted.predict([Image.new("RGB", size, "red")])) == 1
            assert fitted.explain(Image.new("RGB", size, "red")).heat.any()

    def test_reading_pictures_leaves_warning_filters_alone(self, tmp_path: Path, fitted: FewShotClassifier) -> None:
        files = [save(tmp_path / f"{number}.png", "circle", number) for number in range(30)]
        fitted.predict(files[:1])
        before = list(warnings.filters)
        for _ in range(3):
            fitted.predict(files)
        assert warnings.filters == before

    def test_pictures_of_another_network_are_refused(self, embedded: list[EmbeddedImage]) -> None:
        with pytest.raises(ValueError, match="image 0 was embedded by another network"):
            FewShotClassifier(size=96).fit(embedded, LABELS)


class TestScikitLearn:
    def test_settings_and_clones(self) -> None:
        estimator = FewShotClassifier(C=3.0)
        assert estimator.get_params()["C"] == 3.0
        assert clone(estimator.set_params(size=96)).get_params()["size"] == 96

    def test_scikit_learn_takes_it_for_a_classifier(self, fitted: FewShotClassifier) -> None:
        assert is_classifier(FewShotClassifier())
        assert get_tags(FewShotClassifier()).target_tags.required
        check_is_fitted(fitted)
        with pytest.raises(NotFittedError, match="call fit first"):
            FewShotClassifier().predict(NEW)
        assert fitted.score(NEW, NEW_LABELS) == np.mean(fitted.predict(NEW) == np.array(NEW_LABELS))
        assert fitted.score(NEW, fitted.predict(NEW), sample_weight=np.ones(len(NEW))) == 1.0

    def test_parameters(self) -> None:
        parameters = inspect.signature(FewShotClassifier).parameters
        assert FewShotClassifier().get_params() == {name: entry.default for name, entry in parameters.items()}
        assert repr(FewShotClassifier()) == "FewShotClassifier()"
        assert repr(FewShotClassifier(C=3.0, pool="average")) == "FewShotClassifier(pool='average', C=3.0)"
        with pytest.raises(ValueError, match="no parameter 'c'"):
            FewShotClassifier().set_params(c=1)

    def test_cross_validation_and_search(self, embedded: list[EmbeddedImage]) -> None:
        assert cross_val_score(FewShotClassifier(), embedded, LABELS, cv=3).mean() > 0.8
        search = GridSearchCV(FewShotClassifier(), {"C": [0.1, 10.0]}, cv=3).fit(embedded, LABELS)
        assert search.predict(NEW).tolist() == NEW_LABELS

    def test_embedded_pictures_can_be_used_with_any_pooling(self, embedded: list[EmbeddedImage]) -> None:
        search = GridSearchCV(FewShotClassifier(), {"pool": ["both", "own", "bdc", "average"]}, cv=3).fit(
            embedded, LABELS
        )
        assert search.cv_results_["mean_test_score"].min() > 0.6

    def test_arrays_in_cross_validation(self) -> None:
        arrays = np.stack([np.asarray(image) for image in EXAMPLES])
        assert cross_val_score(FewShotClassifier(), arrays, LABELS, cv=3).mean() > 0.8

    def test_in_a_pipeline(self) -> None:
        grey = FunctionTransformer(lambda images: [image.convert("L") for image in images])
        pipeline = make_pipeline(grey, FewShotClassifier()).fit(EXAMPLES, LABELS)
        assert pipeline.score(NEW, NEW_LABELS) > 0.6

    def test_the_names_of_scikit_learn(self, embedded: list[EmbeddedImage]) -> None:
        fitted = FewShotClassifier().fit(X=embedded, y=LABELS)
        assert fitted.predict(X=NEW).tolist() == NEW_LABELS
        assert np.array_equal(fitted.predict_proba(X=NEW), fitted.predict_proba(NEW))
        grown = FewShotClassifier().partial_fit(X=embedded[:6], y=LABELS[:6]).partial_fit(X=embedded[6:], y=LABELS[6:])
        assert np.allclose(grown.predict_proba(NEW), fitted.predict_proba(NEW))
        with pytest.raises(TypeError, match="not both"):
            fitted.predict(NEW, X=NEW)
        with pytest.raises(TypeError, match="give the pictures as images, or as X"):
            fitted.predict()

    def test_decision_function(self, embedded: list[EmbeddedImage]) -> None:
        fitted = FewShotClassifier().fit(embedded, LABELS)
        scores = fitted.decision_function(NEW)
        assert scores.shape == (6, 3)
        assert fitted.classes_[scores.argmax(axis=1)].tolist() == NEW_LABELS
        assert np.allclose(np.exp(scores), fitted.predict_proba(NEW))
        two = FewShotClassifier().fit(embedded[:6], LABELS[:6])
        assert two.decision_function(NEW[:4]).shape == (4,)
        assert (two.decision_function(NEW[:4]) > 0).tolist() == [False, False, True, True]
        assert cross_val_score(FewShotClassifier(), embedded[:6], LABELS[:6], cv=3, scoring="roc_auc").mean() == 1

    def test_columns_of_a_table_and_open_files(self, tmp_path: Path) -> None:
        pandas = pytest.importorskip("pandas")
        files = [str(save(tmp_path / f"{number}.png", kind, number)) for number, kind in enumerate(LABELS)]
        table = pandas.DataFrame({"file": files, "class": LABELS})
        fitted = FewShotClassifier().fit(table["file"], table["class"])
        again = FewShotClassifier().fit(table[["file"]], table[["class"]])
        contents = [io.BytesIO(Path(file).read_bytes()) for file in files]
        assert fitted.predict(contents).tolist() == again.predict(table["file"]).tolist() == LABELS


class TestNetworks:
    def test_networks_by_name_are_shared(self) -> None:
        one, other = (FewShotClassifier().fit(EXAMPLES[:2], LABELS[:2]) for _ in range(2))
        assert one.embedding_ is other.embedding_

    def test_average_pooling(self, tmp_path: Path) -> None:
        fitted = FewShotClassifier(pool="average").fit(EXAMPLES, LABELS)
        assert fitted.representations_.shape == (9, 352)
        assert fitted.predict(NEW).tolist() == NEW_LABELS
        fitted.save(tmp_path / "average.safetensors")
        again = FewShotClassifier.load(tmp_path / "average.safetensors")
        assert np.array_equal(again.predict_proba(NEW), fitted.predict_proba(NEW))

    @pytest.mark.parametrize("classifier", ["prototype", "softmax"])
    def test_other_classifiers(self, classifier: str, embedded: list[EmbeddedImage]) -> None:
        fitted = FewShotClassifier(classifier=classifier).fit(embedded, LABELS)
        assert fitted.score(NEW, NEW_LABELS) == 1

    def test_a_network_of_ones_own(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 5, stride=4), torch.nn.ReLU())
        fitted = FewShotClassifier(backbone=network, size=64).fit(EXAMPLES, LABELS)
        assert fitted.representations_.shape == (9, 8 + 36)  # averages and BDC
        assert len(clone(fitted).fit(EXAMPLES, LABELS).classes_) == 3
        fitted.save(tmp_path / "own.safetensors")
        with pytest.raises(ValueError, match="a network of your own"):
            FewShotClassifier.load(tmp_path / "own.safetensors")
        fresh = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 5, stride=4), torch.nn.ReLU())
        again = FewShotClassifier.load(tmp_path / "own.safetensors", backbone=fresh)
        assert np.allclose(again.predict_proba(NEW), fitted.predict_proba(NEW))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
    def test_fitting_does_not_change_a_network_of_ones_own(self, dtype: torch.dtype) -> None:
        network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 5, stride=4), torch.nn.BatchNorm2d(8)).to(dtype)
        fitted = FewShotClassifier(backbone=network, size=64).fit(EXAMPLES, LABELS)
        assert network.training
        assert network[1].num_batches_tracked == 0
        assert next(network.parameters()).dtype == dtype
        assert fitted.predict(NEW).shape == (6,)
        embedded = fitted.embed(NEW)
        with torch.no_grad():
            network[0].weight.neg_()
        with pytest.raises(ValueError, match="by another network"):
            fitted.predict(embedded)

    def test_a_network_without_weights(self) -> None:
        with pytest.raises(ValueError, match="load them first"):
            FewShotClassifier(backbone=torch.nn.Conv2d(3, 8, 5, device="meta")).fit(EXAMPLES[:2], LABELS[:2])

    def test_a_network_without_a_map_is_explained(self) -> None:
        flat = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten())
        with pytest.raises(ValueError, match=r"feature maps .* it gave \(1, 12\)"):
            FewShotClassifier(backbone=flat).fit(EXAMPLES[:2], LABELS[:2])
        with pytest.raises(TypeError, match="got int"):
            FewShotClassifier(backbone=3).fit(EXAMPLES[:2], LABELS[:2])

    def test_a_timm_model(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Tests have no internet, so the weights are random. What matters is that pretrained weights are requested."""
        asked = {}
        original = create_backbone

        def create(name: str, pretrained: bool) -> Any:
            asked[name] = pretrained
            return original(name, pretrained=False)

        monkeypatch.setattr(networks, "create_backbone", create)
        fitted = FewShotClassifier(backbone="timm/resnet10t", size=64).fit(EXAMPLES[:2], LABELS[:2])
        assert asked == {"timm/resnet10t": True}
        assert fitted.embedding_.preprocessing.input_size == 64

    def test_an_embedding_keeps_its_pooling(self) -> None:
        backbone = create_backbone("conv4")
        embedding = Embedding(backbone, BDCPool(64, reduce_to=8))
        fitted = FewShotClassifier(backbone=embedding).fit(EXAMPLES[:2], LABELS[:2])
        assert fitted.representations_.shape == (2, 36)
        with pytest.raises(ValueError, match="its own pooling"):
            FewShotClassifier(backbone=embedding, pool="average").fit(EXAMPLES[:2], LABELS[:2])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Train a tiny run of a method, once per method."""
    from deepbdc.training.run import train
    from tests.training import tiny

    folder = tmp_path_factory.mktemp("runs")

    def run(method: str) -> Path:
        if not (folder / method).exists():
            train(tiny.recipe(method), folder / method, data=tiny.write_data(folder / "tiny.npz"), quiet=True)
        return folder / method

    return run


class LearntC(Method):
    """Its classifier depends on a number that is saved with the method, but is not part of the embedding."""

    def __init__(self, embedding: Embedding, C: float) -> None:
        super().__init__(embedding, create_classifier("logistic"))
        self.register_buffer("C", torch.tensor(C))

    def classifier_for(self, shot: int) -> Any:
        return create_classifier("logistic", C=float(self.C))


class TestRuns:
    def test_a_trained_run_is_saved_and_loaded(self, tmp_path: Path, runs: Callable[[str], Path]) -> None:
        from deepbdc.runs import load_run

        run = runs("stl_deepbdc")
        fitted = FewShotClassifier(backbone=str(run)).fit(EXAMPLES, LABELS)
        assert fitted.embedding_.preprocessing == load_run(run).method.embedding.preprocessing
        fitted.save(tmp_path / "fitted.safetensors")
        again = FewShotClassifier.load(tmp_path / "fitted.safetensors")
        assert np.array_equal(again.predict_proba(NEW), fitted.predict_proba(NEW))
        again.partial_fit([draw("noise", 1)], ["noise"])
        again.save(tmp_path / "again.safetensors")
        assert "noise" in FewShotClassifier.load(tmp_path / "again.safetensors").classes_
        with pytest.raises(ValueError, match="no fitted classifier"):
            FewShotClassifier.load(run / "model.safetensors")

    @pytest.mark.parametrize("method", ["meta_deepbdc", "protonet", "stl_deepbdc", "good_embed"])
    @pytest.mark.parametrize("shot", [1, 3])
    def test_a_run_uses_its_own_classifier(self, method: str, shot: int, runs: Callable[[str], Path]) -> None:
        from deepbdc.runs import load_run

        chosen = [3 * place + number for place in range(3) for number in range(shot)]
        images, labels = [EXAMPLES[index] for index in chosen], [LABELS[index] for index in chosen]
        fitted = FewShotClassifier(backbone=runs(method)).fit(images, labels)
        trained = load_run(runs(method)).method
        with torch.no_grad():
            support, query = (
                trained.embedding.represent(torch.stack([image.features for image in fitted.embed(given)])).flatten(1)
                for given in (images, NEW)
            )
            scores = trained.classify(support, torch.arange(3).repeat_interleave(shot), query)
        probabilities = torch.softmax(scores.double() * fitted.confidence_.scale, dim=1)
        assert np.allclose(fitted.predict_proba(NEW), probabilities.numpy(), atol=1e-4)

    def test_the_number_of_shots_is_that_of_examples_per_class(self) -> None:
        asked = []

        class Noting(Method):
            def classifier_for(self, shot: int) -> Any:
                asked.append(shot)
                return self.classifier

        method = Noting(Embedding(create_backbone("conv4"), AveragePool(64)), create_classifier("prototype"))
        for count in (1, 5, 8):
            labels = np.arange(count) % min(count, 2)
            FewShotClassifier(backbone=method).fit(EXAMPLES[:count], labels)
        assert list(dict.fromkeys(asked)) == [1, 2, 4]

    def test_a_named_classifier_replaces_that_of_the_run(self, runs: Callable[[str], Path]) -> None:
        from deepbdc.runs import load_run

        run = runs("meta_deepbdc")
        own, named = (FewShotClassifier(run, classifier=name).fit(EXAMPLES, LABELS) for name in (None, "logistic"))
        embedding = load_run(run).method.embedding
        bare = FewShotClassifier(embedding).fit(EXAMPLES, LABELS)
        assert np.allclose(named.predict_proba(NEW), bare.predict_proba(NEW))
        assert not np.allclose(named.predict_proba(NEW), own.predict_proba(NEW), atol=1e-3)
        for fitted in (own, named):
            again = FewShotClassifier.load(fitted.to_bytes())
            assert again.classifier == fitted.classifier
            assert np.array_equal(again.predict_proba(NEW), fitted.predict_proba(NEW))
            assert np.allclose(
                clone(again).fit(EXAMPLES, LABELS).predict_proba(NEW), fitted.predict_proba(NEW), atol=1e-6
            )

    def test_c_of_the_estimator_does_not_change_the_classifier_of_a_run(self, runs: Callable[[str], Path]) -> None:
        one, other = (FewShotClassifier(runs("stl_deepbdc"), C=C).fit(EXAMPLES, LABELS) for C in (0.1, 10.0))
        assert np.array_equal(one.predict_proba(NEW), other.predict_proba(NEW))

    @pytest.mark.parametrize(
        ("classifier", "name"),
        [
            (create_classifier("svm"), "SVMClassifier"),
            (create_classifier("prototype", pool=BDCPool(64, reduce_to=8)), "PrototypeClassifier"),
            (lambda support, labels, query: query, "function"),
        ],
        ids=["SVM", "feature maps", "function"],
    )
    def test_a_classifier_that_cannot_be_kept_is_refused(self, classifier: Any, name: str) -> None:
        method = Method(Embedding(create_backbone("conv4"), AveragePool(64)), classifier)
        with pytest.raises(UserError, match=rf'{name}, cannot be used here .* Give classifier="logistic"'):
            FewShotClassifier(backbone=method).fit(EXAMPLES, LABELS)
        assert len(FewShotClassifier(backbone=method, classifier="logistic").fit(EXAMPLES, LABELS).classes_) == 3

    @pytest.mark.parametrize("name", ["laplacianshot", "ici", "tim", "pt_map"])
    def test_a_transductive_method_is_refused_by_that_word(self, name: str) -> None:
        """Pictures may come one at a time, so an answer must not depend on those beside it."""
        method = create_method(name, "conv4")
        words = "is transductive: its answer for a picture depends on the other pictures that are classified with it"
        with pytest.raises(UserError, match=rf'{words}.* Give classifier="logistic"'):
            FewShotClassifier(backbone=method).fit(EXAMPLES, LABELS)
        assert len(FewShotClassifier(backbone=method, classifier="logistic").fit(EXAMPLES, LABELS).classes_) == 3

    def test_the_inductive_form_of_ici_is_kept(self) -> None:
        method = create_method("ici", "conv4", inference="inductive")
        assert FewShotClassifier(backbone=method).fit(EXAMPLES, LABELS).predict(NEW).shape == (len(NEW),)

    def test_a_method_of_ones_own_is_saved_with_all_its_weights(self) -> None:
        def method(C: float) -> Method:
            return LearntC(Embedding(create_backbone("conv4"), AveragePool(64)), C)

        fitted = FewShotClassifier(method(0.01)).fit(EXAMPLES, LABELS)
        content = fitted.to_bytes()
        with pytest.raises(UserError, match="a network of your own"):
            FewShotClassifier.load(content)
        with pytest.raises(UserError, match="give the network itself"):
            FewShotClassifier.load(content, backbone="efficientnet_lite0")
        again = FewShotClassifier.load(content, backbone=method(100.0))
        assert np.array_equal(again.predict_proba(NEW), fitted.predict_proba(NEW))
        with pytest.raises(UserError, match=r"load\(path, backbone=method\)"):
            FewShotClassifier.load(content, backbone=method(100.0).embedding)

    def test_the_default_classifier_is_restored_even_if_a_method_is_given(self) -> None:
        embedding = Embedding(create_backbone("conv4"), AveragePool(64))
        fitted = FewShotClassifier(embedding).fit(EXAMPLES, LABELS)
        method = Method(Embedding(create_backbone("conv4"), AveragePool(64)), create_classifier("prototype"))
        again = FewShotClassifier.load(fitted.to_bytes(), backbone=method)
        assert np.array_equal(again.predict_proba(NEW), fitted.predict_proba(NEW))
        assert again.classifier is None

    def test_loading_leaves_the_mode_of_a_network_as_it_is(self) -> None:
        fitted = FewShotClassifier(mixed_modes(), size=64).fit(EXAMPLES, LABELS)
        fresh = mixed_modes()
        again = FewShotClassifier.load(fitted.to_bytes(), backbone=fresh)
        assert [part.training for part in fresh.modules()] == MODES
        assert np.array_equal(again.predict_proba(NEW), fitted.predict_proba(NEW))


class TestFiles:
    def test_a_loaded_classifier_equals_the_saved_one(self, fitted: FewShotClassifier, tmp_path: Path) -> None:
        fitted.save(tmp_path / "drawn.safetensors")
        again = FewShotClassifier.load(tmp_path / "drawn.safetensors")
        assert np.array_equal(again.predict_proba(NEW), fitted.predict_proba(NEW))
        assert again.get_params() == fitted.get_params()
        assert again.explain(NEW[0]).nearest[0].thumbnail == fitted.explain(NEW[0]).nearest[0].thumbnail
        assert again.to_bytes() == fitted.to_bytes() == (tmp_path / "drawn.safetensors").read_bytes()
        assert clone(again).fit(EXAMPLES, LABELS).predict(NEW).tolist() == NEW_LABELS

    @pytest.mark.parametrize("labels", [[3, 3, 7], [0.5, 0.5, 2.0], [True, True, False]])
    def test_labels_keep_their_type(self, labels: list[Any], embedded: list[EmbeddedImage]) -> None:
        fitted = FewShotClassifier().fit(embedded[2:5], labels)
        again = FewShotClassifier.load(fitted.to_bytes())
        assert again.classes_.tolist() == fitted.classes_.tolist()
        assert again.classes_.dtype == fitted.classes_.dtype

    def test_the_file_holds_the_settings_of_the_fit(self, embedded: list[EmbeddedImage]) -> None:
        fitted = FewShotClassifier(C=np.int64(7), device=torch.device("cpu"), batch_size=np.int64(4))
        fitted.fit(embedded, LABELS).set_params(size=224, C=3.0)
        again = FewShotClassifier.load(fitted.to_bytes())
        assert (again.size, again.C, again.batch_size) == (None, 7, 4)
        assert np.array_equal(again.predict_proba(NEW), fitted.predict_proba(NEW))

    def test_the_finer_map_is_saved_with_its_name(self) -> None:
        fitted = FewShotClassifier(backbone="efficientnet_lite0_fine").fit(EXAMPLES, LABELS)
        assert fitted.embedding_.out_features == 112 + 112 * 113 // 2
        again = FewShotClassifier.load(fitted.to_bytes())
        assert again.embedding_.out_features == 112 + 112 * 113 // 2
        assert np.array_equal(again.predict_proba(NEW), fitted.predict_proba(NEW))
        assert fitted.score(NEW, NEW_LABELS) == 1

    def test_the_header_is_plain_json(self, fitted: FewShotClassifier) -> None:
        content = fitted.to_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["deepbdc"])
        assert header["labels"] == LABELS
        assert header["embedding"]["name"] == "efficientnet_lite2"

    def test_loading_does_not_warn_of_duplicates_again(self, embedded: list[EmbeddedImage]) -> None:
        with pytest.warns(UserWarning, match="counts once"):
            fitted = FewShotClassifier().fit([embedded[0], *embedded], [LABELS[0], *LABELS])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            FewShotClassifier.load(fitted.to_bytes())

    def test_other_files_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "text.safetensors").write_text("hello")
        with pytest.raises(ValueError, match=r"text\.safetensors is damaged"):
            FewShotClassifier.load(tmp_path / "text.safetensors")
        with pytest.raises(FileNotFoundError, match="there is no file"):
            FewShotClassifier.load(tmp_path / "missing.safetensors")

    def test_saving_and_predicting_need_a_fit(self) -> None:
        for call in (lambda: FewShotClassifier().to_bytes(), lambda: FewShotClassifier().predict(NEW)):
            with pytest.raises(NotFittedError):
                call()


class TestExplanations:
    def test_the_evidence_lies_where_the_object_is(self, fitted: FewShotClassifier) -> None:
        """With a circle in one half of an empty picture, the other half has less evidence."""
        for mirrored in (False, True):
            picture = Image.new("RGB", (192, 192), (230, 230, 230))
            picture.paste(draw("circle", 4), (96 if mirrored else 0, 48))
            heat = fitted.explain(picture, label="circle").heat
            assert heat.shape == (192, 192)
            left, right = np.abs(heat[:, :96]).mean(), np.abs(heat[:, 96:]).mean()
            assert (right > left) == mirrored

    def test_evidence_against_a_naive_twin(self, fitted: FewShotClassifier, embedded: list[EmbeddedImage]) -> None:
        from deepbdc.own_images.explanation import evidence

        features = embedded[0].features

        @torch.no_grad()
        def margin(maps: torch.Tensor) -> torch.Tensor:
            return fitted.rule_(fitted.embedding_.represent(maps).unsqueeze(0))[0, :, 0]

        values = evidence(features, margin)
        whole = margin(features.unsqueeze(0))
        for row, column in ((0, 0), (2, 3), (4, 4)):
            without = features.clone()
            without[:, row, column] = 0
            assert values[row, column] == pytest.approx(float(whole - margin(without.unsqueeze(0))), abs=1e-4)

    def test_the_nearest_examples(self, fitted: FewShotClassifier) -> None:
        explanation = fitted.explain(EXAMPLES[4], neighbours=3)
        first, *others = explanation.nearest
        assert (first.index, first.label) == (4, "stripes")
        assert first.similarity == pytest.approx(1, abs=1e-4)
        assert len(others) == 2
        assert first.similarity >= others[0].similarity >= others[1].similarity

    def test_pictures(self, fitted: FewShotClassifier, tmp_path: Path) -> None:
        explanation = fitted.explain(Image.new("RGB", (300, 100), "red"))
        assert explanation.overlay().size == explanation.picture.size == (224, 75)
        assert explanation.heat.shape == (75, 224)
        assert not explanation.heat[:, :70].any()  # this part is cropped away
        explanation.save(tmp_path / "why.png")
        assert Image.open(tmp_path / "why.png").width > 500

    def test_for_another_class(self, fitted: FewShotClassifier) -> None:
        assert fitted.explain(NEW[0], label="triangle").label == "triangle"
        with pytest.raises(ValueError, match="none of the classes: circle"):
            fitted.explain(NEW[0], label="square")


@pytest.fixture(scope="module")
def session(fitted: FewShotClassifier, tmp_path_factory: pytest.TempPathFactory) -> Any:
    import onnxruntime

    path = tmp_path_factory.mktemp("onnx") / "drawn.onnx"
    fitted.to_onnx(path)
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


class TestONNX:
    def test_the_same_answers(self, session: Any, fitted: FewShotClassifier) -> None:
        metadata = session.get_modelmeta().custom_metadata_map
        assert json.loads(metadata["classes"]) == fitted.classes_.tolist()
        side = int(metadata["resize"])
        assert metadata["size"] == metadata["resize"]
        pictures = [*NEW, draw("noise", 0)]
        resized = [image.resize((side, side), Image.Resampling.BICUBIC) for image in pictures]
        batch = np.stack([np.asarray(image, dtype=np.float32).transpose(2, 0, 1) / 255 for image in resized])
        probabilities, rejected = session.run(None, {"images": batch})
        assert np.allclose(probabilities, fitted.predict_proba(pictures), atol=1e-4)
        assert rejected.tolist() == [answer.rejected for answer in fitted.classify(pictures)]
        (one, _) = session.run(None, {"images": batch[:1]})
        assert np.allclose(one, probabilities[:1], atol=1e-4)

    def test_the_export_leaves_the_mode_of_a_network_as_it_is(self, tmp_path: Path) -> None:
        import onnxruntime

        network = mixed_modes()
        fitted = FewShotClassifier(network, size=64).fit(EXAMPLES, LABELS)
        fitted.to_onnx(tmp_path / "own.onnx")
        assert [part.training for part in network.modules()] == MODES
        session = onnxruntime.InferenceSession(str(tmp_path / "own.onnx"), providers=["CPUExecutionProvider"])
        resized = [np.asarray(image.resize((64, 64), Image.Resampling.BILINEAR)) for image in NEW]
        batch = np.stack(resized).transpose(0, 3, 1, 2).astype(np.float32) / 255
        first, second = (session.run(None, {"images": batch})[0] for _ in range(2))
        assert np.array_equal(first, second), "dropout is off in the exported model"
