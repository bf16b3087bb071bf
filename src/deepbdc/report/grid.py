"""A table of texts, written as Markdown or LaTeX. Texts have the marks of Markdown, such as ``*italics*``."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Grid:
    """The texts of a table. A line with one text only is a heading above the lines that follow."""

    header: list[str]
    lines: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What to read with the table, one sentence or more each."""


def markdown(title: str, made: Grid) -> str:
    """The table as a Markdown page."""
    width = len(made.header)
    lines = [f"# {title}", "", _bar(made.header), _bar(["---"] * width)]
    lines += [_bar(line if len(line) > 1 else [f"**{line[0]}**", *[""] * (width - 1)]) for line in made.lines]
    return "\n".join([*lines, "", *(f"- {note}" for note in made.notes), ""])


def _bar(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def latex(title: str, made: Grid) -> str:
    """The table as LaTeX, as wide as the page."""
    width = len(made.header)
    lines = [
        "% needs \\usepackage{booktabs,graphicx}",
        "\\begin{table*}",
        "\\centering",
        "\\resizebox{\\textwidth}{!}{%",
        f"\\begin{{tabular}}{{{_alignment(made)}}}",
        "\\toprule",
        _row(made.header),
        "\\midrule",
    ]
    for line in made.lines:
        heading = f"\\multicolumn{{{width}}}{{l}}{{\\textbf{{{escaped(line[0])}}}}} \\\\"
        lines.append(_row(line) if len(line) > 1 else heading)
    caption = " ".join([f"{escaped(title)}.", *(escaped(note) for note in made.notes)])
    lines += ["\\bottomrule", "\\end{tabular}}", f"\\caption{{{caption}}}", "\\end{table*}", ""]
    return "\n".join(lines)


def _alignment(made: Grid) -> str:
    """``r`` for columns in which a text begins with a number, ``l`` for those of words."""
    full = [line for line in made.lines if len(line) > 1]
    numbers = [any(re.match(r"\**[-+−]?\d", line[place]) for line in full) for place in range(len(made.header))]
    return "".join("r" if place and numeric else "l" for place, numeric in enumerate(numbers))


def _row(cells: Sequence[str]) -> str:
    return " & ".join(escaped(cell) for cell in cells) + " \\\\"


_CHARACTERS = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "σ": "$\\sigma$",
    "±": "$\\pm$",
    "×": "$\\times$",
    "−": "$-$",
    "–": "--",
    "†": "$\\dagger$",
    "‡": "$\\ddagger$",
    "Δ": "$\\Delta$",
}


def escaped(text: str) -> str:
    r"""Text for LaTeX; the marks of Markdown become commands.

    >>> print(escaped("*62.11 ± 0.44* `runs/a_b` **256**"))
    \textit{62.11 $\pm$ 0.44} \texttt{runs/a\_b} \textbf{256}
    """
    text = "".join(_CHARACTERS.get(character, character) for character in text)
    text = re.sub(r"`([^`]+)`", r"\\texttt{\1}", text)
    text = re.sub(r"\*\*([^* ][^*]*)\*\*", r"\\textbf{\1}", text)
    return re.sub(r"\*([^* ][^*]*)\*", r"\\textit{\1}", text)
