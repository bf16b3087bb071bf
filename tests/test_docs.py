"""The pages: their blocks of Python run, their commands can work, and every public name is documented."""

import importlib
import inspect
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cyclopts import MissingArgumentError

import deepbdc
from deepbdc.stages.losses import losses
from tests.pages import PAGES, ROOT, Block, blocks, check_command, commands, commands_in_text
from tests.scripts import script

DOCS = ROOT / "docs"
ELSEWHERE = {
    ("own-images.md", "python"): "test_own_images_page.py",
    ("own-images.md", "sh"): "test_own_images_page.py",
    ("own-method.md", "python"): "test_own_method_page.py",
    ("own-method.md", "sh"): "test_own_method_page.py",
    ("own-method.md", "toml"): "test_own_method_page.py",
    ("own-method.md", "yaml"): "test_own_method_page.py",
    ("first-comparison.md", "sh"): "test_first_comparison_page.py",
    ("scaling.md", "python"): "test_batch.py",
    ("recipes.md", "yaml"): "recipes/test_recipe.py",
}
"""Pages and languages whose blocks another test runs."""
BLOCKS = [block for page in PAGES for block in blocks(page)]
HERE = [block for block in BLOCKS if (block.page.name, block.language) not in ELSEWHERE]
PYTHON = [block for block in HERE if block.language == "python"]
COMMANDS = sorted({command for block in BLOCKS if block.language == "sh" for command in commands(block)})
IN_TEXT = sorted({command for page in PAGES for command in commands_in_text(page)})


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_example_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEEPBDC_DATA", str(tmp_path))
    monkeypatch.setattr(losses, "_factories", dict(losses._factories))  # what an example registers ends with it
    exec(compile(block.content, str(block), "exec"), {"__name__": "example"})


@pytest.mark.parametrize("command", COMMANDS)
def test_command_can_work(command: str) -> None:
    check_command(command)


@pytest.mark.parametrize("command", IN_TEXT)
def test_command_in_a_sentence_can_work(command: str) -> None:
    with suppress(MissingArgumentError):  # a sentence may name a command without its arguments
        check_command(command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_line_is_lost_as_a_comment(page: Path) -> None:
    """MyST leaves out lines that begin with a percent sign."""
    assert not re.findall(r"^ *%.*", page.read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize("block", HERE, ids=str)
def test_no_block_is_left_out(block: Block) -> None:
    """A new block has a language that a test runs or checks; what is only shown says so by the language text."""
    assert block.language in ("python", "sh", "text"), f"{block}: give the block a language that a test knows"


@pytest.mark.parametrize(("page", "test"), sorted({(page, test) for (page, _), test in ELSEWHERE.items()}))
def test_the_other_test_reads_the_page(page: str, test: str) -> None:
    assert page in (ROOT / "tests" / test).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "command",
    [
        "deepbdc trian glyphs/protonet",
        "deepbdc train glyphs/protonet --devcies 8",
        "deepbdc train glyphs/protonett",
        "deepbdc train glyphs/protonet pretrain.epoch=3",
        "srun deepbdc train glyphs/protonet --no-such-option",
        "torchrun --nnodes 4 -- $(which deepbdc) train glyphs/none",
        "make demmo",
        "python docs/none.py",
        "pip install '.[none]'",
        "rm -r docs",
    ],
)
def test_a_wrong_command_is_found(command: str) -> None:
    with pytest.raises((Exception, SystemExit)):
        check_command(command)


def test_there_is_something_to_test() -> None:
    assert len(PYTHON) >= 8
    assert len(COMMANDS) >= 40
    assert len(IN_TEXT) >= 20
    assert len([block for block in PYTHON if block.page.name == "README.md"]) == 2


REFERENCE = (DOCS / "api.md").read_text("utf-8")
ROOMS = re.findall(r"^\.\. automodule:: (\S+)$", REFERENCE, re.MULTILINE)


def bare(thing: Any) -> list[str]:
    """The public functions, classes, methods and properties of a module or class that have no docstring."""
    found: list[str] = []
    place = thing.__name__ if inspect.ismodule(thing) else thing.__module__
    for name, value in vars(thing).items():
        home = getattr(value, "__module__", None) or place
        if name.startswith("_") or home != place:
            continue  # private, or imported from elsewhere
        if inspect.isclass(value):
            found += [f"{name}.{member}" for member in bare(value)]
        if callable(value) or isinstance(value, property | staticmethod | classmethod):
            found += [] if (inspect.getdoc(value) or "").strip() else [name]
    return found


@pytest.mark.parametrize("name", deepbdc.__all__)
def test_public_names_are_in_the_reference_and_documented(name: str) -> None:
    assert re.search(rf"^\.\. auto\w+:: {name}$", REFERENCE, re.MULTILINE), name
    thing: Any = getattr(deepbdc, name)
    assert (inspect.getdoc(thing) or "").strip()
    assert not (bare(thing) if inspect.isclass(thing) else [])


@pytest.mark.parametrize("room", ROOMS)
def test_all_names_of_the_modules_in_the_reference_are_documented(room: str) -> None:
    module = importlib.import_module(room)
    assert (module.__doc__ or "").strip()
    assert not bare(module)


def test_a_name_without_a_docstring_is_found() -> None:
    class Documented:
        """A class."""

        def told(self) -> None:
            """Nothing."""

        def untold(self) -> None: ...

        @property
        def value(self) -> int:
            return 1

    assert bare(Documented) == ["untold", "value"]


def test_every_page_is_in_the_contents() -> None:
    contents = (DOCS / "index.md").read_text("utf-8")
    named = {line.strip() for line in contents.splitlines()}
    assert {page.stem for page in DOCS.glob("*.md")} - named == {"index"}


# docs/check_links.py

check_links = script("check_links", "docs")


@pytest.mark.parametrize(
    ("link", "found"),
    [
        ("other.html", None),
        ("other.html#part", None),
        ("#here", None),
        ("https://example.org/nothing#x", None),
        ("../notes.md#the-first-part-2", None),
        ("none.html", "leads to no file"),
        ("other.html#none", "leads to a part that other.html does not have"),
        ("#none", "leads to a part that page.html does not have"),
        ("../none.txt", "leads to no file"),
        ("../notes.md#none", "leads to a part that notes.md does not have"),
    ],
)
def test_broken_links_of_the_site_are_found(link: str, found: str | None, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "page.html").write_text(f'<p id="here"><a href="{link}">a link</a></p>', encoding="utf-8")
    (site / "other.html").write_text('<h2 id="part">A part</h2>', encoding="utf-8")
    (tmp_path / "notes.md").write_text("# Notes\n\n## The first part (2)\n", encoding="utf-8")
    number, wrong = check_links.check([site])
    assert number == 1
    assert [found in line for line in wrong] == [True] if found else not wrong


def test_links_in_markdown_are_checked_and_code_is_not(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[a](page.md) ![b](b.png) `[c](c.md)`\n\n```text\n[d](d.md)\n```\n", encoding="utf-8")
    number, wrong = check_links.check([page])
    assert number == 2
    assert len(wrong) == 1
    assert "b.png leads to no file" in wrong[0]


def test_a_folder_without_pages_is_an_error(tmp_path: Path) -> None:
    assert check_links.check([tmp_path])[1]
