"""Accuracies that papers report, to be shown beside ours and told apart from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@dataclass(frozen=True)
class Published:
    """One row of a published table."""

    method: str
    """The name of the method in this library."""
    name: str
    """The name in the paper."""
    backbone: str
    accuracies: Mapping[int, tuple[float, float | None]]
    """Shots to percent, with the half-width of the 95 % interval if the paper has one."""
    rerun: bool = False
    """Whether the authors of DeepBDC trained it themselves; they copied the other rows."""
    source: str = field(default="DeepBDC paper", compare=False)

    def as_text(self) -> str:
        """The accuracies as in a table, like ``62.11 / 80.77``; a number that the paper does not have is a dash."""
        shots = (1, 5)
        return " / ".join(f"{self.accuracies[shot][0]:.2f}" if shot in self.accuracies else "–" for shot in shots)


@cache
def published() -> dict[str, tuple[Published, ...]]:
    """All tables by their names, such as ``4a_miniimagenet``."""
    content = yaml.safe_load(files("deepbdc.report").joinpath("published.yaml").read_text(encoding="utf-8"))
    return {table: tuple(_row(row) for row in rows) for table, rows in content.items()}


def _row(content: Mapping[Any, Any]) -> Published:
    accuracies = {
        key: (value[0], value[1] if len(value) > 1 else None) for key, value in content.items() if key in (1, 5)
    }
    return Published(accuracies=accuracies, **{key: value for key, value in content.items() if key not in (1, 5)})


def on_miniimagenet(method: str) -> Published | None:
    """The published row of a method on miniImageNet: that of the DeepBDC paper, else that of its own paper."""
    rows = [*published()["4a_miniimagenet"], *published()["miniimagenet_elsewhere"]]
    return next((row for row in rows if row.method == method), None)
