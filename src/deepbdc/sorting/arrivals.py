"""Pictures that arrive in a folder: each is given once, when it is complete."""

from dataclasses import dataclass, field
from pathlib import Path

from deepbdc.sorting.finding import find_pictures

_State = tuple[int, int]


@dataclass
class Arrivals:
    """Watches a folder with its subfolders.

    A picture is complete when its size and its time have not changed between two looks, and it is not empty. If it
    changes afterwards, it is given again.
    """

    folder: Path
    _seen: dict[Path, _State] = field(default_factory=dict)
    """Size and time of the pictures at the last look."""
    _given: dict[Path, _State] = field(default_factory=dict)
    """Size and time of the pictures that were given."""

    def skip_present(self) -> int:
        """Regard the pictures that are there now as given; return how many there are."""
        self._given |= self._look()
        return len(self._given)

    def complete(self) -> list[Path]:
        """The pictures that are complete since the last call, in order."""
        now = self._look()
        ready = [
            path for path, state in now.items() if self._seen.get(path) == state and self._given.get(path) != state
        ]
        self._given = {path: state for path, state in self._given.items() if path in now}
        self._given |= {path: now[path] for path in ready}
        self._seen = now
        return ready

    def _look(self) -> dict[Path, _State]:
        found = {}
        for path in find_pictures([self.folder]).pictures:
            try:
                state = path.stat()
            except OSError:  # it was moved away just now
                continue
            if state.st_size:
                found[path] = (state.st_size, state.st_mtime_ns)
        return found
