"""The import graph between the rooms of the package, for docs/architecture.md.

    python docs/rooms.py            print it
    python docs/rooms.py --write    write it into docs/architecture.md

A room is a package or module directly below ``deepbdc``; the private modules (``_files.py``, ...) are one room,
``helpers``. Imports inside functions count; those under ``if TYPE_CHECKING:`` do not, as they never run. A test checks
that the page is up to date and that no room imports one above it.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from page_table import PageTable

PACKAGE = Path(__file__).parent.parent / "src" / "deepbdc"
PAGE = PageTable("rooms", Path(__file__).parent / "architecture.md")


def room_of(module: str) -> str:
    """The room of a module like ``deepbdc.data.loading``.

    >>> room_of("deepbdc.data.loading"), room_of("deepbdc._files"), room_of("deepbdc"), room_of("deepbdc.__main__")
    ('data', 'helpers', 'deepbdc', 'cli')
    """
    parts = module.split(".")
    if len(parts) == 1:
        return "deepbdc"
    if parts[1] == "__main__":  # the program, which only calls the command line
        return "cli"
    return "helpers" if parts[1].startswith("_") else parts[1]


def imports(path: Path) -> Iterator[str]:
    """The modules of the package that a file imports when it runs."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for part in block.body
        for node in ast.walk(part)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "deepbdc")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "deepbdc":
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if is_module(inner) else node.module
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            module = node.value.partition(":")[0]  # commands are given as import paths
            if module.startswith("deepbdc.") and is_module(module):
                yield module


def is_module(name: str) -> bool:
    """Whether a dotted name is a module or package of the package."""
    place = PACKAGE.parent.joinpath(*name.split("."))
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def graph() -> dict[str, set[str]]:
    """For each room, the rooms that it imports."""
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        room = room_of(".".join(part for part in parts if part != "__init__"))
        wanted = {room_of(module) for module in imports(path)} - {room}
        found.setdefault(room, set()).update(wanted)
    found.pop("deepbdc")  # the public names, each imported when it is used
    return {room: {other for other in others if other != "deepbdc"} for room, others in found.items()}


def layers(rooms: dict[str, set[str]]) -> list[list[str]]:
    """The rooms from the bottom up: each imports only rooms of the layers below it. A cycle is a ValueError."""
    done: list[list[str]] = []
    while left := sorted(set(rooms) - {room for layer in done for room in layer}):
        free = [room for room in left if not rooms[room] & set(left)]
        if not free:
            raise ValueError(f"these rooms import each other in a circle: {', '.join(left)}")
        done.append(free)
    return done


def describe(rooms: dict[str, set[str]]) -> str:
    """A table with a row for each room, from the top layer to the bottom."""
    lines = ["| layer | room | imports |", "|---|---|---|"]
    for number, layer in reversed(list(enumerate(layers(rooms), start=1))):
        lines += [f"| {number} | `{room}` | {', '.join(sorted(rooms[room])) or '–'} |" for room in layer]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.main(__doc__, lambda: describe(graph()))
