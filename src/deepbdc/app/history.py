"""What a visitor can undo: the states before the last actions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

P = TypeVar("P")


@dataclass(frozen=True)
class Step(Generic[P]):
    """The state before an action."""

    text: str
    """What the action was, for the button that undoes it."""
    classes: Mapping[str, str]
    pictures: Mapping[str, P]
    batch: str | None = None
    """Actions in a row with the same batch are undone together, like the pictures of one folder."""


class History(Generic[P]):
    """The states before the last actions, the newest last.

    Args:
        most_steps: How many actions can be undone.
        most_pictures: How many removed pictures are kept for that.
    """

    def __init__(self, most_steps: int, most_pictures: int) -> None:
        self._most_steps = most_steps
        self._most_pictures = most_pictures
        self._steps: list[Step[P]] = []

    @property
    def last(self) -> str | None:
        """What can be undone next."""
        return self._steps[-1].text if self._steps else None

    def add(self, step: Step[P], now: Mapping[str, P]) -> None:
        """Remember the state before an action. ``now`` is the state after it."""
        if step.batch is not None and self._steps and self._steps[-1].batch == step.batch:
            return
        self._steps = [*self._steps, step][-self._most_steps :]
        while self._steps and len(set(self.pictures()) - set(now)) > self._most_pictures:
            self._steps.pop(0)

    def pop(self) -> Step[P]:
        """The state before the last action, which is then no longer remembered."""
        return self._steps.pop()

    def clear(self) -> None:
        """Forget everything."""
        self._steps.clear()

    def pictures(self) -> Iterator[str]:
        """The ids of all pictures of these states, some of them several times."""
        for step in self._steps:
            yield from step.pictures
