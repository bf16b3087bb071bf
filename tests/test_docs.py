"""The guides: their blocks of Python run, their commands can be parsed, and every public name is documented."""

import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import deepbdc
from deepbdc.cli import app

DOCS = Path(__file__).parent.parent / "docs"
OWN_TESTS = {"own-images.md", "own-method.md", "scaling.md"}
"""Pages with tests of their own."""
PAGES = sorted(page for page in DOCS.glob("*.md") if page.name not in OWN_TESTS)
PYTHON = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, code in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    )
]
COMMANDS = sorted(
    {
        line
        for page in PAGES
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
        if line.startswith("deepbdc ")
    }
)


@pytest.mark.parametrize("code", PYTHON)
def test_example_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEEPBDC_DATA", str(tmp_path))
    exec(compile(code, "docs", "exec"), {})


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_parsed(command: str) -> None:
    app.parse_args(shlex.split(command.partition("#")[0])[1:])


def test_there_is_something_to_test() -> None:
    assert len(PYTHON) >= 4
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize("name", deepbdc.__all__)
def test_public_names_are_in_the_reference_and_documented(name: str) -> None:
    assert re.search(rf"^\.\. auto\w+:: {name}$", (DOCS / "api.md").read_text("utf-8"), re.MULTILINE), name
    thing: Any = getattr(deepbdc, name)
    assert (inspect.getdoc(thing) or "").strip()
    if inspect.isclass(thing):
        members = [(key, value) for key, value in vars(thing).items() if not key.startswith("_")]
        bare = [key for key, value in members if callable(value) and not (inspect.getdoc(value) or "").strip()]
        assert not bare


def test_every_page_is_in_the_contents() -> None:
    contents = (DOCS / "index.md").read_text("utf-8")
    named = {line.strip() for line in contents.splitlines()}
    assert {page.stem for page in DOCS.glob("*.md")} - named == {"index"}
