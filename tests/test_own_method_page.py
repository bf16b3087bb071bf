"""Follows docs/own-method.md: writes its files, installs the package and runs its commands, in another process."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "own-method.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
FILES = {"python": "mean_deviation.py", "toml": "pyproject.toml", "yaml": "mean_deviation.yaml"}


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each command of the page prints."""
    folder = tmp_path_factory.mktemp("plugin")
    for kind, content in BLOCKS:
        if kind in FILES:
            (folder / FILES[kind]).write_text(content, encoding="utf-8")
    installed = folder / "installed"  # not into the environment of the tests
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(installed), *([inherited] if inherited else [])])
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "120"}
    found = {}
    for line in (line for kind, content in BLOCKS if kind == "sh" for line in content.splitlines()):
        words = shlex.split(line)
        if words[0] == "pip":
            words = ["pip", *words[1:], "--target", str(installed), "--quiet"]
        command = [sys.executable, "-m", *words]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        found[line] = done.stdout
    return found


def test_the_method_is_listed_with_its_idea(printed: dict[str, str]) -> None:
    assert "standard deviation of each channel" in printed["deepbdc methods mean_deviation"]


def test_the_comparison_has_both_methods_and_a_difference(printed: dict[str, str]) -> None:
    table = printed["deepbdc compare runs/protonet runs/mean_deviation"]
    row = next(line for line in table.splitlines() if "mean_deviation" in line and "±" in line)
    assert re.search(r"\d\d\.\d\d ± \d+\.\d\d +[+−]\d+\.\d\d ± \d+\.\d\d", row), table


def test_the_method_has_fewer_than_sixty_lines() -> None:
    (code,) = (content for kind, content in BLOCKS if kind == "python")
    assert len(code.splitlines()) < 60
