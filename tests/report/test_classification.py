import csv
from pathlib import Path

from deepbdc.report.classification import NONE_OF_THESE, ClassifiedPicture, Tally, write_csv

CLASSES = ("what?", "other")


def result(file: str, label: str) -> ClassifiedPicture:
    return ClassifiedPicture(Path(file), label, 0.9, probabilities=(0.9, 0.1))


def test_truth_recognises_the_folder_names_that_sorting_uses() -> None:
    tally = Tally(CLASSES, reject=True)
    for file, label in (
        ("sorted/what_/1.png", "what?"),
        ("what?/2.png", "other"),
        ("nowhere/3.png", "other"),
        (f"{NONE_OF_THESE}/4.png", NONE_OF_THESE),
    ):
        tally.add(result(file, label))
    assert tally.truth == {("what?", "what?"): 1, ("what?", "other"): 1, (NONE_OF_THESE, NONE_OF_THESE): 1}


def test_csv_cells_are_never_formulas(tmp_path: Path) -> None:
    with write_csv(tmp_path / "a.csv", CLASSES) as add:
        add(result("=1+1.png", "-other"))
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["file"], row["label"], row["probability"]) == ("'=1+1.png", "'-other", "0.9")
