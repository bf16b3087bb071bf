"""Runs every command of docs/first-comparison.md in order, with networks and trainings that fit into a test."""

import re
import shlex
from pathlib import Path

import pytest

from deepbdc.cli import main
from tests.pages import ROOT, blocks, commands

PAGE = ROOT / "docs" / "first-comparison.md"
COMMANDS = [command for block in blocks(PAGE) if block.language == "sh" for command in commands(block)]
OURS = [command for command in COMMANDS if command.startswith("deepbdc ")]
SMALL = [
    *("backbone.width=0.1", "pretrain.epochs=1", "pretrain.warmup=0", "pretrain.batch_size=512"),
    *("validation.episodes=20", "evaluation.episodes=300"),
]
SMALL_STAGES = {"meta": ["meta.epochs=1", "meta.episodes=4"], "stl": ["distill=null"]}


def small(command: str) -> list[str]:
    """The words of a command that trains, with smaller values of its recipes."""
    words = shlex.split(command)[1:]
    recipes = [word for word in words[1:] if word.startswith("glyphs/")]
    if words[0] not in ("train", "compare") or not recipes:
        return words
    stage = "stl" if any("stl" in recipe for recipe in recipes) else "meta"
    return [*words, *SMALL, *SMALL_STAGES[stage]]


def test_all_commands_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEEPBDC_DATA", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "140")
    printed = {}
    for command in OURS:
        main(small(command))
        printed[command] = capsys.readouterr().out
    for command, text in printed.items():
        if command.startswith("deepbdc compare"):  # the signs that the page explains
            assert re.search(r"\d\d\.\d\d ± \d\.\d\d", text), text
            assert re.search(r"[+−]\d+\.\d\d ± \d+\.\d\d", text), text
            assert re.search(r"\(± \d+\.\d+\)", text), text
    assert Path("runs/comparison.png").is_file()


def test_the_page_has_its_commands() -> None:
    assert {command.split()[1] for command in OURS} == {"compare", "train", "evaluate"}
    assert all(command in ("make install", ". .venv/bin/activate") for command in set(COMMANDS) - set(OURS))
