import re

import pytest

from deepbdc.report.grid import Grid, escaped, latex, markdown

MADE = Grid(
    ["", "paper", "ours"], [["A heading & more"], ["a_b", "*62.11 ± 0.44*", "63.0 | 64 %"]], ["See {this} ~/x."]
)


def test_markdown_has_the_same_number_of_cells_in_each_line() -> None:
    lines = markdown("Table 3", MADE).splitlines()
    assert lines[0] == "# Table 3"
    assert lines[4:6] == ["| **A heading & more** |  |  |", "| a_b | *62.11 ± 0.44* | 63.0 \\| 64 % |"]
    assert lines[-1] == "- See {this} ~/x."


def test_latex_is_balanced_and_escaped() -> None:
    text = latex("Table 3: 5 % of it", MADE)
    plain = re.sub(r"\\[{}&%$#_\\]", "", text)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    assert re.findall(r"\\begin{(.*?)}", text) == ["table*", "tabular"]
    assert re.findall(r"\\end{(.*?)}", text) == ["tabular", "table*"]
    assert r"\begin{tabular}{lrr}" in text
    assert r"\multicolumn{3}{l}{\textbf{A heading \& more}} \\" in text
    assert r"a\_b & \textit{62.11 $\pm$ 0.44} & 63.0 $|$ 64 \% \\" in text
    assert r"\caption{Table 3: 5 \% of it. See \{this\} \textasciitilde{}/x.}" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("**256** (paper: *640*)", r"\textbf{256} (paper: \textit{640})"),
        ("+1.20 ± 0.50 * (± 0.80) *", r"+1.20 $\pm$ 0.50 * ($\pm$ 0.80) *"),  # stars, not italics
        (r"a\b^c", r"a\textbackslash{}b\textasciicircum{}c"),
    ],
)
def test_marks(text: str, expected: str) -> None:
    assert escaped(text) == expected
