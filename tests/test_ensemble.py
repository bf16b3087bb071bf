"""Ensembles, against the mean of the scores that their members give one by one, each in its own unit."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from deepbdc import Ensemble, create_backbone, create_method, evaluate
from deepbdc._fingerprint import weights_fingerprint
from deepbdc.cli import main
from deepbdc.episodes import sample_episodes
from deepbdc.errors import UserError
from deepbdc.gallery import load_result
from deepbdc.methods import Method
from deepbdc.preprocessing import Preprocessing
from deepbdc.training.run import train
from tests.scripts import script
from tests.test_evaluation import DATA
from tests.training import tiny


def member(name: str, size: int = 16, seed: int = 0, **options: object) -> Method:
    """A method with random weights for small images."""
    torch.manual_seed(seed)
    prepared = Preprocessing(input_size=size, resize=size)
    return create_method(name, create_backbone("conv4", width=0.1), preprocessing=prepared, **options).eval()


def trio() -> list[Method]:
    """A vector, a map, and another size of images; all with other classifiers."""
    return [member("stl_deepbdc"), member("dn4", size=24, seed=1, scale=0.05), member("meta_baseline", seed=2)]


def in_units(one: Method, support: Tensor, labels: Tensor, query: Tensor) -> Tensor:
    """Naively: scores minus their mean over the classes, over the root mean square of such scores of the support."""
    with torch.no_grad():
        scores, own = one.classify(support, labels, query), one.classify(support, labels, support)
    squares = [float((value - row.mean()) ** 2) for row in own for value in row]
    return (scores - scores.mean(1, keepdim=True)) / (sum(squares) / len(squares)) ** 0.5


def naive_accuracies(members: list[Method], shot: int) -> list[float]:
    banks = [one.source(DATA) for one in members]
    found = []
    for episode in sample_episodes(DATA, way=3, shot=shot, query=4, count=12, seed=3):
        labels = torch.from_numpy(episode.support_labels)
        total = torch.zeros(len(episode.query), 3)
        for one, bank in zip(members, banks, strict=True):
            total += in_units(one, bank.rows(episode.support), labels, bank.rows(episode.query))
        found.append(100 * float((total.argmax(1).numpy() == episode.query_labels).mean()))
    return found


@pytest.mark.parametrize("shot", [1, 3])
def test_scores_are_averaged(shot: int) -> None:
    members = trio()
    result = evaluate(Ensemble(members), DATA, way=3, shot=shot, query=4, episodes=12, seed=3)
    assert result.accuracies.tolist() == pytest.approx(naive_accuracies(members, shot))
    assert all(name in result.classifier for name in ("Logistic", "ImageToClass", "Prototype"))
    assert "3 networks" in result.kept


def test_scores_of_several_tasks_are_those_of_each() -> None:
    members = [member("stl_deepbdc"), member("meta_baseline", seed=2)]
    joined, images = Ensemble(members), torch.rand(7, 3, 16, 16)
    with torch.no_grad():
        rows, labels = joined.embed(images), torch.tensor([0, 0, 1, 1])
        scores = joined.classify(rows[:4], labels, rows[4:])
        single = [one.embed(images) for one in members]
    expected = [in_units(one, row[:4], labels, row[4:]) for one, row in zip(members, single, strict=True)]
    torch.testing.assert_close(scores, (expected[0] + expected[1]) / 2)
    batch = joined.classify(rows[None, :4].repeat(3, 1, 1), labels.repeat(3, 1), rows[None, 4:].repeat(3, 1, 1))
    torch.testing.assert_close(batch, scores.expand(3, -1, -1))


def test_no_member_decides_alone_because_its_scores_are_larger() -> None:
    """A factor on the scores of a member changes nothing."""
    sharp, other, images = member("meta_baseline"), member("stl_deepbdc", seed=1), torch.rand(8, 3, 16, 16)
    labels = torch.tensor([0, 0, 1, 1])

    def scores() -> Tensor:
        joined = Ensemble([sharp, other])
        with torch.no_grad():
            rows = joined.embed(images)
            return joined.classify(rows[:4], labels, rows[4:])

    before = scores()
    with torch.no_grad():
        next(sharp.classifier.parameters()).mul_(1000)
    torch.testing.assert_close(scores(), before)


def test_support_images_are_no_queries_of_a_transductive_member() -> None:
    members = [member("stl_deepbdc"), member("tim", seed=2)]
    joined, images = Ensemble(members), torch.rand(9, 3, 16, 16)
    labels = torch.tensor([0, 0, 1, 1])
    with torch.no_grad():
        rows, single = joined.embed(images), [one.embed(images) for one in members]
        scores = joined.classify(rows[:4], labels, rows[4:])
    expected = [in_units(one, row[:4], labels, row[4:]) for one, row in zip(members, single, strict=True)]
    torch.testing.assert_close(scores, (expected[0] + expected[1]) / 2)


def test_the_fingerprint_is_of_all_members() -> None:
    first, second = member("stl_deepbdc"), member("good_embed", seed=1)
    before = weights_fingerprint(Ensemble([first, second]))
    with torch.no_grad():
        next(second.parameters()).add_(1)
    assert weights_fingerprint(Ensemble([first, second])) != before


def test_an_ensemble_with_a_transductive_member_is_transductive() -> None:
    assert not Ensemble([member("stl_deepbdc"), member("good_embed")]).transductive
    joined = Ensemble([member("stl_deepbdc"), member("pt_map")])
    assert joined.transductive
    assert joined.assumes_balanced_queries


def test_what_an_ensemble_cannot_do_is_said() -> None:
    with pytest.raises(UserError, match="at least two methods, got 1"):
        Ensemble([member("stl_deepbdc")])
    with pytest.raises(UserError, match="no linear rule"):
        Ensemble(trio()).rule(torch.zeros(1, 2, 5), torch.tensor([[0, 1]]), 2)
    for changed in ({"crops": 2}, {"power": 0.5}, {"base": DATA}):
        with pytest.raises(UserError, match=r"DN4 takes a feature map .* leave out crops, power and centre"):
            evaluate(Ensemble(trio()), DATA, way=3, episodes=2, **changed)
        with pytest.raises(UserError, match=r"MAML takes pictures .* leave out crops, power and centre"):
            evaluate(Ensemble([member("stl_deepbdc"), member("maml")]), DATA, way=3, episodes=2, **changed)


def test_a_member_without_any_spread_has_no_say() -> None:
    blind, other, images = member("good_embed"), member("stl_deepbdc", seed=1), torch.rand(8, 3, 16, 16)
    labels = torch.tensor([0, 0, 1, 1])
    joined = Ensemble([blind, other])
    with torch.no_grad():
        row = other.embed(images)
        rows = torch.cat([torch.ones(8, joined.embed(images).shape[1] - row.shape[1]), row], dim=1)
        scores = joined.classify(rows[:4], labels, rows[4:])
    torch.testing.assert_close(scores, in_units(other, row[:4], labels, row[4:]) / 2)


def test_crops_and_the_mean_of_the_training_images() -> None:
    members = [member("stl_deepbdc"), member("meta_baseline", seed=2)]
    settings = {"way": 3, "shot": 1, "query": 4, "episodes": 12, "seed": 3}
    result = evaluate(Ensemble(members), DATA, **settings, crops=2, base=DATA)
    assert (result.crops, result.centre) == (2, True)
    assert not np.array_equal(result.accuracies, evaluate(Ensemble(members), DATA, **settings).accuracies)


def test_the_command_line_and_the_gallery(tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [tmp_path / "one", tmp_path / "two"]
    for seed, run in enumerate(runs):
        train(tiny.recipe("good_embed", distill=None, seed=seed), run, data=tiny_data, quiet=True)
    main(["evaluate", str(runs[0]), "--ensemble", str(runs[1])])
    assert "2 networks" in " ".join(capsys.readouterr().out.split())
    file = runs[0] / "evaluation-tiny-test-with-two.json"
    kept = script("keep").keep(file, tmp_path / "gallery")
    assert kept.name == "one_ensemble2.json"
    assert str(tmp_path) not in kept.read_text()
    assert load_result(kept).results[0].weights_fingerprint != load_result(runs[0]).results[0].weights_fingerprint
    for wrong, message in (
        ([str(runs[0]), "--ensemble", "conv4"], "conv4 is not a trained run"),
        (["conv4", "--ensemble", str(runs[0])], "conv4 is not a trained run"),
        ([str(runs[0]), "--ensemble", str(runs[1]), "--classifier", "svm"], "leave out --classifier"),
    ):
        with pytest.raises(SystemExit, match=message):
            main(["evaluate", *wrong])
