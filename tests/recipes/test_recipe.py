import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from deepbdc.backbones import create_backbone
from deepbdc.data import benchmarks
from deepbdc.methods import create_method
from deepbdc.methods.base import methods
from deepbdc.recipes import (
    Evaluation,
    Recipe,
    Validation,
    build_method,
    list_recipes,
    load_recipe,
    read_recipe,
    recipe_from_dict,
)
from deepbdc.recipes.files import RECIPES, parse_override
from deepbdc.stages import BatchSettings, DistillationSettings, EpisodeSettings, GroupSettings

# The paper's Table S-1, as it is printed.
TABLE = """
Method       | Hyper-params | miniImageNet  | tieredImageNet | CUB           | miniImageNet -> CUB/Aircraft/Cars
Meta DeepBDC | Initial LR   | 1e-4          | 5e-5           | 1e-3          | 5e-5
Meta DeepBDC | LR decay     | [40, 80]*0.1  | [70]*0.1       | [40, 80]*0.1  | [70]*0.1
Meta DeepBDC | Epochs       | 100           | 100            | 100           | 100
STL DeepBDC  | Initial LR   | 5e-2          | 5e-2           | 5e-2          | 5e-2
STL DeepBDC  | LR decay     | [100,150]*0.1 | [40,70]*0.1    | [120,170]*0.1 | [100,150]*0.1
STL DeepBDC  | Epochs       | 180           | 100            | 220           | 180
"""
COLUMNS = {
    "miniImageNet": ["miniimagenet"],
    "tieredImageNet": ["tieredimagenet"],
    "CUB": ["cub"],
    "miniImageNet -> CUB/Aircraft/Cars": [f"miniimagenet_to_{target}" for target in ("cub", "aircraft", "cars")],
}
PAPER_FOLDERS = [folder for folders in COLUMNS.values() for folder in folders]
META = ["protonet", "meta_deepbdc"]
TRANSFER = ["good_embed", "stl_deepbdc"]
SMALL = [f"{prefix}{method}" for prefix in ("cifar_fs/", "cifar_fs/resnet12_", "glyphs/") for method in META + TRANSFER]
SMALL += [f"{folder}/{method}" for folder in ("cifar_fs", "glyphs") for method in methods.names()]
ON_CPU = [f"cub_cpu/{method}" for method in methods.names()]
ON_CPU += [f"miniimagenet_cpu/{prefix}{method}" for prefix in ("", "resnet12_") for method in META + TRANSFER]
ON_CPU += [
    f"miniimagenet_cpu/{method}"
    for method in (
        "covnet",
        "adm",
        "dn4",
        "adm+dn4",
        "meta_deepbdc+dn4",
        "frn",
        "feat",
        "meta_baseline",
        "baseline",
        "baseline++",
    )
]
ON_CPU += ["miniimagenet_cpu/stl_deepbdc_distilled", "miniimagenet_cpu/resnet12_meta_baseline"]
ON_CPU += [*(f"miniimagenet_to_cub_cpu/{method}" for method in TRANSFER)]
SMALL = sorted(set(SMALL))
ON_BENCHMARKS = [
    "aa",
    "adm",
    "adm+dn4",
    "anil",
    "covnet",
    "ctm",
    "ctx",
    "dn4",
    "feat",
    "frn",
    "good_embed",
    "maml",
    "matchingnet",
    "melr",
    "meta_baseline",
    "meta_deepbdc",
    "meta_deepbdc+dn4",
    "metaoptnet",
    "mvt",
    "protonet",
    "r2d2",
    "relationnet",
    "stl_deepbdc",
]

# d, dropout, learning rate of t, generations and C: of the released scripts, where the paper does not say.
RELEASED = {
    "meta_deepbdc": {"miniimagenet": (640, 0.8, 1e-3), "tieredimagenet": (256, 0.6, 1e-3), "cub": (256, 0.6, 5e-2)},
    "stl_deepbdc": {
        "miniimagenet": (3, {1: 0.1, 5: 2}),
        "tieredimagenet": (1, {1: 0.05, 5: 30}),
        "cub": (18, 20),
    },
    "good_embed": {
        "miniimagenet": (2, {1: 0.1, 5: 2}),
        "tieredimagenet": (1, {1: 0.1, 5: 2}),
        "cub": (11, {1: 0.1, 5: 2}),
    },
}
EPISODES = {"miniimagenet": (1000, 600), "tieredimagenet": (1000, 1000), "cub": (600, 600)}


def paper_cells() -> list[tuple[str, str, dict[str, str]]]:
    """(method, folder, {row of the table: value}) for every cell of the table."""
    header, *rows = [[part.strip() for part in line.split(" | ")] for line in TABLE.strip().splitlines()]
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for method, row, *values in rows:
        for column, value in zip(header[2:], values, strict=True):
            for folder in COLUMNS[column]:
                cells.setdefault((method, folder), {})[row] = value
    return [(method, folder, values) for (method, folder), values in cells.items()]


def base_of(folder: str) -> str:
    """The data set whose scripts were used: there are none for the pairs."""
    return folder.partition("_to_")[0]


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


MINIMAL = "method: protonet\ndata: glyphs\n"


# The recipes that come with the package


def test_every_cell_has_a_recipe() -> None:
    expected = [f"{folder}/{method}_{shot}shot" for folder in PAPER_FOLDERS for method in META for shot in (1, 5)]
    expected += [f"{folder}/{method}" for folder in PAPER_FOLDERS for method in TRANSFER]
    assert set(expected + SMALL + ON_CPU) <= set(list_recipes())


@pytest.mark.parametrize("folder", ["miniimagenet", "cub"])
@pytest.mark.parametrize("method", ON_BENCHMARKS)
def test_methods_have_recipes_for_miniimagenet_and_cub(method: str, folder: str) -> None:
    """One for all numbers of shots, or one for 1 shot and one for 5."""
    either = [{f"{folder}/{method}"}, {f"{folder}/{method}_{shot}shot" for shot in (1, 5)}]
    assert sum(names <= set(list_recipes()) for names in either) == 1
    for shot in (1, 5):
        name = f"{folder}/{method}_{shot}shot"
        if name in list_recipes():
            recipe = load_recipe(name)
            assert recipe.evaluation is not None
            assert recipe.evaluation.shots == (shot,)
            assert recipe.validation_shot(recipe.trainings[-1]) == shot


@pytest.mark.parametrize("folder", ["glyphs", "cifar_fs", "miniimagenet", "cub"])
def test_classifier_baseline_is_meta_baseline_without_episodes(folder: str) -> None:
    recipe = load_recipe(f"{folder}/classifier_baseline")
    other = load_recipe(f"{folder}/meta_baseline" + ("" if folder in ("glyphs", "cifar_fs") else "_1shot"))
    assert recipe.method == "meta_baseline"
    assert recipe.stages == {"pretrain": other.stages["pretrain"]}
    assert (recipe.backbone, recipe.size) == (other.backbone, other.size)
    assert recipe.evaluation is not None
    assert recipe.evaluation.shots == (1, 5)


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_resolves(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.data in benchmarks.names()
    assert recipe.data.replace("->", "_to_") == name.partition("/")[0].removesuffix("_cpu")
    assert recipe.method in name.partition("/")[2].replace("classifier_baseline", "meta_baseline")
    assert recipe.seed == 1
    # Longer pretrain in its place; nor is there time for it at 84 px on a CPU.
    undistilled = name in ("cifar_fs/stl_deepbdc", "cifar_fs/resnet12_stl_deepbdc") or "_cpu/" in name
    undistilled = undistilled and not name.endswith("_distilled")
    if recipe.method in TRANSFER:
        assert list(recipe.stages) == (["pretrain"] if undistilled else ["pretrain", "distill"])
    elif recipe.method in META:
        assert list(recipe.stages) == ["pretrain", "meta"]
    assert recipe_from_dict(recipe.as_dict()) == recipe
    assert recipe_from_dict(json.loads(json.dumps(recipe.as_dict()))) == recipe
    assert recipe_from_dict(yaml.safe_load(recipe.as_yaml())) == recipe  # any reader will do


@pytest.mark.parametrize("name", list_recipes())
def test_method_and_backbone_of_every_recipe(name: str) -> None:
    recipe = load_recipe(name)
    if recipe.method not in META + TRANSFER:  # their networks are those of their own papers
        backbone = create_backbone(**{**recipe.backbone, "width": 0.05})
        assert set(recipe.stages) <= set(create_method(recipe.method, backbone, **recipe.options).objectives)
        return
    backbone = create_backbone(**{**recipe.backbone, **({} if name in SMALL else {"width": 0.05})})
    if name in SMALL:
        assert backbone.map_size(recipe.size) == (8, 8)
    elif name in ON_CPU:
        assert backbone.map_size(84) == (10, 10)
    else:
        assert recipe.backbone == {"name": "resnet18" if recipe.data == "cub" else "resnet12"}
        assert recipe.size is None
        assert backbone.preprocessing.input_size == (224 if recipe.data == "cub" else 84)
    options = {key: value for key, value in recipe.options.items() if key != "reduce_to"}  # large, and not needed
    method = create_method(recipe.method, backbone, **options)
    assert set(recipe.stages) <= set(method.objectives)


@pytest.mark.parametrize("name", [name for name in list_recipes() if "_cpu/" in name])
def test_recipes_at_84_pixels_on_a_cpu(name: str) -> None:
    recipe = load_recipe(name)
    preprocessing = build_method(recipe).embedding.preprocessing
    assert preprocessing.input_size == 84
    assert recipe.shrink_to == preprocessing.resize  # then an evaluation gets the same pixels as from the files
    few = ("aa", "deepemd", "gnn_ft", "maml", "tadam")  # the network sees each task, or a task takes long
    assert recipe.evaluation is not None
    assert recipe.evaluation.episodes == 2000 or recipe.method in few
    if "pretrain" in recipe.stages and recipe.method != "maml":
        pretrain = recipe.stages["pretrain"]
        assert isinstance(pretrain, BatchSettings)
        # All 100 classes of miniImageNet get as many steps as the 64 of its training split.
        epochs = {"cub": (60, 0), "miniimagenet": (50, 40), "miniimagenet->cub": (32, 26)}
        assert (pretrain.epochs, pretrain.small_epochs) == epochs[recipe.data]
    assert load_recipe(name, ["data=cub_cropped"]) == dataclasses.replace(recipe, data="cub_cropped")


@pytest.mark.parametrize(("method", "folder", "values"), paper_cells(), ids=lambda value: str(value)[:24])
def test_hyper_parameters_of_the_paper(method: str, folder: str, values: dict[str, str]) -> None:
    decay = re.fullmatch(r"\[([\d, ]+)\]\*([\d.]+)", values["LR decay"])
    assert decay is not None
    names = [f"{folder}/meta_deepbdc_{shot}shot" for shot in (1, 5)] if "Meta" in method else [f"{folder}/stl_deepbdc"]
    for recipe in map(load_recipe, names):
        names = ["meta"] if "Meta" in method else ["pretrain", "distill"]
        for stage in (recipe.stages[name] for name in names):
            assert stage.lr == float(values["Initial LR"])
            assert stage.milestones == tuple(map(int, decay[1].split(",")))
            assert stage.gamma == float(decay[2])
            assert stage.epochs == int(values["Epochs"])


@pytest.mark.parametrize("folder", PAPER_FOLDERS)
def test_what_the_paper_says_in_words(folder: str) -> None:
    """S1-3: SGD with momentum 0.9 and weight decay 5e-4, batches of 64; 15 queries in 2,000 test tasks."""
    ours = [
        name for name in list_recipes() if name.startswith(tuple(f"{folder}/{method}" for method in META + TRANSFER))
    ]
    for recipe in map(load_recipe, (name for name in ours if "+" not in name)):
        assert recipe.augmentation == "paper"
        assert recipe.evaluation.way == 5
        assert recipe.evaluation.query == 15
        assert recipe.evaluation.episodes == 2000
        for stage in recipe.stages.values():
            assert (stage.optimiser, stage.momentum, stage.weight_decay) == ("sgd", 0.9, 5e-4)
            assert (stage.schedule, stage.warmup, stage.accumulate) == ("multistep", 0, 1)
            assert getattr(stage, "batch_size", 64) == 64
        if "distill" in recipe.stages:
            distill: Any = recipe.stages["distill"]
            assert (distill.temperature, distill.distillation_weight) == (4, 0.5)


@pytest.mark.parametrize("folder", PAPER_FOLDERS)
@pytest.mark.parametrize("method", META)
def test_shots_of_meta_learners(method: str, folder: str) -> None:
    one, five = (load_recipe(f"{folder}/{method}_{shot}shot") for shot in (1, 5))
    for recipe, shot, episodes in zip((one, five), (1, 5), EPISODES[base_of(folder)], strict=True):
        meta: Any = recipe.stages["meta"]
        assert (meta.way, meta.shot, meta.query) == (5, shot, 16)
        assert meta.episodes == episodes
        assert meta.select == "best"
        assert recipe.validation_shot(recipe.trainings[-1]) == shot
        assert recipe.evaluation.shots == (shot,)
    # Both start from the same pre-trained network.
    assert one.stages["pretrain"] == five.stages["pretrain"]
    assert one.validation == five.validation


@pytest.mark.parametrize("folder", PAPER_FOLDERS)
def test_values_of_the_released_scripts(folder: str) -> None:
    base = base_of(folder)
    reduce_to, dropout, t_lr = RELEASED["meta_deepbdc"][base]
    meta = load_recipe(f"{folder}/meta_deepbdc_1shot")
    assert (meta.options, meta.dropout) == ({"reduce_to": reduce_to}, dropout)
    assert meta.stages["pretrain"].groups == {"t": GroupSettings(lr=t_lr)}
    for method in TRANSFER:
        recipe = load_recipe(f"{folder}/{method}")
        generations, C = RELEASED[method][base]
        distill: Any = recipe.stages["distill"]
        assert recipe.options["C"] == C
        assert recipe.options.get("reduce_to") == (128 if method == "stl_deepbdc" else None)
        assert recipe.dropout == (0.5 if method == "stl_deepbdc" else 0)
        assert distill.generations == generations
        assert recipe.evaluation.shots == (1, 5)
        for entry in dataclasses.fields(BatchSettings):
            assert getattr(distill, entry.name) == getattr(recipe.stages["pretrain"], entry.name), entry.name


@pytest.mark.parametrize(
    ("name", "epochs", "milestones", "select", "first", "shot", "episodes"),
    [
        ("miniimagenet/meta_deepbdc_5shot", 170, (100, 150), "best", 1, 1, 600),
        ("miniimagenet/protonet_1shot", 170, (100, 150), "best", 1, 5, 600),
        ("tieredimagenet/meta_deepbdc_5shot", 100, (40, 70), "best", 71, 1, 1000),
        ("tieredimagenet/protonet_1shot", 100, (40, 70), "best", 71, 5, 1000),
        ("cub/meta_deepbdc_5shot", 400, (), "last", 1, 1, 600),
        ("cub/protonet_5shot", 150, (100,), "best", 1, 1, 300),
        ("miniimagenet/good_embed", 170, (100, 150), "last", 1, 1, 600),
        ("cub/good_embed", 220, (120, 170), "last", 1, 1, 600),
    ],
)
def test_pretraining_and_its_validation(
    name: str, epochs: int, milestones: tuple[int, ...], select: str, first: int, shot: int, episodes: int
) -> None:
    recipe = load_recipe(name)
    stage = recipe.stages["pretrain"]
    assert (stage.epochs, stage.lr, stage.milestones, stage.select) == (epochs, 0.05, milestones, select)
    assert stage.validate_from == first
    assert (stage.validation_shot or recipe.validation.shot) == shot
    assert (recipe.validation.episodes, recipe.validation.query) == (episodes, 15)


@pytest.mark.parametrize("target", ["cub", "aircraft", "cars"])
@pytest.mark.parametrize("method", ["good_embed", "stl_deepbdc", "meta_deepbdc_1shot", "protonet_5shot"])
def test_pairs_differ_from_miniimagenet_only_where_they_say(method: str, target: str) -> None:
    mini, pair = load_recipe(f"miniimagenet/{method}"), load_recipe(f"miniimagenet_to_{target}/{method}")
    expected = dataclasses.replace(mini, data=f"miniimagenet->{target}")
    if "meta" in expected.stages:
        meta = dataclasses.replace(expected.stages["meta"], lr=5e-5, milestones=(70,))
        expected = dataclasses.replace(expected, stages={**expected.stages, "meta": meta})
    assert pair == expected


def test_differences_to_the_released_scripts_are_said_on_the_line() -> None:
    lines = {
        "miniimagenet/stl_deepbdc": "epochs: 180  # the released script has 170",
        "tieredimagenet/stl_deepbdc": "epochs: 100  # the released script has 90",
        "cub/meta_deepbdc_1shot": "epochs: 100  # the released script has 60",
        "tieredimagenet/meta_deepbdc_1shot": "weight_decay: 5e-4  # the released script has 1e-4",
    }
    for name, line in lines.items():
        assert line in (RECIPES / f"{name}.yaml").read_text(encoding="utf-8")


# Inheritance


def test_a_recipe_inherits_section_by_section(tmp_path: Path) -> None:
    write(tmp_path, "base.yaml", MINIMAL + "pretrain: {epochs: 3, lr: 0.1, milestones: [1, 2]}\noptions: {C: {1: 3}}")
    child = write(tmp_path, "child.yaml", "inherits: base.yaml\npretrain: {lr: 0.2, milestones: [1]}\nseed: 5")
    assert load_recipe(child) == Recipe(
        method="protonet",
        data="glyphs",
        seed=5,
        options={"C": {1: 3}},
        stages={"pretrain": BatchSettings(epochs=3, lr=0.2, milestones=(1,))},
    )


def test_a_recipe_can_inherit_from_ours_and_drop_a_stage(tmp_path: Path) -> None:
    child = write(tmp_path, "mine.yaml", "inherits: miniimagenet/meta_deepbdc_1shot\nmeta: null\n")
    recipe = load_recipe(child)
    assert recipe.stages == {"pretrain": load_recipe("miniimagenet/meta_deepbdc_1shot").stages["pretrain"]}


def test_a_parent_is_looked_for_beside_its_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "elsewhere", "base.yaml", MINIMAL + "seed: 99")
    write(tmp_path, "base.yaml", MINIMAL + "seed: 7")
    child = write(tmp_path, "child.yaml", "inherits: base.yaml")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_recipe(child).seed == 7
    assert load_recipe("base.yaml").seed == 99


def test_one_parent_is_the_limit(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", MINIMAL)
    write(tmp_path, "b.yaml", "inherits: a.yaml")
    c = write(tmp_path, "c.yaml", "inherits: b.yaml")
    itself = write(tmp_path, "itself.yaml", "inherits: itself.yaml")
    for path in (c, itself):
        with pytest.raises(ValueError, match="inherits itself: one parent is the limit"):
            load_recipe(path)


def test_two_parents_are_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, "two.yaml", "inherits: [a.yaml, b.yaml]")
    with pytest.raises(ValueError, match="inherits must name one recipe"):
        load_recipe(path)


@pytest.mark.parametrize("text", ["inherits: mini/stl", "inherits: nowhere.yaml"])
def test_a_missing_parent_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(FileNotFoundError, match=text.removeprefix("inherits: ")):
        load_recipe(write(tmp_path, "child.yaml", text))


def test_another_backbone_or_method_starts_its_options_anew() -> None:
    thin = "cifar_fs/resnet12_protonet"
    assert load_recipe(thin, ["backbone.name=conv4"]).backbone == {"name": "conv4"}
    assert load_recipe(thin, ["backbone.name=resnet12"]).backbone == load_recipe(thin).backbone
    assert load_recipe(thin, ["backbone.width=0.1"]).backbone["removed_downsamplings"] == 2
    stl = "miniimagenet/stl_deepbdc"
    assert load_recipe(stl, ["method=good_embed"]).options == {}
    assert load_recipe(stl, ["method=stl_deepbdc"]).options == load_recipe(stl).options
    for overrides in (["method=good_embed", "options.C=3"], ["options.C=3", "method=good_embed"]):
        assert load_recipe(stl, overrides).options == {"C": 3}
    for overrides in (["backbone.name=conv4", "backbone.width=2"], ["backbone.width=2", "backbone.name=conv4"]):
        assert load_recipe(stl, overrides).backbone == {"name": "conv4", "width": 2}


# Overrides


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("pretrain.lr=1e-3", 1e-3),
        ("pretrain.lr=1", 1.0),
        ("pretrain.groups.t.lr=null", None),
        ("pretrain.groups.t.lr=0.5", 0.5),
        ("pretrain.clip_norm=1", 1.0),
        ("pretrain.milestones=[10, 20]", (10, 20)),
        ("pretrain.milestones=30", (30,)),
        ("pretrain.milestones=[]", ()),
        ("evaluation.shots=[1,5,10]", (1, 5, 10)),
        ("distill.generations=0", 0),
        ("options.C={1: 2}", {1: 2, 5: 2}),
        ("options.C.1=2", {1: 2, 5: 2}),
        ('options.C={"1": 2}', {1: 2, 5: 2}),
        ("options.C=7.5", 7.5),
        ("data=~/my images/x=1", "~/my images/x=1"),
        ("channels_last=true", True),
        ("precision=bf16-mixed", "bf16-mixed"),
        ("validation.shot=5", 5),
    ],
)
def test_overrides(override: str, value: object) -> None:
    changed: Any = load_recipe("miniimagenet/stl_deepbdc", [override])
    for key in override.partition("=")[0].split("."):
        if key != "1":
            changed = changed.stages[key] if key in ("pretrain", "distill") else _part(changed, key)
    assert changed == value
    assert type(changed) is type(value)


def _part(whole: Any, key: str) -> Any:
    return whole[key] if isinstance(whole, dict) else getattr(whole, key)


def test_the_last_of_equal_overrides_holds() -> None:
    assert load_recipe("glyphs/protonet", ["seed=3", "seed=4"]).seed == 4


def test_an_override_can_add_a_stage() -> None:
    recipe = load_recipe("cifar_fs/stl_deepbdc", ["distill={epochs: 2, generations: 3}"])
    assert recipe.stages["distill"] == DistillationSettings(epochs=2, generations=3)
    assert [stage.name for stage in recipe.trainings] == ["pretrain", "distill-1", "distill-2", "distill-3"]
    assert "meta" not in load_recipe("glyphs/protonet", ["meta=null"]).stages
    with pytest.raises(ValueError, match=r"lacks distill\.epochs"):
        load_recipe("cifar_fs/stl_deepbdc", ["distill.generations=3"])


def test_stages_that_a_method_does_not_have() -> None:
    with pytest.raises(ValueError, match=r"'meta' that does not exist.*good_embed is trained by pretrain and distill"):
        load_recipe("glyphs/good_embed", ["meta={epochs: 1}"])
    assert list(load_recipe("glyphs/good_embed", ["meta=null"]).stages) == ["pretrain", "distill"]
    with pytest.raises(ValueError, match="no method is called 'protonets': did you mean 'protonet'"):
        load_recipe("glyphs/protonet", ["method=protonets"])


def test_recipes_of_earlier_versions_are_read() -> None:
    """The rate of t was t_lr, and stages that a recipe did not have were null."""
    old = {"method": "stl_deepbdc", "data": "glyphs", "pretrain": {"epochs": 3, "t_lr": 1e-3}, "distill": None}
    recipe = recipe_from_dict({**old, "meta": None})
    assert recipe.stages == {"pretrain": BatchSettings(epochs=3, groups={"t": GroupSettings(lr=1e-3)})}
    none = recipe_from_dict({**old, "pretrain": {"epochs": 3, "t_lr": None}})
    assert none.stages == {"pretrain": BatchSettings(epochs=3)}


def test_shots_and_ways_can_be_ranges() -> None:
    recipe = load_recipe("glyphs/protonet", ["meta.shot=[1, 5]", "meta.way=[3, 5]", "meta.validation_shot=null"])
    settings = recipe.stages["meta"]
    assert isinstance(settings, EpisodeSettings)
    assert (settings.shot, settings.way) == ((1, 5), (3, 5))
    assert recipe.validation_shot(recipe.trainings[-1]) == recipe.validation.shot
    for value in ("[5, 1]", "[1, 2, 3]", "0", "[0, 3]", "x"):
        with pytest.raises(ValueError, match=r"meta\.shot must be"):
            load_recipe("glyphs/protonet", [f"meta.shot={value}"])


@pytest.mark.parametrize("text", ["pretrain.lr", "=3", "pretrain..lr=3", ".lr=3", "lr.=3", ""])
def test_an_override_without_key_or_value(text: str) -> None:
    with pytest.raises(ValueError, match="is not of the form key=value"):
        parse_override(text)


def test_an_override_that_is_not_yaml() -> None:
    with pytest.raises(ValueError, match="is not valid YAML"):
        parse_override("pretrain.milestones=[1, 2")


# What is wrong


def test_an_unknown_recipe() -> None:
    with pytest.raises(FileNotFoundError, match="did you mean 'cifar_fs/stl_deepbdc'"):
        load_recipe("cifar_fs/stl_deepbcd")


def test_files_that_are_no_recipes(tmp_path: Path) -> None:
    for text in ("a: [1", "a: 1: 2"):
        with pytest.raises(ValueError, match=r"x\.yaml is not YAML"):
            load_recipe(write(tmp_path, "x.yaml", text))
    (tmp_path / "latin.yaml").write_bytes(b"method: \xe9")
    with pytest.raises(ValueError, match="is not YAML"):
        load_recipe(tmp_path / "latin.yaml")
    for text in ("", "- a\n- b", "just text"):
        with pytest.raises(ValueError, match="must hold keys and values"):
            load_recipe(write(tmp_path, "x.yaml", text))


SECTIONS = {"": Recipe, "pretrain": BatchSettings, "distill": DistillationSettings}
SECTIONS |= {"validation": Validation, "evaluation": Evaluation}  # type: ignore[dict-item]
KEYS = [
    (section, entry.name)
    for section, kind in SECTIONS.items()
    for entry in dataclasses.fields(kind)
    if entry.name != "stages"
]


@pytest.mark.parametrize(("section", "key"), KEYS, ids=lambda value: str(value))
def test_an_unknown_key_names_the_nearest(section: str, key: str) -> None:
    wrong = ".".join(filter(None, [section, key + key[-1]]))
    with pytest.raises(ValueError, match=f"'{wrong}' that does not exist: did you mean '{key}'"):
        load_recipe("glyphs/stl_deepbdc", [f"{wrong}=1"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=one", "seed must be a whole number, got 'one'"),
        ("seed=1.5", "seed must be a whole number"),
        ("seed=true", "seed must be a whole number, got True"),
        ("seed=null", "seed must be a whole number, got None"),
        ("pretrain.lr=fast", r"pretrain\.lr must be a finite number, got 'fast'"),
        ("pretrain.lr=true", r"pretrain\.lr must be a finite number"),
        ("pretrain.weight_decay=.nan", r"pretrain\.weight_decay must be a finite number, got nan"),
        ("pretrain.lr=.inf", r"pretrain\.lr must be a finite number, got inf"),
        ("pretrain.lr=1e999", r"pretrain\.lr must be a finite number"),
        ("pretrain.milestones=[1, x]", r"pretrain\.milestones must be a whole number, got 'x'"),
        ("pretrain.schedule=linear", r"pretrain\.schedule must be one of multistep, cosine, got 'linear'"),
        ("precision=16", "precision must be one of 32-true"),
        ("pretrain=14", "pretrain must hold keys and values, got 14"),
        ("validation=null", "validation must hold keys and values"),
        ("channels_last=1", "channels_last must be true or false, got 1"),
        ("data=5", "data must be text, got 5"),
        ("options=5", "options must hold keys and values, got 5"),
        ("options={1: 2}", "options has a key 1 that is not the name of an option"),
        ("options.1=2", "options has a key '?1'? that is not the name of an option"),
        ("options.C={1.5: 2}", r"options\.C has a key 1\.5 that is neither text nor a whole number"),
        ("options.other={true: 2}", r"options\.other has a key True"),
        ("options.C=.nan", r"options\.C must be text, a finite number"),
        ("options.since=2022-06-19", r"options\.since must be text"),
        ("backbone=null", "backbone must hold keys and values, got None"),
        ("backbone.name=12", "backbone needs a name"),
        ("backbone.name=null", "backbone needs a name"),
    ],
)
def test_wrong_types(override: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^glyphs/stl_deepbdc: {message}|^glyphs/stl_deepbdc {message}"):
        load_recipe("glyphs/stl_deepbdc", [override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("dropout=1", "dropout must be at least 0 and below 1"),
        ("dropout=-0.1", "dropout must be"),
        ("workers=-1", "workers and seed must not be negative"),
        ("size=0", "size must be positive"),
        ("shrink_to=0", "shrink_to must be positive"),
        ("pretrain.epochs=0", r"pretrain\.epochs must be at least 1"),
        ("pretrain.batch_size=0", r"pretrain\.batch_size must be at least 1"),
        ("pretrain.validation_shot=0", r"pretrain\.validation_shot must be at least 1"),
        ("pretrain.lr=0", "lr must be positive"),
        ("pretrain.t_lr=-1", r"pretrain\.t_lr is now called pretrain\.groups\.t\.lr"),
        ("pretrain.groups.t.lr=-1", r"groups\.t\.lr must not be negative"),
        ("pretrain.groups.t.weight_decay=-1", r"groups\.t\.weight_decay must not be negative"),
        ("pretrain.groups.t.rate=1", r"'pretrain\.groups\.t\.rate' that does not exist"),
        ("pretrain.momentum=1", r"momentum and dampening must be in \[0, 1\)"),
        ("pretrain.dampening=0.9", "needs nesterov: false"),
        ("pretrain.betas=0.9", r"betas must be two numbers"),
        ("pretrain.clip_norm=0", "clip_norm must be positive"),
        ("pretrain.label_smoothing=1", "label_smoothing must be"),
        ("pretrain.freeze_batchnorm_from=0", "freeze_batchnorm_from must be at least 1"),
        ("pretrain.gamma=0", r"gamma must be in \(0, 1\]"),
        ("pretrain.gamma=[0.5, 0.1]", "2 factors for 0 milestones"),
        ("pretrain.weight_decay=-1", "weight_decay not negative"),
        ("pretrain.warmup=1000", "warmup must be fewer epochs"),
        ("pretrain.milestones=[5, 3]", "milestones must be positive and grow"),
        ("pretrain.milestones=[3, 3]", "milestones must be positive and grow"),
        ("pretrain.milestones=[0]", "milestones must be positive and grow"),
        ("pretrain=null", "distill needs a stage before it"),
        ("distill.generations=-1", "generations must not be negative"),
        ("distill.temperature=0", "temperature must be positive"),
        ("distill.distillation_weight=2", "distillation_weight must be 0 to 1"),
        ("validation.way=0", r"validation\.way must be at least 1"),
        ("evaluation.episodes=0", r"evaluation\.episodes must be at least 1"),
        ("evaluation.shots=[]", r"evaluation\.shots must be one or more positive numbers"),
        ("evaluation.shots=[0]", r"evaluation\.shots must be"),
        ("evaluation.dirichlet=2", r"evaluation\.dirichlet has no effect without evaluation\.unbalanced: true"),
        ("evaluation.dirichlet=0", r"evaluation\.dirichlet must be a positive number"),
    ],
)
def test_wrong_values(override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_recipe("glyphs/stl_deepbdc", [override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("meta.shot=0", r"meta\.shot must be at least 1"),
        ("meta.accumulate=2", "each episode of a step is a part of its own"),
    ],
)
def test_wrong_values_of_episodes(override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_recipe("glyphs/protonet", [override])


def test_missing_keys() -> None:
    with pytest.raises(ValueError, match="the recipe lacks method, data"):
        recipe_from_dict({})
    with pytest.raises(ValueError, match=r"mine lacks meta\.epochs"):
        recipe_from_dict({"method": "protonet", "data": "glyphs", "meta": {"shot": 5}}, "mine")


# To YAML and JSON and back


@pytest.mark.parametrize("text", ["1e-4", "1E-4", "+1e-4", "1.e-4", "1.0e-4", ".1e-3", "0.0001"])
def test_powers_of_ten_are_numbers(text: str) -> None:
    assert parse_override(f"pretrain.lr={text}") == {"pretrain": {"lr": 1e-4}}


@pytest.mark.parametrize("text", ["e4", "1e", "1e-", "0x1e3z", "1e-4 seconds"])
def test_other_text_is_not(text: str) -> None:
    assert parse_override(f"data={text}") == {"data": text}


counts = st.integers(1, 10_000)
rates = st.floats(1e-12, 1e3)
# The texts are those that YAML could take for something else.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    [
        "1e-3",
        "1E3",
        "null",
        "~",
        "true",
        "no",
        "12",
        "0.5",
        ".inf",
        "2022-06-19",
        "a: b",
        "<<",
        "=",
        "&a",
        "- a",
        " ",
        "1",
    ]
)
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(texts, inner, max_size=3)
        | st.dictionaries(st.integers(-20, 20), inner, max_size=3)
    ),
    max_leaves=6,
)
names = texts.filter(lambda text: not re.fullmatch(r"-?[0-9]+", text))
optimisation = {
    "epochs": st.integers(2, 500),
    "lr": rates,
    "optimiser": st.sampled_from(["sgd", "adam", "adamw"]),
    "groups": st.dictionaries(names, st.fixed_dictionaries({}, optional={"lr": rates}), max_size=2),
    "clip_norm": st.none() | rates,
    "augmentation": st.none() | st.sampled_from(["paper", "none"]),
    "momentum": st.floats(0, 0.99),
    "weight_decay": st.floats(0, 1),
    "schedule": st.sampled_from(["multistep", "cosine"]),
    "milestones": st.sets(counts, max_size=3).map(sorted),
    "gamma": st.floats(0.01, 1),
    "warmup": st.floats(0, 1.5),
    "select": st.sampled_from(["best", "last"]),
    "validation_shot": st.none() | counts,
}
pretrains = st.fixed_dictionaries(optimisation, optional={"batch_size": counts, "accumulate": counts})
recipes = st.fixed_dictionaries(
    {"method": st.sampled_from(["stl_deepbdc", "good_embed"]), "data": texts, "pretrain": pretrains},
    optional={
        "backbone": st.dictionaries(names, values, max_size=3).map(lambda options: {**options, "name": "conv4"}),
        "options": st.dictionaries(names, values, max_size=3),
        "size": st.none() | counts,
        "dropout": st.floats(0, 0.99),
        "seed": st.integers(0, 2**40),
        "channels_last": st.booleans(),
        "distill": st.none() | st.fixed_dictionaries(optimisation, optional={"generations": st.integers(0, 20)}),
        "meta": st.none(),
        "validation": st.fixed_dictionaries({}, optional={"shot": counts, "episodes": counts}),
        "evaluation": st.fixed_dictionaries({}, optional={"shots": st.lists(counts, min_size=1, max_size=3)}),
    },
).map(recipe_from_dict)


@given(recipe=recipes)
def test_a_recipe_comes_back_from_yaml_and_json(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.yaml"
    path.write_text(recipe.as_yaml(), encoding="utf-8", newline="\n")
    assert load_recipe(path) == recipe
    assert load_recipe(path).as_yaml() == recipe.as_yaml()
    assert recipe_from_dict(json.loads(json.dumps(recipe.as_dict()))) == recipe


def leaves(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every value of a recipe under its dotted key."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


@given(data=st.data(), recipe=recipes)
def test_an_override_changes_its_key_and_nothing_else(
    data: st.DataObject, recipe: Recipe, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "override.yaml"
    path.write_text(recipe.as_yaml(), encoding="utf-8", newline="\n")
    key, value = data.draw(
        st.sampled_from([("seed", 12345), ("pretrain.lr", 1.5e-7), ("pretrain.milestones", [3, 99]), ("data", "1e5")])
        | st.tuples(st.just("validation.shot"), counts)
        | st.tuples(st.just("options.C"), st.dictionaries(counts, rates, min_size=1, max_size=3))
    )
    before = leaves(recipe.as_dict())
    after = leaves(load_recipe(path, [f"{key}={json.dumps(value)}"]).as_dict())
    changed = leaves({key: value})
    assert {name: after[name] for name in changed} == changed
    assert {name: value for name, value in after.items() if not name.startswith(key)} == {
        name: value for name, value in before.items() if not name.startswith(key)
    }


def test_keys_that_are_numbers_come_back_from_json() -> None:
    recipe = load_recipe("miniimagenet/stl_deepbdc")
    text = json.dumps(recipe.as_dict())
    assert '"C": {"1": 0.1, "5": 2}' in text
    assert recipe_from_dict(json.loads(text)).options["C"] == {1: 0.1, 5: 2}


def test_tuples_of_options_become_lists() -> None:
    recipe = recipe_from_dict({"method": "protonet", "data": "glyphs", "options": {"sizes": (1, (2, 3))}})
    assert recipe.options == {"sizes": [1, [2, 3]]}


def test_the_resolved_recipe_has_every_key() -> None:
    content = load_recipe("glyphs/stl_deepbdc").as_dict()
    for section, kind in SECTIONS.items():
        part = content[section] if section else content
        names = {entry.name for entry in dataclasses.fields(kind)} - {"stages"}
        assert set(part) == (names | set(SECTIONS) - {""} if not section else names)


def test_the_headline_model_has_the_parameters_of_the_paper() -> None:
    recipe = load_recipe("miniimagenet/meta_deepbdc_1shot")
    method = create_method(recipe.method, create_backbone(**recipe.backbone), **recipe.options)
    assert round(sum(weights.numel() for weights in method.parameters()) / 1e6, 2) == 12.84


# docs/recipes.md

PAGE = (Path(__file__).parent.parent.parent / "docs" / "recipes.md").read_text(encoding="utf-8")


def test_examples_of_the_page(tmp_path: Path) -> None:
    example, added, own = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    recipe = load_recipe(write(tmp_path, "example.yaml", example))
    assert dataclasses.replace(recipe, size=None) == load_recipe("miniimagenet/meta_deepbdc_5shot")
    assert load_recipe(write(tmp_path, "own.yaml", own)).data == "photos"
    with_losses = load_recipe(write(tmp_path, "added.yaml", f"inherits: glyphs/protonet\n{added}"))
    assert set(with_losses.stages["pretrain"].losses) == {"rotation", "mixup"}


def test_table_of_the_page() -> None:
    for folder in PAPER_FOLDERS:
        found = re.search(rf"^\| `{folder}` \|(.*)\|$", PAGE, flags=re.MULTILINE)
        assert found is not None
        network, meta, stl, good, proto = (cell.strip() for cell in found[1].split(" | "))
        recipes = {method: load_recipe(f"{folder}/{method}_1shot") for method in META}
        recipes |= {method: load_recipe(f"{folder}/{method}") for method in TRANSFER}
        assert network.lower().replace("-", "").startswith(recipes["protonet"].backbone["name"])
        assert meta == f"{recipes['meta_deepbdc'].options['reduce_to']}; {epochs_of(recipes['meta_deepbdc'])}"
        assert stl == f"{recipes['stl_deepbdc'].options['reduce_to']}; {epochs_of(recipes['stl_deepbdc'])}"
        assert good == epochs_of(recipes["good_embed"])
        assert proto == epochs_of(recipes["protonet"])


def test_the_page_names_every_recipe() -> None:
    """In full, as `BENCHMARK/METHOD_*` for both numbers of shots, or as `miniimagenet_to_*/...` for all targets."""
    for name in list_recipes():
        folder, _, method = name.partition("/")
        if folder in ("cifar_fs", "glyphs", "cub_cpu") and method in methods.names():
            continue  # the page says that there is one for every method
        if method.removesuffix("_1shot").removesuffix("_5shot") in META + TRANSFER and folder in PAPER_FOLDERS:
            continue  # in the first table
        folders = (folder, "miniimagenet_to_*") if "_to_" in folder else (folder,)
        forms = (method, re.sub(r"_[15]shot$", "_*", method))
        assert any(f"`{first}/{second}`" in PAGE for first in folders for second in forms), name


def epochs_of(recipe: Recipe) -> str:
    epochs = recipe.stages["pretrain"].epochs
    if "meta" in recipe.stages:
        return f"{epochs} + {recipe.stages['meta'].epochs}"
    return f"{epochs} × {len(recipe.trainings)}"


def test_what_is_read_can_be_changed_without_changing_the_next_reading() -> None:
    first = read_recipe("glyphs/protonet")
    first["backbone"]["name"] = "changed"
    list_recipes().clear()
    assert read_recipe("glyphs/protonet")["backbone"]["name"] == "conv4"
    assert "glyphs/protonet" in list_recipes()
