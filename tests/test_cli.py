import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import deepbdc
from deepbdc.cli import app, main
from deepbdc.commands.options import EstimatorOptions, ProcessOptions
from deepbdc.data import benchmarks
from deepbdc.data import check as data_checks
from deepbdc.errors import UserError, WrongType
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
        (["papers"], 'Unknown command "papers". Did you mean "paper"?'),
        (["data", "lst"], 'Did you mean "list"?'),
        (["evaluate"], "Parameter MODEL requires an argument"),
        (["evaluate", "conv4", "pixels"], "Too many arguments: pixels."),
        (["evaluate", "conv4", "--clasifier", "svm"], "Unknown option: --clasifier. Did you mean --classifier?"),
        (["evaluate", "conv4", "--split", "tset"], 'Did you mean "test"?'),
        (["evaluate", "conv4", "--shot", "one"], 'Invalid value for --shot: unable to convert "one" into int'),
        (["evaluate", "conv5"], "did you mean 'conv4'"),
        (["evaluate", "conv4", "--data", "nowhere"], "neither a data set, nor a folder"),
        (["evaluate", "conv4", "--data", "cars", "--root", "no/such/folder"], "deepbdc data prepare cars"),
        (["train", "glyphs/protonet", "--reuse", "nowhere"], "--reuse nowhere: there is no such folder here"),
        (["paper", "table3", "--reuse", "nowhere"], "--reuse nowhere: there is no such folder here"),
        (["evaluate", "conv4", "--size", "0"], "--size must be at least 1, got 0"),
        (
            ["compare", "glyphs/protonet", "--device", "gpu"],
            "--device gpu cannot be used on this computer: Expected one",
        ),
        (["evaluate", "pixels", "--classifier", "knn"], "no classifier is called 'knn'"),
        (["evaluate", "runs/nothing"], "there is no run runs/nothing. 'deepbdc train RECIPE' makes one"),
        (["evaluate", "nothing.safetensors"], "there is no model file nothing.safetensors"),
        (["train"], "'deepbdc train --list' shows all"),
        (["train", "glyphs/protonett"], "did you mean 'glyphs/protonet'"),
        (["train", "glyphs/protonet", "pretrain.epoch=2"], "did you mean 'epochs'"),
        (["train", "glyphs/protonet", "epochs"], "not of the form key=value"),
        (["train", "glyphs/protonet", "--data", "no/such/folder"], "no/such/folder does not exist"),
        (["train", "glyphs/protonet", "--resume=maybe"], 'unable to convert "maybe" into bool'),
        (["train", "glyphs/protonet", "--speed", "9"], "deepbdc train: Unknown option: --speed."),
        (["train", "glyphs/protonet", "--run"], "Parameter --run requires an argument"),
        (["compare"], "'deepbdc train --list' shows all"),
        (["compare", "glyphs/protonet", "--output", "x.txt"], "must end in .png"),
        (
            ["compare", "glyphs/protonet", "--baseline", "glyphs/meta"],
            "--baseline must be one of glyphs/protonet, got 'glyphs/meta'",
        ),
        (["compare", "glyphs/protonet", "glyphs/protonet"], "the run runs/glyphs/protonet is given twice"),
        (["compare", "glyphs/protonet", "cub/protonet_1shot", "--runs", "no/runs"], "deepbdc data prepare cub"),
        (["compare", "glyphs/protonet", "--set", "pretrain"], "not of the form key=value"),
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
    main(["--version"])
    assert capsys.readouterr().out == f"deepbdc {deepbdc.__version__}\n"


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
    for name in benchmarks.names()[:9]:
        assert benchmarks.get(name).licence in text
        assert benchmarks.get(name).home in text
        assert benchmarks.get(name).archives[0][0].name in text


@pytest.mark.parametrize("arguments", [["--help"], ["data", "list"], ["train", "--list"]])
def test_without_torch(arguments: list[str]) -> None:
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['torchvision'] = None\n"
        f"from deepbdc.cli import main; main({arguments})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "deepbdc data prepare" in done.stdout or "glyphs/protonet" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["classify", "few.safetensors", "photos"], "Loading the classifier few.safetensors ..."),
        (["classify", "few", "photos", "--device", "cpu"], "Learning from the examples in few ..."),
        (["fit", "few", "-o", "new.safetensors"], "Learning from the examples in few ..."),
        (["explain", "few", "photos/0.jpg"], "Learning from the examples in few ..."),
        (["app"], "Starting the page ..."),
    ],
)
def test_the_first_line_comes_before_torch_is_imported(tmp_path: Path, arguments: list[str], line: str) -> None:
    """Importing torch takes a second or more, in which nobody should wonder whether the program works."""
    for name in ("few/a", "few/b", "photos"):
        (tmp_path / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (8, 8)).save(tmp_path / name / f"{number}.jpg")
    (tmp_path / "few.safetensors").touch()
    program = f"import sys; sys.modules['torch'] = None\nfrom deepbdc.cli import main; main({arguments})"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stderr.splitlines()[0] == line
    assert "import of torch halted" in done.stderr


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


def test_a_hostile_archive_ends_with_a_message(tmp_path: Path) -> None:
    source = write_tar(tmp_path / "birds.tgz", {"../x": b"evil"})
    with pytest.raises(SystemExit, match=r"deepbdc data prepare: the archive holds a member '\.\./x'"):
        main(["data", "prepare", "cub", "--source", str(source), "--root", str(tmp_path / "root")])
    assert not (tmp_path.parent / "x").exists()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train glyphs/pr", ["glyphs/protonet"]),
        ("train --quiet my_", ["my_recipe.yaml", "my_run/"]),
        ("compare glyphs/protonet my_", ["my_recipe.yaml", "my_run/"]),
        ("data check cu", ["cub", "cub_cropped"]),
        ("data prepare my_", []),
        ("evaluate my", ["my_recipe.yaml", "my_run/"]),
    ],
)
def test_completion_knows_names_and_paths(
    line: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_recipe.yaml").touch()
    Path("my_run").mkdir()
    main(["__complete", *line.split()])  # as the completion script of a shell does
    found = [word for word in capsys.readouterr().out.splitlines() if word.startswith(line.split()[-1])]
    assert sorted(found) == expected


def arrays(path: Path, splits: tuple[str, ...] = ("test",)) -> Path:
    """Write six classes of twelve small noisy images in each split."""
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


def test_evaluate_unbalanced_queries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, output = arrays(tmp_path / "x.npz"), tmp_path / "out.json"
    options = ["--data", str(data), "--shot", "1", "--query", "4", "--episodes", "20", "--output", str(output)]
    for more, dirichlet in (
        (["--unbalanced"], 1),
        (["--dirichlet", "2"], 2),
        (["--unbalanced", "--dirichlet=0.5"], 0.5),
    ):
        main(["evaluate", "pixels", "--size", "8", *options, *more])
        assert f"unbalanced (Dirichlet {dirichlet:g})" in " ".join(capsys.readouterr().out.split())
        content = json.loads(output.read_text())
        assert (content["results"][0]["unbalanced"], content["results"][0]["dirichlet"]) == (True, dirichlet)
        assert (content["request"]["unbalanced"], content["request"]["dirichlet"]) == (True, dirichlet)
    with pytest.raises(SystemExit, match="dirichlet must be a positive number"):
        main(["evaluate", "pixels", *options, "--dirichlet", "0"])


def test_evaluate_asks_for_no_more_than_there_is(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="class 'a' has 12 images, but 1 for support"):
        main(["evaluate", "pixels", "--data", str(arrays(tmp_path / "x.npz")), "--shot", "1"])


def paths(*names: str) -> tuple[Path, ...]:
    return tuple(map(Path, names))


@pytest.mark.parametrize(
    ("line", "arguments", "options"),
    [
        ("train r --run x a=1 b=2", ("r", "a=1", "b=2"), {"run": Path("x")}),
        ("train r a=1 --run=x", ("r", "a=1"), {"run": Path("x")}),
        ("train --dry-run r a=1 --devices 2", ("r", "a=1"), {"dry_run": True, "processes": ProcessOptions("2")}),
        (
            "train --dry_run r --num_nodes=2 b=c",
            ("r", "b=c"),
            {"dry_run": True, "processes": ProcessOptions("auto", 2)},
        ),
        ("train r --num-nodes 2 b=c", ("r", "b=c"), {"processes": ProcessOptions("auto", 2)}),
        ("train --resume --quiet r a=1", ("r", "a=1"), {"resume": True, "quiet": True}),
        ("train r --resume=true --list=false", ("r",), {"resume": True, "list": False}),
        ("evaluate --shot 1 m --shot=5 --skip-bad", ("m",), {"shot": [1, 5], "skip_bad": True}),
        ("evaluate m -o x.json", ("m",), {"output": Path("x.json")}),
        ("compare a --set x=1 b --set y=2 --shot 1", ("a", "b"), {"set": ["x=1", "y=2"], "shot": [1]}),
        ("compare a --device cuda x=1 b", ("a", "x=1", "b"), {"device": "cuda"}),
        ("classify e --csv c --C 2 a b", paths("e", "a", "b"), {"csv": Path("c"), "options": EstimatorOptions(C=2.0)}),
        ("classify e -- -a.png", paths("e", "-a.png"), {}),
        ("explain e --neighbours -1 i", paths("e", "i"), {"neighbours": -1}),
        ("fit --batch_size 2 e", paths("e"), {"options": EstimatorOptions(batch_size=2)}),
        ("data prepare --source s cub", ("cub",), {"source": Path("s")}),
    ],
)
def test_arguments_and_options_in_any_order(line: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    _, bound, _ = app.parse_args(line.split())
    assert (bound.args, bound.kwargs) == (arguments, options)


def help_page(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The help of a command in a terminal with 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    main([*command.split(), "--help"])
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "examples"),
    [
        ("classify", 2),
        ("fit", 2),
        ("explain", 2),
        ("app", 3),
        ("train", 2),
        ("evaluate", 4),
        ("compare", 3),
        ("paper", 7),
        ("data list", 0),
        ("data prepare", 1),
        ("data check", 2),
    ],
)
def test_help_shows_each_example_on_a_line_and_explains_each_option(
    command: str, examples: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = help_page(command, monkeypatch, capsys)
    lines = [line.strip() for line in printed.splitlines()]
    starts = [place for place, line in enumerate(lines) if re.match(rf"deepbdc {command}( |$)", line)]
    assert len(starts) == examples
    assert all(lines[place + 1].startswith("deepbdc ") or not lines[place + 1] for place in starts)
    for line in lines:
        assert not re.fullmatch(r"│ (\*  )?(--)?[\w-]+( -\w)?( [A-Z=]+)? *│", line), f"no help text: {line}"


def test_help_shows_defaults_and_groups(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    printed = help_page("evaluate", monkeypatch, capsys)
    assert re.search(r"--num-nodes COUNT +Number of machines. \[default: 1\]", printed)
    assert "[choices: train, val, test]" in printed
    assert "None" not in printed
    assert "False" not in printed
    groups = ["Arguments ", "Options ", "Data ", "Episodes ", "What is made of each image ", "Output "]
    assert re.findall(r"╭─ ([\w ]+)", printed)[:6] == groups


@pytest.mark.parametrize("given", [[], ["data"]])
def test_without_a_command_the_help_is_printed(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(given)
    assert caught.value.code == 2
    without = capsys.readouterr().out
    main([*given, "--help"])
    assert without == capsys.readouterr().out
    assert "Check every image of a data set" in without or "Evaluate a few-shot model" in without


def failing(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``deepbdc data check`` raise an error."""

    def check(*_: object) -> None:
        raise error

    monkeypatch.setattr(data_checks, "check", check)


def test_a_bug_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for bug in (TypeError("unsupported operand"), ValueError("a bug"), KeyError("x"), MemoryError()):
        failing(bug, monkeypatch)
        with pytest.raises(type(bug)) as caught:
            main(["data", "check", str(tmp_path)])
        assert caught.value is bug


@pytest.mark.parametrize("error", [UserError("it is broken"), OSError("it is broken"), WrongType("it is broken")])
def test_an_error_of_the_user_is_one_line(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(error, monkeypatch)
    with pytest.raises(SystemExit) as caught:
        main(["data", "check", str(tmp_path)])
    assert caught.value.code == "deepbdc data check: it is broken"


def test_ctrl_c_has_exit_code_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(KeyboardInterrupt(), monkeypatch)
    with pytest.raises(SystemExit) as caught:
        main(["data", "check", str(tmp_path)])
    assert caught.value.code == 130
    assert capsys.readouterr().err == "deepbdc data check: interrupted. Finished work is kept.\n"


@pytest.mark.parametrize(
    "given", [["--debug", "data", "check"], ["data", "--debug", "check"], ["data", "check", "--debug"]]
)
def test_debug_shows_the_traceback(given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(UserError("it is broken"), monkeypatch)
    with pytest.raises(UserError):
        main([*given, str(tmp_path)])


def test_the_environment_can_ask_for_the_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(UserError("it is broken"), monkeypatch)
    for value, expected in {"1": UserError, "0": SystemExit, "": SystemExit}.items():
        monkeypatch.setenv("DEEPBDC_DEBUG", value)
        with pytest.raises(expected):
            main(["data", "check", str(tmp_path)])


@pytest.mark.parametrize(
    ("shell", "script", "startup"),
    [
        ("bash", ".local/share/bash-completion/completions/deepbdc", ".bashrc"),
        ("zsh", ".zsh/completions/_cyclopts_deepbdc", ".zshrc"),
        ("fish", ".config/fish/completions/deepbdc.fish", None),
    ],
)
def test_completion_is_installed(
    shell: str, script: str, startup: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ZSH", "ZSH_CUSTOM", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    main(["--install-completion", "--shell", shell])
    content = (tmp_path / script).read_text()
    for word in ("evaluate", "prepare", "skip-bad", "batch-size"):
        assert word in content
    if startup:
        assert str((tmp_path / script).parent) in (tmp_path / startup).read_text()


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


def test_a_run_without_an_evaluation_can_be_evaluated_later(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, data = str(tmp_path / "run"), str(trained / "tiny.npz")
    main(["train", str(trained / "protonet.yaml"), "evaluation=null", "--data", data, "--run", run])
    assert "The model was not evaluated on the test classes" in capsys.readouterr().out
    main(["evaluate", run, "--way", "2", "--query", "2", "--episodes", "5"])
    assert "5-shot" in capsys.readouterr().out


def test_train_prints_the_result(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained / "runs" / "protonet"
    again = ["train", str(trained / "protonet.yaml"), "--data", str(trained / "tiny.npz"), "--run", str(run)]
    with pytest.raises(SystemExit, match=r"holds a run already: continue it \(--resume\)"):
        main(again)
    main([*again, "--resume"])  # it is finished: the result is printed again
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
    assert "the run's own" in capsys.readouterr().out
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
    mine = json.loads((tmp_path / "mine.json").read_text())
    assert (mine["looks"], mine["method"], mine["training_seed"]) == (1, "protonet", 1), "a repetition of train's look"
    main(["evaluate", str(run), "--dirichlet", "2", "--shot", "1"])
    assert json.loads((run / "evaluation-tiny-test-unbalanced-2.json").read_text())["looks"] == 2
    assert json.loads((run / "evaluation-tiny-val-svm.json").read_text())["looks"] is None


def test_a_run_has_its_own_network(trained: Path) -> None:
    with pytest.raises(SystemExit, match="has its own network: omit --reduce-to, --size"):
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

    main(["compare", "runs/protonet", *options, "--dirichlet", "2", "--output", "pictures/unbalanced.png"])
    result = json.loads(Path("pictures/unbalanced.json").read_text())["rows"][0]["results"][0]
    assert (result["unbalanced"], result["dirichlet"]) == (True, 2)


def test_compare_with_a_kept_result(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "gallery" / "tiny" / "conv4" / "old.json"
    kept.parent.mkdir(parents=True)
    kept.write_bytes((trained / "runs" / "protonet" / "result.json").read_bytes())
    run, data = str(trained / "runs" / "protonet"), str(trained / "tiny.npz")
    main(["compare", "gallery/tiny/conv4/old", run, "--data", data, "--output", "both.png"])
    assert "gallery/tiny/conv4/old: the result in gallery/tiny/conv4/old.json is kept" in capsys.readouterr().out
    rows = json.loads(Path("both.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["gallery/tiny/conv4/old", run]
    assert [difference["difference"] for difference in rows[1]["differences"]] == [0, 0]
    assert rows[1]["looks"] >= rows[0]["looks"] == 1
    assert json.loads((Path(run) / "looks.jsonl").read_text().splitlines()[-1])["command"] == "compare"
    main(["compare", "tiny/conv4/old", "--output", "alone.png", "--shot", "5"])  # without any data
    (row,) = json.loads(Path("alone.json").read_text())["rows"]
    assert [result["shot"] for result in row["results"]] == [5]
    for options, words in (
        (["--data", data, "--seed", "9"], "is of episodes with seed=3, not 9"),
        (["--data", str(arrays(tmp_path / "other.npz", ("test", "train", "val")))], "is of other images"),
    ):
        with pytest.raises(SystemExit, match=words):
            main(["compare", "gallery/tiny/conv4/old", run, *options])
    with pytest.raises(SystemExit, match="there is no result gallery/tiny/conv4/new"):
        main(["compare", "gallery/tiny/conv4/new"])
    with pytest.raises(SystemExit, match=r"the result gallery/tiny/conv4/old\.json is given twice"):
        main(["compare", "gallery/tiny/conv4/old", "tiny/conv4/old"])


def test_compare_passes_the_device_on(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepbdc.report import comparison

    def compare_runs(*_: object, device: str, **__: object) -> None:
        raise UserError(f"computed on {device}")

    monkeypatch.chdir(trained)
    monkeypatch.setattr(comparison, "compare_runs", compare_runs)
    for options, device in ([], "cpu"), (["--device", "cpu:0"], "cpu:0"):
        with pytest.raises(SystemExit, match=f"computed on {device}"):
            main(["compare", "runs/protonet", "--data", "tiny.npz", *options])


def test_compare_refuses_the_run_of_another_recipe(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    with pytest.raises(SystemExit, match=r"trained with pretrain\.epochs=2, not 5\. Give the folder runs/protonet"):
        main(["compare", "protonet.yaml", "pretrain.epochs=5", "--data", "tiny.npz"])
    arrays(Path("other.npz"), ("test", "train", "val"))
    with pytest.raises(SystemExit, match="trained on other classes than those of other"):
        main(["compare", "protonet.yaml", "--data", "other.npz"])
    Path("empty").mkdir()
    with pytest.raises(SystemExit, match="empty is neither a recipe nor the folder of a run"):
        main(["compare", "empty"])


def test_interrupted_training_is_continued(
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
