"""The numbers that papers report, to be shown beside ours and told apart from them.

``published.yaml`` has them, one entry for each table, figure or passage of the DeepBDC paper and its supplement.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from deepbdc._registry import nearest
from deepbdc.errors import UserError

Column = int | str
"""The column of a table: a number of shots for the accuracy with that many, else a key of `COLUMNS`."""

COLUMNS: Mapping[str, str] = {
    "latency": "milliseconds of one test task, by shots",
    "training_latency": "milliseconds of one training task, by shots",
    "parameters": "millions of parameters",
    "model": "what describes an image, in words",
    "measure": "what compares two images, in words",
    "joint": "whether the measure looks at the joint distribution",
    "dependency": "the kind of dependency that the measure sees, in the paper's words",
    "speed": "the latency as a word",
    "lr": "first learning rate",
    "milestones": "epochs after which the rate is multiplied by factor",
    "factor": "see milestones",
    "epochs": "epochs of the stage",
    "batch_size": "images in a step",
    "query": "query images per class of a training task",
    "weight_decay": "of SGD",
    "momentum": "of SGD",
    "dropblock": "whether ResNet-12 is trained with DropBlock",
    "channels": "channels d after the 1×1 convolution",
}
"""What the columns mean, besides the accuracies."""

IDENTITIES: Mapping[str, str] = {
    "d": "channels after the 1×1 convolution; None: there is no such convolution",
    "similarity": "the option of Meta DeepBDC",
    "classifier": "a name of `deepbdc.list_classifiers`",
    "observations": "the option of BDC pooling",
    "reduction": "whether there is a 1×1 convolution",
    "prototype": "the option of Meta DeepBDC",
    "features": "positions of the feature map",
    "benchmarks": "the folders of the recipes that a row is about",
}
"""What may tell the rows of a table apart, besides the method and its backbone. Options have our names and values."""

_BY_SHOTS = ("latency", "training_latency")


@dataclass(frozen=True)
class Published:
    """One row of a published table."""

    method: str
    """The name of the method in this library."""
    name: str
    """The name in the paper: that of the method, or what the row is called in an ablation."""
    backbone: str | None
    """None if the paper does not say."""
    accuracies: Mapping[int, tuple[float, float | None]]
    """Shots to percent, with the half-width of the 95 % interval if the paper has one."""
    rerun: bool = False
    """Whether the authors of DeepBDC reproduced it themselves; they copied the other rows."""
    source: str = field(default="DeepBDC paper", compare=False)
    identity: Mapping[str, Any] = field(default_factory=dict)
    """What tells the row from others of its method and backbone, such as ``{"d": 640}``; see `IDENTITIES`."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The columns besides the accuracies, such as ``{"latency": {1: 161, 5: 198}}``; see `COLUMNS`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options with which our method is that of the row, if its defaults are not."""
    lower_bounds: tuple[str, ...] = ()
    """Columns in which the paper says "more than" the number."""

    def as_text(self) -> str:
        """The accuracies as in a table, like ``62.11 / 80.77``; a number that the paper does not have is a dash."""
        shots = (1, 5)
        return " / ".join(f"{self.accuracies[shot][0]:.2f}" if shot in self.accuracies else "–" for shot in shots)


@dataclass(frozen=True)
class PublishedTable:
    """A table, figure or passage of a paper."""

    place: str
    """Where it is, such as ``Table 2a, top``."""
    title: str
    data: str | None
    """The data set, or the folder of the recipes of a pair of data sets; None if the rows say it."""
    identified_by: tuple[str, ...]
    """What tells its rows apart, besides the method and its backbone; see `IDENTITIES`."""
    columns: tuple[Column, ...]
    """In the order of the paper."""
    rows: tuple[Published, ...]
    others: tuple[Published, ...] = ()
    """Rows of methods that this library does not have; their ``method`` is empty."""

    def row(self, method: str, **identity: Any) -> Published:
        """The only row with these values, such as ``row("meta_deepbdc", d=640)``; ``backbone`` can be one of them."""
        found = [row for row in self.rows if row.method == method and identity.items() <= _identity(row).items()]
        if len(found) != 1:
            raise UserError(
                f"{self.place} has {len(found)} rows of {method!r} with {identity or 'any values'}, not one: "
                f"its rows are told apart by method, backbone{''.join(f', {key}' for key in self.identified_by)}"
            )
        return found[0]


@cache
def published() -> dict[str, PublishedTable]:
    """All tables by their names, such as ``4a_miniimagenet``."""
    from deepbdc.recipes.values import read_yaml

    text = files("deepbdc.report").joinpath("published.yaml").read_text(encoding="utf-8")
    return read_tables(read_yaml(text))


def read_tables(content: Mapping[str, Any]) -> dict[str, PublishedTable]:
    """Tables from plain values in the layout of ``published.yaml``, every key and number checked."""
    return {name: _table(name, table) for name, table in content.items()}


def on_miniimagenet(method: str) -> Published | None:
    """The published row of a method on miniImageNet: that of the DeepBDC paper, else that of its own paper."""
    tables = ("4a_miniimagenet", "sec4.3_fusion", "miniimagenet_elsewhere")
    rows = (row for table in tables for row in published()[table].rows)
    return next((row for row in rows if row.method == method), None)


def on_data(data: str) -> list[PublishedTable]:
    """The tables of accuracies of whole methods on a data set, or pair of data sets, in the order of preference."""
    tables = (
        "4a_miniimagenet",
        "sec4.3_fusion",
        "miniimagenet_conv4_elsewhere",
        "miniimagenet_elsewhere",
        "4a_tieredimagenet",
        "4b_cub",
        "cub_conv4_elsewhere",
        "5a_cub",
        "5b_aircraft",
        "5c_cars",
        "cifar_fs_elsewhere",
    )
    return [published()[name] for name in tables if published()[name].data == data]


def _table(name: str, content: Mapping[str, Any]) -> PublishedTable:
    _check_keys(
        content,
        needed=("place", "title", "data", "columns", "rows"),
        allowed=("backbone", "identified_by", "others"),
        title=f"published table {name}",
    )
    identified_by, columns = tuple(content.get("identified_by", ())), tuple(content["columns"])
    _check_known(identified_by, IDENTITIES, f"published table {name}: identified_by")
    _check_known(columns, (1, 5, *COLUMNS), f"published table {name}: columns")
    defaults = {"backbone": content["backbone"]} if "backbone" in content else {}
    rows = tuple(
        _row(f"published table {name}, row {position}", {**defaults, **row}, identified_by, columns)
        for position, row in enumerate(content["rows"], start=1)
    )
    others = tuple(
        _row(f"published table {name}, other {position}", {**defaults, **row, "method": ""}, identified_by, columns)
        for position, row in enumerate(content.get("others", ()), start=1)
    )
    keys = [(row.method, tuple(map(str, _identity(row).items()))) for row in rows]
    for position, key in enumerate(keys):
        if key in keys[:position]:
            raise UserError(f"published table {name}: row {position + 1} repeats row {keys.index(key) + 1}")
    return PublishedTable(content["place"], content["title"], content["data"], identified_by, columns, rows, others)


def _row(
    title: str, content: Mapping[Any, Any], identified_by: tuple[str, ...], columns: tuple[Column, ...]
) -> Published:
    _check_keys(
        content,
        needed=("method", "name", "backbone", *identified_by),
        allowed=("rerun", "source", "options", "lower_bounds", *columns),
        title=title,
    )
    accuracies = {
        column: _accuracy(content[column], f"{title}: {column}")
        for column in columns
        if isinstance(column, int) and column in content
    }
    values = {column: content[column] for column in columns if isinstance(column, str) and column in content}
    for column in (column for column in _BY_SHOTS if column in values):
        _check_by_shots(values[column], f"{title}: {column}")
    if not accuracies and not values:
        raise UserError(f"{title} has no value in any of the columns {', '.join(map(str, columns))}")
    lower_bounds = tuple(content.get("lower_bounds", ()))
    _check_known(lower_bounds, values, f"{title}: lower_bounds")
    others = {key: content[key] for key in ("rerun", "source", "options") if key in content}
    return Published(
        method=content["method"],
        name=content["name"],
        backbone=content["backbone"],
        accuracies=accuracies,
        identity={key: content[key] for key in identified_by},
        values=values,
        lower_bounds=lower_bounds,
        **others,
    )


def _accuracy(value: Any, title: str) -> tuple[float, float | None]:
    if not isinstance(value, list) or len(value) not in (1, 2) or not all(isinstance(part, float) for part in value):
        raise UserError(f"{title} must be [mean] or [mean, half-width], got {value!r}")
    if not 0 < value[0] < 100 or (len(value) == 2 and not 0 < value[1] < 10):
        raise UserError(f"{title} must be percent, got {value!r}")
    return value[0], value[1] if len(value) == 2 else None


def _check_by_shots(value: Any, title: str) -> None:
    if not isinstance(value, dict) or not all(isinstance(key, int) and number > 0 for key, number in value.items()):
        raise UserError(f"{title} must be positive numbers by shots, such as {{1: 161, 5: 198}}, got {value!r}")


def _check_keys(content: Mapping[Any, Any], needed: Iterable[str], allowed: Iterable[Column], title: str) -> None:
    """Raise unless ``content`` has all needed keys, and no others than those and the allowed ones."""
    needed = tuple(needed)
    missing = [key for key in needed if key not in content]
    if missing:
        raise UserError(f"{title} lacks {', '.join(missing)}")
    _check_known(content, (*needed, *allowed), title)


def _check_known(given: Iterable[Any], known: Iterable[Any], title: str) -> None:
    known = tuple(known)
    for key in given:
        if key not in known:
            raise UserError(f"{title} has {key!r}, which is not known{nearest(str(key), [str(key) for key in known])}")


def _identity(row: Published) -> dict[str, Any]:
    return {"backbone": row.backbone, **row.identity}
