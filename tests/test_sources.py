"""Evaluations with several crops, a power, and the mean of the training images subtracted, against naive versions."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from deepbdc import Embedding, create_backbone, create_method, evaluate
from deepbdc.cli import main
from deepbdc.data.dataset import ArrayDataset
from deepbdc.data.views import ViewsOfImages
from deepbdc.embedding import pixel_embedding
from deepbdc.episodes import sample_episodes
from deepbdc.errors import NotEnoughMemory, UserError
from deepbdc.feature_bank import build_bank
from deepbdc.gallery import load_result
from deepbdc.methods import Method
from deepbdc.methods.base import TrainingClasses
from deepbdc.pooling import KeepMap
from deepbdc.preprocessing import AtTestTime, Preprocessing
from deepbdc.recipes import recipe_from_dict
from deepbdc.runs import load_run
from deepbdc.training.run import train
from tests.scripts import script
from tests.test_evaluation import DATA, dataset, method, network
from tests.training import tiny

BASE = dataset(classes=3, images=11, seed=5)
FIVE = AtTestTime(crops=5, crop_side=0.7)


def naive_rows(embedding: Embedding, data: ArrayDataset, test_time: AtTestTime) -> Tensor:
    """The fused representation of each image, one image and one view at a time."""
    views = ViewsOfImages(embedding.preprocessing, test_time)
    rows = []
    for image in data.images:
        with torch.no_grad():
            single = [embedding(view[None])[0] for view in views.of_arrays(image[None])[0]]
        lengths = [float((row * row).sum()) ** 0.5 for row in single]
        direction = sum(row / length for row, length in zip(single, lengths, strict=True)) / len(single)
        rows.append(direction * sum(lengths) / len(lengths))
    return torch.stack(rows)


def naive_accuracies(tried: Method, rows: Tensor, **settings: int) -> list[float]:
    found = []
    for episode in sample_episodes(DATA, **settings):
        labels = torch.from_numpy(episode.support_labels)
        scores = tried.classify(rows[episode.support], labels, rows[episode.query])
        found.append(100 * float((scores.argmax(1).numpy() == episode.query_labels).mean()))
    return found


@pytest.mark.parametrize("crops", [2, 5, 10])
def test_the_bank_has_the_fused_representation_of_each_image(crops: int) -> None:
    embedding, chosen = network(), AtTestTime(crops=crops, crop_side=0.7)
    bank = build_bank(embedding, DATA, batch_size=9, test_time=chosen)
    torch.testing.assert_close(bank.features, naive_rows(embedding, DATA, chosen), atol=1e-5, rtol=1e-4)
    assert bank.kept.startswith(f"representations, float32, mean of {crops} views")
    assert bank.features.numel() == build_bank(embedding, DATA).features.numel(), "no more memory than without views"


def test_each_view_is_embedded_once() -> None:
    embedding, seen = network(), []
    embedding.register_forward_hook(lambda _, given, __: seen.append(len(given[0])))
    bank = build_bank(embedding, DATA, test_time=FIVE)
    tried = method("prototype", embedding)
    for shot in (1, 3):
        evaluate(tried, DATA, shot=shot, query=3, episodes=7, bank=bank)
    assert sum(seen) == 5 * len(DATA)


def test_crops_and_centring_equal_the_naive_way() -> None:
    tried, settings = method("logistic"), {"way": 5, "shot": 2, "query": 6, "seed": 3}
    rows = naive_rows(tried.embedding, DATA, FIVE)
    found = evaluate(tried, DATA, episodes=30, **settings, crops=5, crop_side=0.7)
    assert found.accuracies.tolist() == pytest.approx(naive_accuracies(tried, rows, count=30, **settings))
    assert (found.crops, found.crop_side, found.centre) == (5, 0.7, False)

    centred = rows - naive_rows(tried.embedding, BASE, FIVE).mean(dim=0)
    found = evaluate(tried, DATA, episodes=30, **settings, crops=5, crop_side=0.7, base=BASE)
    assert found.accuracies.tolist() == pytest.approx(naive_accuracies(tried, centred, count=30, **settings))
    assert found.test_time == AtTestTime(5, 0.7, centre=True)
    assert found.kept.endswith("mean of 5 views of side 0.7, mean of the training images subtracted")
    plain = evaluate(tried, DATA, episodes=30, **settings)
    assert plain.test_time == AtTestTime()
    assert not np.array_equal(plain.accuracies, found.accuracies)


def test_a_power_keeps_signs_and_comes_before_the_mean() -> None:
    tried, settings = method("logistic"), {"way": 5, "shot": 2, "query": 6, "seed": 3}

    def roots(data: ArrayDataset) -> Tensor:
        rows = naive_rows(tried.embedding, data, FIVE)
        assert (rows < 0).any()
        assert (rows > 0).any()
        return torch.where(rows < 0, -rows.abs().sqrt(), rows.abs().sqrt())

    rows = roots(DATA)
    found = evaluate(tried, DATA, episodes=30, **settings, crops=5, crop_side=0.7, power=0.5)
    assert found.accuracies.tolist() == pytest.approx(naive_accuracies(tried, rows, count=30, **settings))
    assert found.test_time == AtTestTime(5, 0.7, power=0.5)
    centred = rows - roots(BASE).mean(dim=0)
    found = evaluate(tried, DATA, episodes=30, **settings, crops=5, crop_side=0.7, power=0.5, base=BASE)
    assert found.accuracies.tolist() == pytest.approx(naive_accuracies(tried, centred, count=30, **settings))
    assert found.kept.endswith(
        "mean of 5 views of side 0.7, entries to the power 0.5, mean of the training images subtracted"
    )


def test_features_of_other_views_are_not_taken_from_the_cache(tmp_path: Path) -> None:
    embedding = network()
    banks = [
        build_bank(embedding, DATA, cache=tmp_path, test_time=AtTestTime(crops, side))
        for crops, side in [(1, 0.875), (5, 0.875), (5, 0.7)]
    ]
    assert len(list(tmp_path.glob("*.npy"))) == 3
    again = build_bank(embedding, DATA, cache=tmp_path, test_time=AtTestTime(5, 0.7))
    assert torch.equal(again.features, banks[2].features)


def test_what_has_no_vectors_is_refused() -> None:
    backbone = create_backbone("conv4", width=0.25)
    maps = Embedding(backbone, KeepMap(backbone.out_channels), Preprocessing(16, 16))
    with pytest.raises(UserError, match=r"feature map .* leave out crops"):
        build_bank(maps, DATA, test_time=FIVE)
    maml = create_method("maml", create_backbone("conv4", width=0.125), preprocessing=Preprocessing(16, 16))
    for changed in ({"crops": 2}, {"base": BASE}, {"power": 0.5}):
        with pytest.raises(UserError, match=r"MAML takes pictures \(3, 16, 16\) .* leave out crops, power and centre"):
            evaluate(maml, DATA, query=2, episodes=2, **changed)


@pytest.mark.parametrize("name", ["simpleshot", "laplacianshot"])
def test_a_mean_that_a_method_remembers_is_of_plain_representations(name: str) -> None:
    method = create_method(name, create_backbone("conv4", width=0.125), preprocessing=Preprocessing(16, 16))
    method.remember(TrainingClasses(BASE))
    assert evaluate(method, DATA, query=2, episodes=2, crops=2).crops == 2
    for changed in ({"base": BASE}, {"power": 0.5}):
        with pytest.raises(UserError, match="what it remembers of those of the training images"):
            evaluate(method, DATA, query=2, episodes=2, **changed)


def test_a_small_budget_gives_half_precision_and_no_maps() -> None:
    embedding = pixel_embedding(16)
    size = 4 * len(DATA) * embedding.out_features
    assert "float16" in build_bank(embedding, DATA, budget=size // 2, test_time=FIVE).kept
    with pytest.raises(NotEnoughMemory):
        build_bank(embedding, DATA, budget=size // 2 - 1, test_time=FIVE)


def test_a_recipe_and_the_command_take_crops_and_centring(
    tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"episodes": 20, "query": 5, "way": 3, "crops": 5, "crop_side": 0.8, "centre": True}
    run = tmp_path / "stl_deepbdc"
    train(tiny.recipe(distill=None, evaluation=own), run, data=tiny_data, quiet=True)
    trained = load_result(run).results
    assert {result.test_time for result in trained} == {AtTestTime(5, 0.8, centre=True)}

    main(["evaluate", str(run)])
    file = run / "evaluation-tiny-test-crops-5-side-0.8-centred.json"
    for one, other in zip(load_result(file).results, trained, strict=True):
        assert np.array_equal(one.accuracies, other.accuracies)
    main(["evaluate", str(run), "--crops", "1", "--no-centre"])
    plain = load_result(run / "evaluation-tiny-test.json").results
    assert plain[0].test_time == AtTestTime(crop_side=0.8)
    assert not np.array_equal(plain[0].accuracies, trained[0].accuracies)

    main(["paper", "verify", str(run), "--data", str(tiny_data)])
    assert "All 2 results are the same" in capsys.readouterr().out
    main(["compare", str(run), "--quiet", "-o", str(tmp_path / "compared.png")])
    compared = json.loads((tmp_path / "compared.json").read_text())["rows"][0]["results"][0]
    assert compared["accuracies"] == trained[0].accuracies.tolist()

    assert script("keep").keep(file, tmp_path / "gallery").name == "stl_deepbdc_crops5_centred.json"
    main(["evaluate", str(run), "--crops", "1", "--no-centre", "--power", "0.5"])
    powered = run / "evaluation-tiny-test-power-0.5.json"
    assert load_result(powered).results[0].test_time == AtTestTime(crop_side=0.8, power=0.5)
    assert script("keep").keep(powered, tmp_path / "gallery").name == "stl_deepbdc_power0.5.json"
    for option in (["--crops", "4"], ["--crop-side", "0"], ["--power", "0"]):
        with pytest.raises(SystemExit, match=r"(crops|crop_side|power) must be"):
            main(["evaluate", str(run), *option])
    with pytest.raises(SystemExit, match="there are none: leave it out"):
        main(["evaluate", "pixels", "--centre", "--data", str(tiny_data), "--size", "8", "--way", "3", "--query", "3"])


def test_a_recipe_with_impossible_crops_is_refused() -> None:
    content = tiny.recipe().as_dict()
    with pytest.raises(UserError, match=r"the recipe: evaluation\.crops must be one of 1, 2, 5, 10, got 3"):
        recipe_from_dict({**content, "evaluation": {**content["evaluation"], "crops": 3}})


def test_centring_needs_the_training_images(tiny_data: Path, tmp_path: Path) -> None:
    run, data = tmp_path / "run", tiny.write_data(tmp_path / "own.npz")
    train(tiny.recipe(distill=None), run, data=data, quiet=True)
    elsewhere = data.rename(tmp_path / "moved.npz")
    given = ["evaluate", str(run), "--centre", "--data", str(elsewhere)]
    with pytest.raises(SystemExit, match=r"needs the images of its training classes as well.*--base DATA"):
        main(given)
    main([*given, "--base", str(elsewhere)])
    assert load_run(run).recipe.evaluation_settings.test_time == AtTestTime()
