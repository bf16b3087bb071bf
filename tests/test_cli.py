from pathlib import Path

import pytest

import deepbdc
from deepbdc.cli import main


def test_paper_relations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["paper", "relations", "--output", str(tmp_path / "s4.png"), "--points", "60"])
    printed = capsys.readouterr().out
    assert "Butterfly" in printed
    assert "BDCorr" in printed
    assert (tmp_path / "s4.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["paper", "relatoins"], "relations"),
        (["paper", "relations", "--points", "3"], "at least 10, got 3"),
        (["papers"], "paper"),
        ([], "paper"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code not in (0, None)
    assert message in capsys.readouterr().err + str(caught.value.code)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert deepbdc.__version__ in capsys.readouterr().out
