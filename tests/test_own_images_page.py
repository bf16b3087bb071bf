"""Runs every command and every block of Python in docs/own-images.md, in order and unchanged."""

import json
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepbdc import FewShotClassifier
from deepbdc.cli import main
from tests.drawings import save

PAGE = Path(__file__).parent.parent / "docs" / "own-images.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
INSTALLATION = ("make install", ". .venv/bin/activate")
DRAWN_AS = {"kingfisher": "circle", "heron": "stripes", "robin": "triangle"}


def put_pictures(folder: Path) -> None:
    """Fill the folders with pictures, as a person does after making them."""
    for name, kind in DRAWN_AS.items():
        for number in range(4):
            save(folder / "examples" / name / f"{number}.jpg", kind, number)
    for number, kind in enumerate([*DRAWN_AS.values()] * 2, start=1):
        save(folder / "photos" / f"{number}.jpg", kind, 10 + number)
    save(folder / "photos" / "teapot.jpg", "noise", 0)


def answer_to(curl: str, port: int) -> Any:
    """The JSON that a service answers to a command of curl."""
    words = shlex.split(curl)
    file, header = words[words.index("--data-binary") + 1], words[words.index("-H") + 1]
    address = words[-1].replace(":8000/", f":{port}/")
    request = urllib.request.Request(address, Path(file.removeprefix("@")).read_bytes(), dict([header.split(": ")]))
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def run_server(command: list[str], expected: bytes, send: str | None = None) -> None:
    """Start the web page or service, check that it answers, also to a command of curl, and stop it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--no-open", "--no-keep"] if "app" in command else []
    program = [sys.executable, "-m", "deepbdc", *command[1:], "--port", str(port), *options]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
                    assert expected in answer.read()
                break
            except OSError:
                assert process.poll() is None, process.communicate()[1]
                time.sleep(0.1)
        else:
            raise AssertionError("the server did not answer within a minute")
        if send is not None:
            (found,) = answer_to(send, port)["answers"]
            assert found["label"] == "kingfisher"
    finally:
        process.terminate()
        process.wait(timeout=30)


def run_watch(command: list[str], folder: Path) -> None:
    """Start watching, let a picture arrive, and press Ctrl-C when it is sorted."""
    (folder / "inbox").mkdir()
    process = subprocess.Popen([sys.executable, "-m", "deepbdc", *command[1:]], stdout=subprocess.DEVNULL)
    try:
        picture = save(folder / "inbox" / "arrived.jpg", "circle", 30)
        for _ in range(1200):
            if not picture.exists():
                break
            assert process.poll() is None
            time.sleep(0.1)
        assert (folder / "sorted" / "kingfisher" / "arrived.jpg").exists()
    finally:
        process.terminate()
        process.wait(timeout=60)
    (folder / "sorted" / "kingfisher" / "arrived.jpg").unlink()


def run_command(line: str, folder: Path) -> None:
    command = shlex.split(line)
    if command[0] == "mkdir":
        subprocess.run(command, check=True)
        put_pictures(folder)
    elif command[:2] == ["deepbdc", "app"]:
        run_server(command, b"<html")
    elif command[:2] == ["deepbdc", "serve"]:
        (curl,) = (line for language, content in BLOCKS for line in content.splitlines() if line.startswith("curl "))
        run_server(command, b"kingfisher", send=curl)
    elif command[0] == "curl":
        pass  # was sent while the service ran
    elif command[:2] == ["deepbdc", "watch"]:
        run_watch(command, folder)
    else:
        assert command[0] == "deepbdc", f"the test does not know how to run {line!r}"
        main(command[1:])


def test_all_commands_and_code_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    printed = {}
    for language, content in BLOCKS:
        if language == "python":
            exec(compile(content, PAGE.name, "exec"), names)
        for line in content.splitlines() if language == "sh" else ():
            if line not in INSTALLATION:
                run_command(line, tmp_path)
                printed[line] = capsys.readouterr().out

    # Check what the document promises.
    places = [place for place in (tmp_path / "sorted").iterdir() if place.is_dir()]
    folders = {place.name: {file.name for file in place.iterdir()} for place in places}
    assert folders == {
        "kingfisher": {"1.jpg", "4.jpg"},
        "heron": {"2.jpg", "5.jpg"},
        "robin": {"3.jpg", "6.jpg"},
        "none of these": {"teapot.jpg"},
    }
    assert not list((tmp_path / "photos").iterdir())
    assert "7 pictures moved back." in printed["deepbdc undo sorted"]
    assert (tmp_path / "why.png").stat().st_size > 10_000
    assert "Estimated accuracy: 100 %" in printed["deepbdc fit examples -o birds.safetensors"]
    assert any("Accuracy: 100.0 % (7 of 7 pictures)" in text for text in printed.values())
    own = FewShotClassifier.load(tmp_path / "birds.safetensors")
    assert list(own.classes_) == names["classes"]
    np.testing.assert_allclose(names["probabilities"], own.predict_proba(names["pictures"]), atol=1e-3)
    assert names["rejected"].tolist() == [answer.rejected for answer in own.classify(names["pictures"])]


def test_the_page_shows_the_installation_and_every_command() -> None:
    commands = [line for language, content in BLOCKS if language == "sh" for line in content.splitlines()]
    assert all(line in commands for line in INSTALLATION)
    used = {line.split()[1] for line in commands if line.startswith("deepbdc ")}
    assert used == {"check", "fit", "classify", "undo", "suggest", "watch", "serve", "explain", "app"}
    assert {language for language, _ in BLOCKS} == {"sh", "python"}
