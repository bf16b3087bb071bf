"""The code in the pages of the documentation: its blocks, its commands, and whether a command can work."""

import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

from deepbdc.cli import app
from deepbdc.recipes import list_recipes, load_recipe

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PLAIN = {".", "cd", "curl", "git", "mkdir", "pre-commit"}
"""Commands that are not ours."""


@dataclass(frozen=True)
class Block:
    """A block of code in a page. An indented block has no language."""

    page: Path
    line: int
    language: str
    content: str

    def __str__(self) -> str:
        return f"{self.page.stem}-line{self.line}"


def blocks(page: Path) -> list[Block]:
    """All blocks of code of a page, in order, without Sphinx's directives."""
    tokens = MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))
    return [
        Block(page, token.map[0] + 1, token.info.strip(), token.content)
        for token in tokens
        if token.type in ("fence", "code_block") and token.map and not token.info.startswith("{")
    ]


def commands(block: Block) -> list[str]:
    """The commands of a block in the language of the shell, each in one line, without comments."""
    lines = block.content.replace("\\\n", " ").splitlines()
    return [line for line in (re.sub(r"(^| )#.*", "", line).strip() for line in lines) if line]


def commands_in_text(page: Path) -> list[str]:
    """The commands of deepbdc that a page names in its sentences and tables."""
    tokens = MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))
    inline = (child for token in tokens if token.type == "inline" for child in token.children or ())
    words = (" ".join(child.content.split()) for child in inline if child.type == "code_inline")
    return [command for command in words if re.match(r"deepbdc \w", command)]


def check_command(command: str) -> None:
    """Raise an error for a command that cannot work: unknown names, options, recipes, targets of make or files."""
    words = shlex.split(command.replace("$(which deepbdc)", "deepbdc"))
    if words[0] in ("srun", "torchrun"):
        words = words[words.index("deepbdc") :]
    match words[0]:
        case "deepbdc":
            app.parse_args(words[1:])
            if words[1:2] in (["train"], ["compare"]):
                _check_recipes(words[2:])
        case "make":
            targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert words[1] in targets, command
        case "pip":
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
            named = {name for word in words for name in re.findall(r"(?<=\.\[)[\w,]+", word)}
            assert named <= set(extras["optional-dependencies"]), command
        case "python":
            assert words[1] == "-m" or (ROOT / words[1]).is_file(), command
        case other:
            assert other in PLAIN, f"no test knows how to check {command!r}"


def _check_recipes(words: list[str]) -> None:
    """Load the recipes among the words of a command with the values that it changes."""
    changes = [word for word in words if "=" in word and not word.startswith("-")]
    benchmarks = {name.partition("/")[0] for name in list_recipes()}
    for word in words:
        if "=" not in word and word.count("/") == 1 and word.partition("/")[0] in benchmarks:
            load_recipe(word, changes)
