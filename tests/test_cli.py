import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import deepbdc
from deepbdc.cli import main
from deepbdc.data import benchmarks
from tests.data.official import picture, small, tree, write_folder, write_tar

BIRDS = {"train": ("001.A",), "val": ("002.B",), "test": ("004.D",)}


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
        (["paper", "relations", "--points", "3"], "10 to 5000 and --seed at least 0, got 3"),
        (["paper", "relations", "--output", "x.xyz"], "must end in .png"),
        (["papers"], "choose from 'train', 'evaluate', 'compare', 'paper', 'data'"),
        (["evaluate", "conv5"], "did you mean 'conv4'"),
        (["evaluate", "conv4", "--data", "nowhere"], "neither a data set, nor a folder"),
        (["evaluate", "conv4", "--data", "cars", "--root", "no/such/folder"], "deepbdc data prepare cars"),
        (["evaluate", "pixels", "--classifier", "knn"], "no classifier is called 'knn'"),
        ([], "paper"),
        (["data"], "prepare"),
        (["data", "prepare", "cubb", "--source", "x"], "did you mean 'cub'"),
        (["data", "prepare", "cub"], "--source is missing. Needed: CUB_200_2011.tgz"),
        (["data", "prepare", "cub", "--source", "no/such/file"], "there is no file or folder no/such/file"),
        (["data", "prepare", "glyphs", "--source", "x"], "made on first use"),
        (["data", "prepare", "miniimagenet->cub", "--source", "x"], "ask for miniimagenet or cub"),
        (["data", "check", "no/such/folder"], "there is no file or folder no/such/folder"),
        (["data", "check", "cars"], "deepbdc data prepare cars"),
    ],
)
def test_mistakes(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DEEPBDC_DATA", str(tmp_path))
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code not in (0, None)
    assert message in capsys.readouterr().err + str(caught.value.code)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert deepbdc.__version__ in capsys.readouterr().out


def birds() -> dict[str, bytes]:
    labels = [(split, label) for split, names in BIRDS.items() for label in names]
    return {
        f"{split}/{label}/{number}.jpg": picture(10 * position + number)
        for position, (split, label) in enumerate(labels)
        for number in range(2)
    }


def test_data_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "fc100.npz").touch()
    main(["data", "list", "--root", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    rows = {words[0]: words[1:] for line in lines if (words := line.split()) and words[-1] in ("yes", "no")}
    assert list(rows) == benchmarks.names()
    assert rows["cub"] == ["100", "(5,885)", "50", "(2,950)", "50", "(2,953)", "no"]
    assert rows["miniimagenet->cars"] == ["100", "(60,000)", "17", "(1,408)", "49", "(4,033)", "no"]
    assert [name for name, cells in rows.items() if cells[-1] == "yes"] == ["fc100", "glyphs"]
    text = " ".join(" ".join(lines).split())
    for name in benchmarks.names()[:8]:
        assert benchmarks.get(name).licence in text
        assert benchmarks.get(name).home in text
        assert benchmarks.get(name).archives[0][0].name in text


@pytest.mark.parametrize("arguments", [["--help"], ["data", "--help"], ["data", "list"]])
def test_without_torch(arguments: list[str]) -> None:
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['torchvision'] = None\n"
        f"from deepbdc.cli import main; main({arguments})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "data" in done.stdout


def test_data_prepare_and_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = small("cub", BIRDS, 2)
    official = benchmarks.get
    monkeypatch.setattr(benchmarks, "get", lambda name: facts if name == "cub" else official(name))
    monkeypatch.setenv("DEEPBDC_DATA", str(tmp_path / "root"))
    inner = {f"CUB_200_2011/images/{name.partition('/')[2]}": content for name, content in birds().items()}
    main(["data", "prepare", "cub", "--source", str(write_tar(tmp_path / "CUB_200_2011.tgz", inner))])
    assert "cub is complete" in capsys.readouterr().out
    assert tree(tmp_path / "root" / "cub") == birds()
    main(["data", "check", "cub"])
    assert "Nothing is wrong" in capsys.readouterr().out
    (tmp_path / "root" / "cub" / "val" / "002.B" / "1.jpg").write_bytes(b"[noise]")
    with pytest.raises(SystemExit) as caught:
        main(["data", "check", str(tmp_path / "root" / "cub")])
    assert caught.value.code == 1
    printed = capsys.readouterr().out
    assert "val/002.B/1.jpg" in printed
    assert "What to do" in printed


def test_data_check_cuts_long_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {f"train/a/{number}.jpg": b"%d" % number for number in range(14)}
    with pytest.raises(SystemExit):
        main(["data", "check", str(write_folder(tmp_path / "x", files))])
    printed = capsys.readouterr().out
    assert "14 files are no readable images" in printed
    assert "... and 4 more" in printed


def test_a_hostile_archive_is_answered_in_words(tmp_path: Path) -> None:
    source = write_tar(tmp_path / "birds.tgz", {"../x": b"evil"})
    with pytest.raises(SystemExit, match=r"deepbdc data prepare: the archive holds a member '\.\./x'"):
        main(["data", "prepare", "cub", "--source", str(source), "--root", str(tmp_path / "root")])
    assert not (tmp_path.parent / "x").exists()


def arrays(path: Path) -> Path:
    generator = np.random.default_rng(0)
    means = generator.uniform(0, 255, (6, 1, 8, 8, 3))
    images = np.clip(means + generator.normal(0, 80, (6, 12, 8, 8, 3)), 0, 255).astype(np.uint8).reshape(-1, 8, 8, 3)
    labels, names = np.repeat(np.arange(6), 12), np.array(list("abcdef"))
    np.savez(path, images=images, labels=labels, class_names=names, class_split=np.array(["test"] * 6))
    return path


def test_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, output, cache = arrays(tmp_path / "x.npz"), tmp_path / "out.json", tmp_path / "cache"
    options = ["--data", str(data), "--shot", "1", "--shot=5", "--query", "4", "--episodes", "30"]
    options += ["--output", str(output)]
    main(["evaluate", "pixels", "--size", "8", *options])
    printed = capsys.readouterr().out
    content = json.loads(output.read_text())
    assert [result["shot"] for result in content["results"]] == [1, 5]
    for result in content["results"]:
        assert result["mean"] > 40
        assert f"{result['mean']:.2f} ± {result['ci95']:.2f}" in printed
    main(["evaluate", "conv4", "--width", "0.1", "--size", "16", "--pool", "average", "--cache", str(cache), *options])
    assert "conv4 (untrained), average" in capsys.readouterr().out
    assert len(list(cache.glob("*.npy"))) == 1


def test_evaluate_asks_for_no_more_than_there_is(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="class 'a' has 12 images, but 1 for support"):
        main(["evaluate", "pixels", "--data", str(arrays(tmp_path / "x.npz")), "--shot", "1"])
