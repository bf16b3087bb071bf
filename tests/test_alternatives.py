"""The benchmark beside other tools: its tasks, its contestants, its table, and how it talks to trained contestants."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.drawings import save
from tests.scripts import script

benchmark = script("alternatives")
KINDS = ("circle", "stripes", "triangle", "noise", "square")
ECHO = """
import json, sys
from pathlib import Path
print(json.dumps({"title": "echo"}), flush=True)
for line in sys.stdin:
    folder = Path(line.strip())
    labels = {file.read_bytes(): int(file.parent.name) for file in (folder / "examples").glob("*/*")}
    queries = sorted((folder / "queries").iterdir())
    print(json.dumps([len(labels), len(queries)] + [0] * (len(queries) - 2)), flush=True)
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Five classes of drawings with twenty pictures each, the test split of a folder."""
    folder = tmp_path_factory.mktemp("photos")
    for kind in KINDS:
        for number in range(20):
            save(folder / "test" / kind / f"{number}.png", kind, number)
    return benchmark.Photos.of("CUB", folder)


def test_tasks_are_disjoint_and_those_of_one_shot_begin_those_of_five(photos: Any) -> None:
    for one, five in zip(benchmark.tasks_of(photos, 1, 3), benchmark.tasks_of(photos, 5, 3), strict=True):
        assert one.examples == five.examples[::5]
        assert not set(five.examples) & set(five.queries)
        assert len(five.queries) == 75
        shown = photos.labels[five.examples].reshape(5, 5)
        assert (shown == shown[:, :1]).all()
        assert (photos.labels[five.queries].reshape(5, 15) == shown[:, :1]).all()
    assert [task.number for task in benchmark.tasks_of(photos, 5, 2)] == [0, 1]


def test_accuracy_counts_right_answers(photos: Any) -> None:
    (task,) = benchmark.tasks_of(photos, 1, 1)
    right = np.repeat(np.arange(5), 15)
    assert task.accuracy(right.tolist()) == 100
    assert task.accuracy([0] * 75) == 20


def test_pooled_features_are_those_of_timm(photos: Any) -> None:
    """The rows "timm + scikit-learn" are computed by our engine: on the same pixels, it gives what timm gives."""
    import timm
    import torch

    from deepbdc.backbones.efficientnet_lite import imagenet_weights
    from deepbdc.data.transforms import test_transform
    from deepbdc.own_images.networks import find_embedding

    name = "efficientnet_lite0"
    (task,) = benchmark.tasks_of(photos, 1, 1)
    network = timm.create_model(f"tf_{name}")
    network.load_state_dict(imagenet_weights(name))
    network.reset_classifier(0)
    transform = test_transform(find_embedding(name, "own", None, "cpu").preprocessing)
    few = benchmark.Task(photos, 1, 0, task.examples[:2], task.queries[:1])
    pixels = torch.stack([transform(photos.picture(index)) for index in few.examples + few.queries])
    with torch.no_grad():
        expected = network.eval()(pixels).numpy()
    found = np.concatenate(benchmark.pooled(few, benchmark.Maps(None), name))
    similarity = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    assert similarity.min() > 0.999


@pytest.mark.filterwarnings("error")
def test_the_tool_answers_as_it_does_for_a_person(photos: Any) -> None:
    """Embedded pictures with their parts, all examples counted, get the labels that the pictures get."""
    (whole,) = benchmark.tasks_of(photos, 5, 1)
    examples = [index for place, index in enumerate(whole.examples) if place % 5 < 2]
    task = benchmark.Task(photos, 2, 0, examples, whole.queries[::15])
    own = benchmark.FewShotClassifier().fit([photos.picture(index) for index in examples], task.example_labels)
    expected = own.predict([photos.picture(index) for index in task.queries]).tolist()
    assert benchmark.deepbdc_tool(task, benchmark.Maps(None)) == expected
    assert len(set(expected)) >= 4


def test_maps_are_computed_once_and_kept(photos: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, drawn = "efficientnet_lite0", photos.picture(3)
    monkeypatch.setattr(
        type(photos), "picture", lambda self, index: drawn.resize((256, 256))
    )  # tiny ones have no parts
    (first,) = benchmark.Maps(tmp_path).of(photos, name, [3], True)
    assert first.parts.shape == (2, *first.features.shape)
    monkeypatch.setattr(type(photos), "picture", lambda self, index: pytest.fail("the picture was read again"))
    (again,) = benchmark.Maps(tmp_path).of(photos, name, [3], True)
    assert (again.features - first.features).abs().max() < 0.02
    assert again.network == first.network


def test_differences_are_paired_on_the_tasks_that_both_have() -> None:
    cell, other = ("CUB", 1), ("CUB", 5)
    accuracies = np.array([50.0, 60.0, 100.0])
    first = benchmark.Row("first", {cell: accuracies, other: accuracies}, {cell: 1.0})
    short = benchmark.Row("short", {cell: np.array([52.0, 62.0]), other: np.array([49.0])}, {cell: 9.0})
    lines = benchmark.table([first, short])
    accuracy, difference, seconds = (line.split()[1:] for line in lines if line.strip().startswith("short"))
    assert accuracy == ["1-2", "57.0", "±", "6.9", "49.0"]
    assert difference == ["1-2", "+2.0", "±", "0.0", "-1.0"]
    assert seconds == ["1-2", "9"]


def test_answers_are_kept(photos: Any, tmp_path: Path) -> None:
    asked = []

    def answer(task: Any, maps: Any) -> list[int]:
        asked.append((task.shot, task.number))
        return [0] * 75

    for until in (float("inf"), 0):  # the second time, only those that were kept
        contestant = benchmark.Contestant("always the first", answer, 2, until=until)
        (row,) = benchmark.measured([contestant], [photos], tmp_path)
        assert row.accuracies["CUB", 5].tolist() == [20, 20]
    assert asked == [(1, 0), (5, 0), (1, 1), (5, 1)]
    (row,) = benchmark.measured([benchmark.Contestant("too late", answer, 2, until=0)], [photos], tmp_path)
    assert [len(values) for values in row.accuracies.values()] == [0, 0]


def test_a_trained_contestant_gets_the_pictures_of_a_task(
    photos: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "echo.py"
    program.write_text(ECHO, encoding="utf-8")
    monkeypatch.setattr(benchmark, "TRAINED", program)
    (contestant,), absent = benchmark.with_training({"fastai": sys.executable, "other": None}, [3], 1, float("inf"))
    assert contestant.title == "echo"
    assert absent == ["other is left out: no Python that has it was given (--other PYTHON)"]
    (task,) = benchmark.tasks_of(photos, 5, 1)
    assert list(contestant.answer(task, None))[:2] == [25, 75]
    contestant.answer.close()


def test_a_package_that_is_not_there_is_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "missing.py"
    program.write_text(f"print({json.dumps(json.dumps({'missing': 'No module named fastai'}))})", encoding="utf-8")
    monkeypatch.setattr(benchmark, "TRAINED", program)
    found, absent = benchmark.with_training({"fastai": sys.executable}, [3], 1, float("inf"))
    assert found == []
    assert absent == ["fastai is left out: No module named fastai"]


def test_the_page_has_the_table_of_the_results() -> None:
    page = (Path(__file__).parent.parent / "docs" / "alternatives.md").read_text(encoding="utf-8")
    for line in benchmark.RESULTS.read_text(encoding="utf-8").splitlines():
        assert line.rstrip() in page
