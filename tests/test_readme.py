"""Runs the Python blocks in README.md unchanged, and checks that its `deepbdc` commands can be parsed."""

import re
import shlex
from pathlib import Path

import pytest

from deepbdc.cli import app
from deepbdc.recipes import load_recipe

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = re.findall(r"(?:^    |`)deepbdc ([^`#\n]+)", README, flags=re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPBDC_DATA", str(tmp_path))
    exec(compile(example, "README.md", "exec"), {})


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_parsed(command: str) -> None:
    words = shlex.split(command)
    app.parse_args(words)
    if words[0] in ("train", "compare"):
        overrides = [word for word in words if "=" in word]
        for recipe in (word for word in words if re.fullmatch(r"(?!runs/)[a-z]\w*/\w+", word)):
            load_recipe(recipe, overrides)


def test_there_are_examples_and_commands() -> None:
    assert len(EXAMPLES) >= 2
    assert len(COMMANDS) >= 8
