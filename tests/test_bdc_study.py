"""benchmarks/bdc_study.py computes the same accuracies as `deepbdc.evaluate`."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from deepbdc.backbones import create_backbone
from deepbdc.classifiers import create_classifier
from deepbdc.data.dataset import ArrayDataset
from deepbdc.embedding import Embedding, pixel_embedding
from deepbdc.episodes import sample_episodes
from deepbdc.evaluation import evaluate
from deepbdc.feature_bank import build_bank
from deepbdc.methods import Method
from deepbdc.pooling import AveragePool, BDCPool

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import bdc_study
from study import frozen, products, report, scratch, sharing


@pytest.fixture(scope="module")
def pictures() -> ArrayDataset:
    """Images of noise, with a weak pattern for each class."""
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


def test_second_moment_agrees_with_the_formula() -> None:
    maps = torch.randn(2, 3, 2, 2)
    for image, row in zip(maps, frozen.second_moment(maps), strict=True):
        x = image.reshape(3, 4)
        expected = []
        for k in range(3):
            for other in range(k, 3):
                moment = float((x[k] * x[other]).mean())
                expected.append(np.sign(moment) * abs(moment) ** 0.5)
        np.testing.assert_allclose(row.numpy(), expected, rtol=1e-5)


def test_triangle_weights_give_the_weighted_bdc_vector() -> None:
    maps = torch.randn(2, 5, 3, 3)
    weighted: Tensor = BDCPool(5, output="weighted")(maps)
    torch.testing.assert_close(BDCPool(5)(maps) * scratch.triangle_weights(5), weighted)


def test_runs_share_their_common_stages() -> None:
    """A run with episodes starts from the transfer run with the same settings, a second generation from the first."""
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
        assert run.recipe().stages["pretrain"] == parent.recipe().stages["pretrain"]
        assert run.recipe().seed == parent.recipe().seed
        assert run.recipe().evaluation is None  # the test classes are not used


def test_the_best_strength_is_chosen_on_the_validation_classes() -> None:
    percent = {
        "bdc, prototypes, 5-way 1-shot": 90.0,
        "bdc, logistic C=1, 5-way 1-shot": 50.0,
        "bdc, logistic C=10, 5-way 1-shot": 60.0,
        "bdc, logistic C=100, 5-way 1-shot": 60.0,
    }
    assert frozen.best_strengths(percent) == {"bdc, logistic, 1-shot": 10.0}


def write_cifar_fs(folder: Path) -> Path:
    """Write files in the format of CIFAR-FS, with few images."""
    generator = np.random.default_rng(0)
    for name, splits in (("train", {"train": 64}), ("valtest", {"val": 16, "test": 20})):
        count = sum(splits.values())
        labels = np.arange(count).repeat(24)
        patterns = generator.integers(0, 256, (count, 4, 4, 3)).repeat(8, axis=1).repeat(8, axis=2)
        images = patterns[labels] + generator.normal(0, 60, (len(labels), 32, 32, 3))
        np.savez(
            folder / f"cifar_fs_{name}.npz",
            images=images.clip(0, 255).astype(np.uint8),
            labels=labels,
            class_names=np.array([f"{name} {label}" for label in range(count)]),
            class_split=np.array([split for split, number in splits.items() for _ in range(number)]),
        )
    return folder


def test_a_setting_from_training_to_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "EPISODES", 20)
    data, work, results = write_cifar_fs(tmp_path), tmp_path / "work", tmp_path / "results"
    short = ("pretrain.epochs=1", "pretrain.warmup=0", "meta.epochs=1", "meta.episodes=4", "validation.episodes=5")
    setting = scratch.Setting("x", "factor", "value", both=short, pair="meta", scoring=("own, euclidean",) * 2)
    for run in setting.runs():
        assert run.parent is not None
        scratch.train_and_score(run, work, results / "runs", data)
        assert scratch.finished(run.parent, results / "runs")  # the parent was trained, too
        log = (work / run.name / "log.jsonl").read_text()
        assert '"stage": "meta"' in log
        assert '"stage": "pretrain"' not in log  # copied from the parent
    shutil.rmtree(work)  # as in a new clone, which has the results but not the networks
    again = scratch.trained(run, work, data)
    assert '"stage": "pretrain"' not in (again / "log.jsonl").read_text()
    row = report.scratch_row(setting, results, "val")
    for shot in (1, 5):
        found, counts = row.differences[shot], []
        for run in setting.runs():
            with np.load(results / "runs" / f"{run.name}.npz") as arrays:
                counts.append(100 * arrays[f"own, euclidean, {shot}-shot"] / 75)
        assert found.mean == pytest.approx((counts[1] - counts[0]).mean())
        assert found.interval == pytest.approx(1.96 * (counts[1] - counts[0]).std() / 20**0.5)
    assert "scratch x --again" in row.command
    assert not sharing.is_taken(setting.runs()[0].name, work)


def test_a_frozen_unit_from_images_to_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The accuracies equal those of `deepbdc.evaluate` with the backbone of `FewShotClassifier`."""
    few = {"IMAGES": {"test": 160, "val": 128, "mean": 16}, "WAYS": {5: 10, 20: 2}, "SHOTS": (1, 5), "WHOLE": (96,)}
    for name, value in (few | {"QUERIES": 3, "VALIDATION_EPISODES": 4}).items():
        monkeypatch.setattr(frozen, name, value)
    data, results = write_cifar_fs(tmp_path), tmp_path / "results"
    unit = frozen.Unit("cifar_fs", "test", 96, "last")
    words = ["frozen", unit.name, "--data", str(data), "--results", str(results), "--work", str(tmp_path / "work")]
    monkeypatch.setattr(sys, "argv", ["bdc_study.py", *words])
    bdc_study.main()
    printed = capsys.readouterr().out
    assert frozen.finished(unit.validation, results / "frozen")  # C was chosen on it
    measured = report.Frozen(results)
    backbone = create_backbone("efficientnet_lite0")
    small = replace(backbone.preprocessing, input_size=96, resize=96)
    for pool, name in ((AveragePool(320), "average"), (BDCPool(320), "bdc")):
        method = Method(Embedding(backbone, pool, small), create_classifier("prototype", similarity="cosine"))
        for way, episodes in frozen.WAYS.items():
            images = frozen.subset("cifar_fs", "test", data, 160)
            expected = evaluate(method.eval(), images, way=way, shot=5, query=3, episodes=episodes, seed=0)
            counts = measured.counts[unit][f"{name}, prototypes, {way}-way 5-shot"]
            np.testing.assert_allclose(100 * counts / (3 * way), expected.accuracies, atol=1e-9)
    for classifier in ("prototypes", "logistic", "svm"):
        found = measured.difference(unit, "bdc", classifier, 20, 5)
        assert f"CIFAR-FS, 20-way | {classifier} | " in printed
        assert f"{found.baseline:.2f}, " in printed
        assert str(found) in printed


def test_training_hours_count_all_cores(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for name, seconds, threads in (("a", 3600, 1), ("b", 7200, 2)):
        (tmp_path / "runs" / f"{name}.json").write_text(json.dumps({"seconds": seconds, "threads": threads}))
    assert report.training_hours(tmp_path) == pytest.approx(2.5)


def test_minutes_of_a_row_count_its_runs_and_each_parent_once(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    spent = {"good_embed": 600, "good_embed,distill.generations=1": 60, "stl_deepbdc": 6000, "protonet": 30}
    for name, seconds in spent.items():
        (tmp_path / "runs" / f"{name}.json").write_text(json.dumps({"seconds": seconds, "threads": 2}))
    runs = [scratch.Run("good_embed", ("distill.generations=1",)), scratch.Run("protonet", ())]
    assert report.training_minutes(runs, tmp_path) == pytest.approx(23)


def test_c_is_chosen_for_each_number_of_shots() -> None:
    percent = {
        "own, logistic C=1, 1-shot": 50.0,
        "own, logistic C=3, 1-shot": 51.0,
        "own, logistic C=1, 5-shot": 70.0,
        "own, logistic C=3, 5-shot": 69.0,
        "own centred, logistic C=3, 5-shot": 90.0,
    }
    assert report.best_title(percent, "own, logistic", 1) == "own, logistic C=3, 1-shot"
    assert report.best_title(percent, "own, logistic", 5) == "own, logistic C=1, 5-shot"


def test_a_page_is_filled_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- generated: a -->\nold\n<!-- end: a -->\nafter\n")
    for content in ("new", "newer"):
        report.fill(page, {"a": content})
        assert page.read_text() == f"before\n<!-- generated: a -->\n{content}\n<!-- end: a -->\nafter\n"
    with pytest.raises(ValueError, match="start and end marks of 'b' exactly once"):
        report.fill(page, {"b": "c"})
