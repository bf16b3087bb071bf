"""Options of methods that change how they are built: each variant trains, is saved and loaded, and evaluates."""

from pathlib import Path
from typing import Any

import pytest
import torch

import deepbdc
from deepbdc import BDCPool
from deepbdc.backbones import create_backbone
from deepbdc.classifiers import PrototypeClassifier
from deepbdc.data.loading import load_dataset
from deepbdc.evaluation import evaluate
from deepbdc.methods.base import Method
from deepbdc.pooling import CovarianceRootPool, SecondMomentPool
from deepbdc.preprocessing import Preprocessing
from deepbdc.recipes import recipe_from_dict
from deepbdc.runs import load_run
from deepbdc.training.run import train
from deepbdc.weight_files import load
from tests.training import tiny

FORMS = ["mean_features", "concatenated_features"]
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("meta_deepbdc", {"observations": "positions"}),
    ("meta_deepbdc", {"observations": "positions", "reduce_to": 3, "prototype": "mean_features"}),
    ("meta_deepbdc", {"prototype": "mean_features"}),
    ("meta_deepbdc", {"prototype": "concatenated_features", "reduce_to": 5, "output": "weighted"}),
    ("stl_deepbdc", {"observations": "positions", "reduce_to": 3}),
    ("covnet", {"normalisation": "matrix_root", "center": True, "reduce_to": 5}),
    ("covnet", {"scale": 0.1}),
    ("meta_deepbdc", {"similarity": "cosine", "scale": 10.0}),
]


def create(name: str, seed: int = 0, **options: Any) -> Method:
    torch.manual_seed(seed)
    backbone = create_backbone("conv4", width=0.125, removed_downsamplings=2)
    preprocessing = Preprocessing(tiny.SIZE, tiny.SIZE)
    return deepbdc.create_method(name, backbone, preprocessing=preprocessing, **options).eval()


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_variant_trains_saves_loads_and_evaluates(
    name: str, options: dict[str, Any], precision: str, tiny_data: Path, tmp_path: Path
) -> None:
    content = tiny.recipe(name, options=options, precision=precision).as_dict()
    for stage in ("pretrain", "distill", "meta"):
        if stage in content:
            content[stage] |= {"epochs": 1, "milestones": [], "select": "last"}
            content[stage] |= {"episodes": 2, "shot": 2} if stage == "meta" else {"batch_size": 36}
            content[stage] |= {"generations": 1} if stage == "distill" else {}
    content["evaluation"] = {"episodes": 4, "query": 3, "way": 3, "shots": [1, 3]}
    recipe = recipe_from_dict(content)
    result = train(recipe, tmp_path / "run", data=tiny_data, quiet=True)
    run = load_run(tmp_path / "run")
    start = create(name, **options).state_dict()
    trained = load(tmp_path / "run" / "model.safetensors")[0]
    assert all(value.isfinite().all() for value in trained.values())
    assert start.keys() == run.method.state_dict().keys()
    for one in result.results:
        again = evaluate(run.method, load_dataset(tiny_data, "test"), 3, one.shot, 3, 4, 0)
        assert again.accuracies.tolist() == one.accuracies.tolist()
        assert again.weights_fingerprint == one.weights_fingerprint


@pytest.mark.parametrize("name", ["meta_deepbdc", "stl_deepbdc"])
def test_the_head_on_position_matrices_has_the_width_of_the_map(name: str) -> None:
    method = create(name, observations="positions")
    height, width = method.embedding.map_size
    positions = height * width
    assert method.embedding.out_features == positions * (positions + 1) // 2
    representations = method.embed(torch.rand(2, 3, tiny.SIZE, tiny.SIZE))
    assert representations.shape == (2, method.embedding.out_features)
    assert method.head(7)(representations).shape == (2, 7)


@pytest.mark.parametrize("reduce_to", [None, 5])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("similarity", [None, "cosine"])
def test_prototypes_of_reduced_maps(form: str, reduce_to: int | None, similarity: Any) -> None:
    """The features of a class are averaged, or put beside each other, after the reduction of channels."""
    variant = create("meta_deepbdc", prototype=form, reduce_to=reduce_to, similarity=similarity).double()
    usual = create("meta_deepbdc", reduce_to=reduce_to, similarity=similarity).double()
    images = torch.rand(9, 3, tiny.SIZE, tiny.SIZE, generator=torch.Generator().manual_seed(1)).double()
    with torch.no_grad():
        maps, pool = usual.embedding.reduced_map(images), usual.embedding.pool
        torch.testing.assert_close(variant.embed(images), maps)
        labels, shots = torch.tensor([0, 1, 0, 1, 1, 0]), {0: [0, 2, 5], 1: [1, 3, 4]}
        classes = []
        for label in (0, 1):
            of_class = [maps[place] for place in shots[label]]
            whole = sum(of_class) / 3 if form == "mean_features" else torch.cat(of_class, dim=2)
            classes.append(pool.represent(torch.as_tensor(whole)[None])[0])
        expected = usual.classifier_for(3)(torch.stack(classes), torch.arange(2), usual.embed(images[6:]))
        found = variant.classify(maps[:6], labels, maps[6:])
    torch.testing.assert_close(found, expected)


def test_the_loss_of_a_variant_before_episodes_is_that_of_the_usual_one() -> None:
    variant, usual = create("meta_deepbdc", prototype=FORMS[0], reduce_to=5), create("meta_deepbdc", reduce_to=5)
    images, labels = torch.rand(6, 3, tiny.SIZE, tiny.SIZE), torch.arange(6) % 3
    torch.manual_seed(0)
    head = usual.head(3)
    torch.manual_seed(0)
    other = variant.head(3)
    found, expected = variant.batch_loss(other, images, labels), usual.batch_loss(head, images, labels)
    torch.testing.assert_close(found.value, expected.value)
    found.value.backward()
    groups = variant.parameter_groups()
    assert list(groups) == ["network", "t"]
    assert groups["t"][0].grad is not None


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="more positions than a query"):
        create("meta_deepbdc", observations="positions", prototype="concatenated_features")
    with pytest.raises(ValueError, match="normalisation must be one of signed_root, matrix_root"):
        create("covnet", normalisation="root")
    with pytest.raises(ValueError, match="prototype must be one of"):
        create("meta_deepbdc", prototype="median")


def test_covnet_scores_matrices_by_the_shots_of_the_task() -> None:
    method = create("covnet", scale=0.5)
    assert isinstance(method.embedding.pool, SecondMomentPool)
    assert isinstance(create("covnet", normalisation="matrix_root").embedding.pool, CovarianceRootPool)
    images = torch.rand(8, 3, tiny.SIZE, tiny.SIZE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        rows, maps = method.embed(images), method.embedding.reduced_map(images)
        matrices = SecondMomentPool(8, output="matrix")(maps)
        one = method.classify(rows[:2], torch.tensor([0, 1]), rows[6:])
        many = method.classify(rows[:6], torch.tensor([0, 1, 0, 1, 0, 1]), rows[6:])
    products = [[0.5 * float((q * s).sum()) for s in matrices[:2]] for q in matrices[6:]]
    torch.testing.assert_close(one, torch.tensor(products), rtol=1e-4, atol=1e-4)
    means = [matrices[place:6:2].mean(dim=0) for place in (0, 1)]
    distances = [[-0.5 * float((q - mean).square().sum()) for mean in means] for q in matrices[6:]]
    torch.testing.assert_close(many, torch.tensor(distances), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shot", [1, 5])
@pytest.mark.parametrize("name", ["covnet", "meta_deepbdc"])
def test_a_scale_is_one_parameter_for_all_numbers_of_shots(name: str, shot: int) -> None:
    method = create(name, scale=0.5)
    (scale,) = method.parameter_groups()["scale"]
    used = method.classifier_for(shot)
    assert isinstance(used, PrototypeClassifier)
    assert used.scale.scale is scale
    assert used.settings == {**method.classifier.settings, "similarity": used.similarity}
    assert method.classifier_for(1) is method.classifier


def test_a_classifier_of_maps_says_what_its_representations_take() -> None:
    method = create("meta_deepbdc", prototype="mean_features", reduce_to=5)
    assert method.working_memory((5, 5, 4, 4), (15, 5, 4, 4)) == 4 * 20 * BDCPool(5).out_features
    assert create("meta_deepbdc").working_memory((5, 36), (15, 36)) == 0
