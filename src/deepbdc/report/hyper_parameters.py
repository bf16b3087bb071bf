"""Table S-1 of the paper from our recipes: the hyper-parameters of DeepBDC, with the published ones beside them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deepbdc.errors import UserError
from deepbdc.recipes import Recipe, list_recipes, load_recipe, read_recipe
from deepbdc.report.grid import Grid
from deepbdc.report.published import Published, published
from deepbdc.stages.settings import StageSettings

STAGES = {"meta_deepbdc": ("meta",), "stl_deepbdc": ("pretrain", "distill")}
"""The stages that the paper's table is about. Of the pre-training of Meta DeepBDC it says nothing."""

_SCRIPT = "the paper's best d is 640; the released script has 256, which we assume gave the published numbers"
_DROPBLOCK = "the released code never enables DropBlock; backbone.drop_rate=0.1 enables it"
DIFFERENCES = {
    ("meta_deepbdc", "tieredimagenet", "Channels d"): _SCRIPT,
    ("meta_deepbdc", "cub", "Channels d"): _SCRIPT,
    **{
        (method, folder, "DropBlock"): _DROPBLOCK
        for method in STAGES
        for folder in (
            "miniimagenet",
            "tieredimagenet",
            "miniimagenet_to_cub",
            "miniimagenet_to_aircraft",
            "miniimagenet_to_cars",
        )
    },
}
"""(method, benchmark, name) of the values that differ from the published ones on purpose, with the reason."""


@dataclass(frozen=True)
class HyperParameter:
    """One value of a recipe."""

    recipe: str
    method: str
    benchmark: str
    """The folder of the recipe, like ``miniimagenet_to_cub``."""
    stage: str
    name: str
    """As in the paper's table, where it has the value."""
    ours: str
    published: str | None
    """None if the paper does not say."""

    @property
    def differs(self) -> bool:
        """Whether the paper gives another value."""
        return self.published is not None and self.published != self.ours

    @property
    def reason(self) -> str | None:
        """Why it differs from the published value, if it does and that is known."""
        return DIFFERENCES.get((self.method, self.benchmark, self.name)) if self.differs else None


def paper_recipes() -> list[str]:
    """The names of the recipes that Table S-1 is about, in the order of its columns."""
    rows = published()["s1_hyper_parameters"].rows
    cells = [(row.method, folder) for row in rows for folder in row.identity["benchmarks"]]
    names = [(read_recipe(name)["method"], name.partition("/")[0], name) for name in list_recipes()]
    return [name for cell in cells for method, folder, name in names if (method, folder) == cell]


def hyper_parameters(recipes: Sequence[str] | None = None) -> list[HyperParameter]:
    """The hyper-parameters of recipes of Meta DeepBDC and STL DeepBDC, by default all of the paper's benchmarks."""
    return [value for name in (paper_recipes() if recipes is None else recipes) for value in _of_recipe(name)]


def _of_recipe(name: str) -> list[HyperParameter]:
    recipe, folder = load_recipe(name), name.partition("/")[0]
    rows = published()["s1_hyper_parameters"].rows
    row = next((row for row in rows if row.method == recipe.method and folder in row.identity["benchmarks"]), None)
    if row is None:
        raise UserError(
            f"the paper has no hyper-parameters for the recipe {name!r}: it has those of {', '.join(paper_recipes())}"
        )
    theirs = _published(row)
    return [
        HyperParameter(name, recipe.method, folder, stage, key, ours, theirs.get(key))
        for stage in STAGES[recipe.method]
        for key, ours in _ours(recipe, recipe.stages[stage]).items()
    ]


def _ours(recipe: Recipe, stage: StageSettings) -> dict[str, str]:
    """The values of a stage by the names of the table."""
    decay = _decay(stage.milestones, stage.gamma) if stage.schedule == "multistep" else stage.schedule
    rate_of_t = stage.groups["t"].lr if "t" in stage.groups else None
    values = {
        "Initial LR": _number(stage.lr),
        "LR decay": decay,
        "Epochs": str(stage.epochs),
        "LR of t": _number(stage.lr if rate_of_t is None else rate_of_t),
        "Weight decay": _number(stage.weight_decay),
        "Momentum": _number(stage.momentum) if stage.optimiser == "sgd" else f"none: {stage.optimiser}",
        "Channels d": str(recipe.options.get("reduce_to") or "those of the backbone"),
    }
    for key, name in (("batch_size", "Batch size"), ("query", "Queries")):
        if hasattr(stage, key):
            values[name] = str(getattr(stage, key))
    if recipe.backbone["name"] == "resnet12":
        values["DropBlock"] = _yes(recipe.backbone.get("drop_rate", 0) > 0)
    return values


def _published(row: Published) -> dict[str, str]:
    """The published values of a row by the names of the table."""
    given = row.values
    values = {
        "Initial LR": _number(given["lr"]),
        "LR decay": _decay(given["milestones"], given["factor"]),
        "Epochs": str(given["epochs"]),
        "Weight decay": _number(given["weight_decay"]),
        "Momentum": _number(given["momentum"]),
        "Channels d": str(given["channels"]),
    }
    for key, name in (("batch_size", "Batch size"), ("query", "Queries")):
        if key in given:
            values[name] = str(given[key])
    if "dropblock" in given:
        values["DropBlock"] = _yes(given["dropblock"])
    return values


def _number(value: float) -> str:
    """A number as the paper writes it, with all its digits.

    >>> _number(1e-4), _number(0.05), _number(0.9), _number(1.5e-3)
    ('1e-4', '5e-2', '0.9', '1.5e-3')
    """
    if value == 0 or value >= 0.1:
        return f"{value:g}"
    digits, _, exponent = f"{value:.5e}".partition("e")
    return f"{float(digits):g}e{int(exponent)}"


def _decay(milestones: Sequence[int], factor: Any) -> str:
    return f"×{factor} after {', '.join(map(str, milestones))}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def grid(values: Sequence[HyperParameter]) -> Grid:
    """The values as a table, laid out as in the paper: a column for each benchmark.

    A value is ours, and the paper's too, unless the cell says otherwise. Reasons of differences are numbered below.
    """
    benchmarks = list(dict.fromkeys(value.benchmark for value in values))
    reasons = list(dict.fromkeys(value.reason for value in values if value.reason))
    made = Grid(["method", "stage", "hyper-parameter", *benchmarks])
    for method, stage, name in dict.fromkeys((value.method, value.stage, value.name) for value in values):
        of_line = [value for value in values if (value.method, value.stage, value.name) == (method, stage, name)]
        cells = [
            " / ".join(dict.fromkeys(_cell(value, reasons) for value in of_line if value.benchmark == benchmark)) or "–"
            for benchmark in benchmarks
        ]
        made.lines.append([method, stage, name, *cells])
    made.notes = [
        "Values are those of our recipes and of the paper alike, unless the cell names the paper's in italics."
    ]
    made.notes += ["*–*: the paper does not say. – alone: there is none, for example no DropBlock in ResNet-18."]
    made.notes += [f"[{number}] {reason}." for number, reason in enumerate(reasons, start=1)]
    return made


def _cell(value: HyperParameter, reasons: Sequence[str | None]) -> str:
    if value.published is None:
        return f"{value.ours} (paper: *–*)"
    if not value.differs:
        return value.ours
    number = f" [{reasons.index(value.reason) + 1}]" if value.reason else ""
    return f"**{value.ours}** (paper: *{value.published}*){number}"
