import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import deepbdc
from deepbdc.cli import COMMANDS, _in_order, main
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
        (["evaluate", "runs/nothing"], "there is no run runs/nothing. 'deepbdc train RECIPE' makes one"),
        (["evaluate", "nothing.safetensors"], "there is no model file nothing.safetensors"),
        (["train"], "'deepbdc train --list' shows all"),
        (["train", "glyphs/protonett"], "did you mean 'glyphs/protonet'"),
        (["train", "glyphs/protonet", "pretrain.epoch=2"], "did you mean 'epochs'"),
        (["train", "glyphs/protonet", "epochs"], "not of the form key=value"),
        (["train", "glyphs/protonet", "--data", "no/such/folder"], "no/such/folder does not exist"),
        (["train", "glyphs/protonet", "--resume=maybe"], "ignored explicit argument 'maybe'"),
        (["train", "glyphs/protonet", "--speed", "9"], "--speed"),
        (["compare"], "'deepbdc train --list' shows all"),
        (["compare", "glyphs/protonet", "--output", "x.txt"], "must end in .png"),
        (["compare", "glyphs/protonet", "--baseline", "glyphs/meta"], "--baseline must be one of"),
        (["compare", "glyphs/protonet", "glyphs/protonet"], "stands twice among"),
        (["compare", "glyphs/protonet", "cub/protonet_1shot", "--runs", "no/runs"], "deepbdc data prepare cub"),
        (["compare", "glyphs/protonet", "--set", "pretrain"], "not of the form key=value"),
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


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["data", "--help"], ["data", "list"], ["train", "--help"], ["compare", "--help"], ["train", "--list"]],
)
def test_without_torch(arguments: list[str]) -> None:
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['torchvision'] = None\n"
        f"from deepbdc.cli import main; main({arguments})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "data" in done.stdout or "glyphs/protonet" in done.stdout


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
    assert "14 files are not readable images" in printed
    assert "... and 4 more" in printed


def test_a_hostile_archive_is_answered_in_words(tmp_path: Path) -> None:
    source = write_tar(tmp_path / "birds.tgz", {"../x": b"evil"})
    with pytest.raises(SystemExit, match=r"deepbdc data prepare: the archive holds a member '\.\./x'"):
        main(["data", "prepare", "cub", "--source", str(source), "--root", str(tmp_path / "root")])
    assert not (tmp_path.parent / "x").exists()


def arrays(path: Path, splits: tuple[str, ...] = ("test",)) -> Path:
    """Six noisy classes of a dozen small images in each split."""
    generator = np.random.default_rng(0)
    count = 6 * len(splits)
    means = generator.uniform(0, 255, (count, 1, 8, 8, 3))
    images = np.clip(means + generator.normal(0, 80, (count, 12, 8, 8, 3)), 0, 255).astype(np.uint8)
    labels, names = np.repeat(np.arange(count), 12), np.array(list("abcdefghijklmnopqr"[:count]))
    class_split = np.repeat(np.array(splits), 6)
    np.savez(path, images=images.reshape(-1, 8, 8, 3), labels=labels, class_names=names, class_split=class_split)
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


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("train r --run x a=1 b=2", "train r a=1 b=2 --run x"),
        ("train r a=1 --run=x", "train r a=1 --run=x"),
        ("train --dry-run r a=1 --num-nodes 2", "train r a=1 --dry_run --num_nodes 2"),
        ("train --dry_run r --num_nodes=2 b=c", "train r b=c --dry_run --num_nodes=2"),
        ("train r --resume true --quiet false a=1", "train r a=1 --resume"),
        ("train r --resume=true --list=false", "train r --resume"),
        ("evaluate m --shot 1 --shot=5 --skip-bad", "evaluate m --shot+ 1 --shot+=5 --skip_bad"),
        ("compare a --set x=1 b --set y=2 --shot 1", "compare a b --set+ x=1 --set+ y=2 --shot+ 1"),
        ("train -h", "train -h"),
        ("train r --run", "train r --run"),
        ("data check x --help", "data check x --help"),
        ("nothing --run x y", "nothing --run x y"),
    ],
)
def test_order_and_spelling_of_arguments(given: str, expected: str) -> None:
    assert _in_order(given.split(), COMMANDS) == expected.split()


@pytest.mark.parametrize("command", ["train", "compare", "evaluate"])
def test_help_teaches(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert printed.count(f"    deepbdc {command} ") == 2
    assert "--shot+" not in printed
    assert "_nodes N" not in printed.replace("NUM_NODES", "")


RECIPE = """
method: {method}
data: glyphs
backbone: {{name: conv4, width: 0.1, removed_downsamplings: 2}}
size: 8
workers: 0
augmentation: crop_flip
pretrain: {{epochs: 2, batch_size: 24}}
validation: {{query: 4, episodes: 5}}
evaluation: {{query: 4, episodes: 20, seed: 3}}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, two recipes, and the run of the first."""
    folder = tmp_path_factory.mktemp("trained")
    arrays(folder / "tiny.npz", ("train", "val", "test"))
    for method in ("protonet", "stl_deepbdc"):
        (folder / f"{method}.yaml").write_text(RECIPE.format(method=method))
    main(["train", f"{folder}/protonet.yaml", "--data", f"{folder}/tiny.npz", "--run", f"{folder}/runs/protonet"])
    return folder


def accuracies(path: Path) -> list[list[float]]:
    content = json.loads(path.read_text())
    return [result["accuracies"] for result in content["results"]]


def test_a_run_that_left_the_test_classes_alone_is_evaluated_when_asked(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, data = str(tmp_path / "run"), str(trained / "tiny.npz")
    main(["train", str(trained / "protonet.yaml"), "evaluation=null", "--data", data, "--run", run])
    assert "The test classes were left alone, as the recipe says." in capsys.readouterr().out
    main(["evaluate", run, "--way", "2", "--query", "2", "--episodes", "5"])
    assert "5-shot" in capsys.readouterr().out


def test_train_prints_the_result(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained / "runs" / "protonet"
    again = ["train", str(trained / "protonet.yaml"), "--data", str(trained / "tiny.npz"), "--run", str(run)]
    with pytest.raises(SystemExit, match=r"holds a run already: go on with it \(--resume\)"):
        main(again)
    main([*again, "--resume"])  # it is finished: says what came out
    printed = capsys.readouterr().out
    for result in json.loads((run / "result.json").read_text())["results"]:
        assert f"{result['mean']:.2f} ± {result['ci95']:.2f}" in printed
    assert f"Run: {run}" in printed


def test_dry_run(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--data", str(trained / "tiny.npz")]
    main(["train", str(trained / "protonet.yaml"), "--dry-run", *data, "pretrain.epochs=7", "--run", "no/such/run"])
    printed = capsys.readouterr().out
    assert "epochs: 7" in printed
    assert "Parameters: " in printed
    assert not Path("no").exists()


def test_evaluate_a_run(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained / "runs" / "protonet"
    main(["evaluate", str(run)])
    assert "its own" in capsys.readouterr().out
    assert accuracies(run / "evaluation-tiny-test.json") == accuracies(run / "result.json")
    model = str(run / "model.safetensors")
    main(["evaluate", model, "--classifier", "svm", "--shot", "2", "--split", "val", "--episodes", "9"])
    content = json.loads((run / "evaluation-tiny-val-svm.json").read_text())
    assert [(result["shot"], result["seed"], len(result["accuracies"])) for result in content["results"]] == [(2, 3, 9)]
    assert "SVM" in content["results"][0]["classifier"]
    other = arrays(tmp_path / "other.npz")
    main(["evaluate", str(run / "checkpoints" / "pretrain.safetensors"), "--data", str(other), "--shot", "1"])
    assert (run / "checkpoints" / "evaluation-pretrain-other-test.json").is_file()
    main(["evaluate", str(run), "--output", str(tmp_path / "mine.json"), "--shot", "1"])
    assert len(accuracies(tmp_path / "mine.json")) == 1


def test_a_run_has_a_network_of_its_own(trained: Path) -> None:
    with pytest.raises(SystemExit, match="has a network of its own: leave out --reduce-to, --size"):
        main(["evaluate", str(trained / "runs" / "protonet"), "--size", "8", "--reduce_to", "8"])


def test_evaluate_knows_the_folder_of_runs(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    (trained / "runs" / "some" / "run").mkdir(parents=True)
    with pytest.raises(SystemExit, match="there is no run some/run: did you mean runs/some/run"):
        main(["evaluate", "some/run"])


def test_compare(trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    options = ["--data", "tiny.npz", "--shot", "1", "--shot", "3"]
    main(["compare", "protonet.yaml", "stl_deepbdc.yaml", *options])
    printed = capsys.readouterr().out
    assert "protonet.yaml: the run in runs/protonet is finished" in printed
    assert "stl_deepbdc.yaml: the run in runs/stl_deepbdc will be trained" in printed
    assert Path("runs/comparison.png").stat().st_size > 5_000
    content = json.loads(Path("runs/comparison.json").read_text())
    assert content["baseline"] == "protonet.yaml"
    for row in content["rows"]:
        for result in row["results"]:
            assert f"{result['mean']:.2f} ± {result['ci95']:.2f}" in printed

    picture = "pictures/again.svg"
    main(["compare", "runs/protonet", "stl_deepbdc.yaml", *options, "--baseline=stl_deepbdc.yaml", "--output", picture])
    assert "will be trained" not in capsys.readouterr().out
    assert Path(picture).is_file()
    again = json.loads(Path("pictures/again.json").read_text())
    assert [row["name"] for row in again["rows"]] == ["stl_deepbdc.yaml", "runs/protonet"]
    both = (content["rows"][1]["results"], again["rows"][0]["results"])
    assert [one["accuracies"] for one in both[0]] == [one["accuracies"] for one in both[1]]
    assert again["rows"][1]["differences"][0]["difference"] == -content["rows"][1]["differences"][0]["difference"]


def test_compare_takes_no_run_of_another_recipe(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    with pytest.raises(SystemExit, match=r"trained with pretrain\.epochs=2, not 5\. Give the folder runs/protonet"):
        main(["compare", "protonet.yaml", "pretrain.epochs=5", "--data", "tiny.npz"])
    arrays(Path("other.npz"), ("test", "train", "val"))
    with pytest.raises(SystemExit, match="trained on other classes than those of other"):
        main(["compare", "protonet.yaml", "--data", "other.npz"])
    Path("empty").mkdir()
    with pytest.raises(SystemExit, match="empty is neither a recipe nor the folder of a run"):
        main(["compare", "empty"])


def test_interrupted_training_goes_on(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from deepbdc.training import run

    calls: list[bool] = []

    def interrupted(recipe: object, folder: Path, *, resume: bool, **_: object) -> None:
        calls.append(resume)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "recipe.yaml").write_text(Path("protonet.yaml").read_text())
        raise run.Interrupted("interrupted; go on by the same command with --resume.")

    monkeypatch.chdir(trained)
    monkeypatch.setattr(run, "train", interrupted)
    for command in (["train"], ["compare", "--runs", "new"], ["compare", "--runs", "new"], ["compare", "new/protonet"]):
        given = [] if command[-1].startswith("new/") else ["protonet.yaml"]
        with pytest.raises(SystemExit) as caught:
            main([*command, *given, "--data", "tiny.npz"])
        assert caught.value.code == 130
        assert f"deepbdc {command[0]}: " in capsys.readouterr().err
    assert calls == [False, False, True, True]


def test_training_errors_are_one_sentence(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepbdc.training import run

    def failing(*_: object, **__: object) -> None:
        raise run.TrainingError("the loss is not a number")

    monkeypatch.setattr(run, "train", failing)
    with pytest.raises(SystemExit, match="deepbdc train: the loss is not a number"):
        main(["train", str(trained / "protonet.yaml"), "--run", "x"])
