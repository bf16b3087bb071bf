from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from deepbdc.evaluation import evaluate
from deepbdc.report.evaluation import (
    EvaluationRequest,
    class_interval_in_words,
    default_output,
    results_table,
    run,
    table,
)
from tests.report.test_comparison import arrays, colours
from tests.report.test_comparison import run as untrained_run


def request(path: Path, **options: Any) -> EvaluationRequest:
    return EvaluationRequest("runs/x", str(path), shots=(1, 5), query=4, episodes=20, seed=2, **options)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return arrays(tmp_path / "colours.npz", seed=0)


def test_a_run_is_evaluated_with_its_own_classifier(data: Path) -> None:
    trained = untrained_run("x", "meta_deepbdc")
    results = run(request(data), trained)
    assert ["inner_product" in result.classifier for result in results] == [True, False]
    for shot, result in zip((1, 5), results, strict=True):
        expected = evaluate(trained.method, colours(), shot=shot, query=4, episodes=20, seed=2)
        assert np.array_equal(result.accuracies, expected.accuracies)


def test_another_classifier_replaces_that_of_the_run(data: Path) -> None:
    results = run(request(data, classifier="svm"), untrained_run("x", "stl_deepbdc"))
    assert all(result.classifier.startswith("SVMClassifier") for result in results)


def test_shards_give_the_same_accuracies(data: Path) -> None:
    from deepbdc.feature_bank import Shard

    alone = run(request(data), untrained_run("x"))
    only = Shard(0, 1, lambda part: part[None])
    shared = run(request(data), untrained_run("x"), shard=only)
    for one, other in zip(alone, shared, strict=True):
        assert np.array_equal(one.accuracies, other.accuracies)


def text(laid_out: Any) -> str:
    console = Console(width=100, record=True)
    console.print(laid_out)
    return " ".join(console.export_text().split())  # titles may be wrapped


def test_tables_show_data_and_results(data: Path) -> None:
    results = run(request(data), untrained_run("x"))
    for printed in (text(results_table("[x]", results)), text(table(request(data), results, trained=True))):
        assert "colours test, 5-way, 4 queries per class, 20 episodes" in printed
        assert all(str(result) in printed for result in results)
        assert all(class_interval_in_words(result.ci95_classes) in printed for result in results)
        assert "(± 95 % interval over classes: these 8 as a sample of all such classes)" in printed
    assert "[x]" in text(results_table("[x]", results))  # not taken as markup
    assert "the run's own" in text(table(request(data), results, trained=True))
    assert "svm" in text(table(request(data, classifier="svm"), results, trained=True))
    assert "runs/x (untrained), bdc" in text(table(request(data), results))


@pytest.mark.parametrize(
    ("dataset", "classifier", "expected"),
    [
        ("glyphs", None, "evaluation-glyphs-val.json"),
        ("miniimagenet->cub", "svm", "evaluation-miniimagenet_to_cub-val-svm.json"),
        ("my photos/2", None, "evaluation-my_photos_2-val.json"),
    ],
)
def test_default_file_of_results(dataset: str, classifier: str | None, expected: str, tmp_path: Path) -> None:
    results: Any = [SimpleNamespace(dataset=dataset, split="val")]
    trained: Any = SimpleNamespace(folder=tmp_path)
    assert default_output(request(tmp_path, classifier=classifier), results, trained) == tmp_path / expected
