"""Compare the results of the gallery, without their networks: one table, and the order of the paper's Table 3.

    python benchmarks/kept.py [DATA/BACKBONE] [--baseline METHOD] [--output FILE]

Reads gallery/DATA/BACKBONE/METHOD.json, which have the accuracy of every episode. All were evaluated on the same
episodes, so that differences are paired.
"""

import argparse
from pathlib import Path

from rich.console import Console

from deepbdc.gallery import load_result
from deepbdc.report.comparison import ComparisonTable, Row
from deepbdc.report.comparison_output import difference_in_words, table

GALLERY = Path(__file__).parent.parent / "gallery"
ORDER = [  # of the paper's Table 3, from worse to better; CovNet and ADM are not compared with each other
    ("protonet", "covnet"),
    ("protonet", "adm"),
    ("covnet", "deepemd"),
    ("adm", "deepemd"),
    ("deepemd", "meta_deepbdc"),
    ("meta_deepbdc", "stl_deepbdc"),
]


def read(data: str) -> dict[str, Row]:
    """The results of the gallery for a data set and backbone, such as ``cifar_fs/conv4``, by method."""
    found = [load_result(file) for file in sorted((GALLERY / data).glob("*.json"))]
    return {
        kept.name: Row(f"{data}/{kept.name}", kept.method or kept.name, str(kept.path), kept.results) for kept in found
    }


def order(rows: dict[str, Row]) -> list[str]:
    """One line for each step of the paper's order: what it says, and what our episodes say."""
    lines = []
    for worse, better in ORDER:
        if worse not in rows or better not in rows:
            continue
        pairs = zip(rows[better].results, rows[worse].results, strict=True)
        parts = [f"{one.shot}-shot {difference_in_words(one.compare(other))}" for one, other in pairs]
        lines.append(f"{better} minus {worse}:\n  {', '.join(parts)}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", default="cifar_fs/conv4")
    parser.add_argument("--baseline", default="protonet")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    rows = read(given.data)
    first = rows[given.baseline]
    others = sorted((row for row in rows.values() if row is not first), key=lambda row: row.results[-1].mean)
    console = Console(width=80, record=True)
    shots = tuple(result.shot for result in first.results if isinstance(result.shot, int))
    console.print(table(ComparisonTable((first, *others), shots)))
    console.print("\nThe order of the paper's Table 3 (* = the interval excludes 0):")
    for line in order(rows):
        console.print(line, highlight=False)
    if given.output:
        given.output.write_text(console.export_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
