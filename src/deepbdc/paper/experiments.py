"""What each table and figure of the paper compares, read from the small files in ``experiments``.

A file names the published tables that stand beside ours. Their rows are the rows of the experiment, unless it lists
others. ``changes`` says what a value that tells rows apart, such as ``d: 640``, changes in the recipe of the method.
``beside`` names published tables of the same rows on another data set, which get columns of their own.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from deepbdc._registry import nearest
from deepbdc.errors import UserError
from deepbdc.recipes.values import build, read_yaml
from deepbdc.report.published import Published, published

Kind = Literal["table", "figure", "drawing", "page"]
"""What is written: a table; a table and a figure of it; a drawing; the table of hyper-parameters."""
Drawing = Literal["instantiations", "relations"]
"""What is drawn without networks that were trained."""
FILES = Path(__file__).parent / "experiments"
ORDER = (
    "overview",
    "table1",
    "table2a",
    "table2b",
    "pooling",
    "table3",
    "table4a",
    "table4b",
    "table5a",
    "table5b",
    "table5c",
    "hyperparameters",
    "prototypes",
    "capacity",
    "features",
    "latency",
    "channels",
    "relations",
)
"""The experiments, in the order of the paper."""


@dataclass(frozen=True)
class Row:
    """One row of a table, or one point of a figure."""

    method: str
    name: str
    """What the row is called in our table."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """What tells it from other rows of the method, such as ``{"d": 640}``."""
    published: Published | None = None
    beside: Mapping[str, Published] = field(default_factory=dict)
    """The same row in the published tables of other data sets, by data set."""
    set: Mapping[str, Any] = field(default_factory=dict)
    """Values of the recipe, by keys such as ``options.reduce_to``. ``{channels: 0.4}`` stands for that share of the
    channels of the network."""
    larger: bool = False
    """Whether the network is a larger one than that of the recipe."""
    classifier: str | None = None
    """What classifies the queries of a test task, in place of the method's own."""
    group: str = ""
    """The published table that it belongs to, as a heading."""
    colour: str = ""
    """Of its curve in a figure."""


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper."""

    name: str
    place: str
    """Where it is in the paper."""
    title: str
    kind: Kind
    columns: tuple[str, ...]
    shots: tuple[int, ...]
    rows: tuple[Row, ...]
    data: tuple[str, ...]
    """The paper's data sets: first that of the published values of the rows, then those that stand beside it."""
    baseline: str | None
    """The method of the row to which the others are compared, episode by episode: the first one of that method."""
    target: str | None
    """The data set on which the networks are tested, if it is another one than that of the training."""
    count_task_classifier: bool
    """Whether the parameters of the linear classifier of one 5-way task count."""
    published: tuple[str, ...]
    """The names of the published tables."""
    drawing: Drawing | None
    """What is drawn, if it is a drawing."""

    @property
    def is_trained(self) -> bool:
        """Whether networks are behind it."""
        return self.kind in ("table", "figure")


@dataclass(frozen=True, kw_only=True)
class _File:
    """The keys of a file."""

    place: str
    title: str
    kind: Kind = "table"
    published: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    shots: tuple[int, ...] = (1, 5)
    rows: tuple[Mapping[str, Any], ...] = ()
    changes: Mapping[str, Mapping[Any, Mapping[str, Any]]] = field(default_factory=dict)
    baseline: str | None = None
    target: str | None = None
    count_task_classifier: bool = False
    drawing: Drawing | None = None


@cache
def experiments() -> dict[str, Experiment]:
    """All experiments by their names, in the order of the paper."""
    return {name: _read(FILES / f"{name}.yaml") for name in ORDER}


def find(name: str) -> Experiment:
    """An experiment by its name."""
    if name not in experiments():
        raise UserError(f"the paper has no table or figure called {name!r}{nearest(name, list(experiments()))}")
    return experiments()[name]


def _read(path: Path) -> Experiment:
    content: _File = build(_File, read_yaml(path.read_text(encoding="utf-8")), path.name)
    if content.rows:
        given = [(row["method"], one, "") for row in content.rows for one in _expanded(row)]
        colours = {row["method"]: row.get("colour", "") for row in content.rows}
    else:
        colours = {}
        given = [
            (row.method, dict(row.identity) | {"backbone": row.backbone}, published()[table].title)
            for table in content.published
            for row in published()[table].rows
        ]
    rows = [
        dataclasses.replace(_row(content, method, identity, group), colour=colours.get(method, ""))
        for method, identity, group in given
    ]
    several = len(content.published) > 1 and content.kind == "table"
    return Experiment(
        name=path.stem,
        place=content.place,
        title=content.title,
        kind=content.kind,
        columns=content.columns,
        shots=content.shots,
        rows=tuple(row if several else _without_group(row) for row in rows),
        data=tuple(dict.fromkeys(_data(table) for table in (*content.published, *content.beside))),
        baseline=content.baseline,
        target=content.target,
        count_task_classifier=content.count_task_classifier,
        published=content.published,
        drawing=content.drawing,
    )


def _expanded(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The identities of a row of a file, in which a value may be a list of values."""
    found: list[dict[str, Any]] = [{}]
    for key, value in row.items():
        if key not in ("method", "colour"):
            values = value if isinstance(value, list) else [value]
            found = [one | {key: each} for one in found for each in values]
    return found


def _row(content: _File, method: str, identity: Mapping[str, Any], group: str) -> Row:
    found = _published(content, method, identity)
    told = {key: value for key, value in identity.items() if key != "backbone" or "backbone" in content.changes}
    change = _change(content, identity)
    options = {} if found is None else {f"options.{key}": value for key, value in found.options.items()}
    beside = {
        _data(table): row
        for table in content.beside
        for row in published()[table].rows
        if row.method == method and _change(content, {"backbone": row.backbone, **row.identity}) == change
    }
    larger = change.pop("backbone", None) == "larger"
    classifier = change.pop("classifier", None)
    printed = method if found is None else found.name.removesuffix(" (ours)")  # ours are the numbers made here
    name = _label(printed, {key: told[key] for key in told if key in content.changes})
    return Row(method, name, told, found, beside, options | change, larger, classifier, group)


def _change(content: _File, identity: Mapping[str, Any]) -> dict[str, Any]:
    """What the values that tell a row apart change in the recipe."""
    change: dict[str, Any] = {}
    for key, value in identity.items():
        if value is not None and key in content.changes:
            spelt = str(value).lower() if isinstance(value, bool) else value
            if spelt not in content.changes[key]:
                raise UserError(f"experiment {content.title!r}: changes.{key} lacks {spelt!r}")
            change |= content.changes[key][spelt]
    return change


def _data(table: str) -> str:
    """The data set of a published table."""
    return published()[table].data or ""


def name_in_paper(method: str) -> str:
    """How the paper writes the name of a method in its tables of systems."""
    tables = ("3_counterparts", "4a_miniimagenet", "4b_cub", "5a_cub")
    rows = (row for table in tables for row in published()[table].rows)
    return next((row.name for row in rows if row.method == method and not row.options), method)


def _published(content: _File, method: str, identity: Mapping[str, Any]) -> Published | None:
    """The row of the first published table that has it."""
    for table in content.published:
        for row in published()[table].rows:
            if row.method == method and identity.items() <= {"backbone": row.backbone, **row.identity}.items():
                return row
    return None


def _label(name: str, identity: Mapping[str, Any]) -> str:
    """The name of a row, with what tells it from others.

    >>> _label("640", {"d": 640}), _label("ProtoNet", {"d": None}), _label("ProtoNet", {"features": 25})
    ('d = 640', 'ProtoNet', 'ProtoNet, 25 features')
    """
    words = {"d": "d = {}", "features": "{} features", "observations": "{} as observations", "backbone": "{}"}
    own = [words[key].format(value) for key, value in identity.items() if key in words and value is not None]
    return own[0] if name == str(identity.get("d")) else ", ".join([name, *own])


def _without_group(row: Row) -> Row:
    return dataclasses.replace(row, group="")
