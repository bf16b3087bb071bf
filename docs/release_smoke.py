"""The second part of `make release-check`: every command and every extra, once, in an environment with the package."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer

from PIL import Image

COLOURS = {"blue": (40, 40, 200), "green": (30, 170, 40), "red": (200, 30, 30)}
SHORT = ("pretrain.epochs=1", "pretrain.warmup=0", "evaluation.episodes=20")
"""Values that make the training of a recipe a matter of seconds."""

NAMES = """
import deepbdc, importlib.metadata
for name in deepbdc.__all__: getattr(deepbdc, name)
assert "site-packages" in deepbdc.__file__, deepbdc.__file__
assert importlib.metadata.version("deepbdc") == deepbdc.__version__
from deepbdc.cli import app
print(*(name for name in app if not name.startswith("-")))
"""
HEIC = """
import pillow_heif, PIL.Image
pillow_heif.from_pillow(PIL.Image.open("photos/red.png")).save("photos/phone.heic")
"""
ONNX = """
import numpy, onnxruntime
session = onnxruntime.InferenceSession("colours.onnx")
size = session.get_inputs()[0].shape[-1]
red = numpy.zeros((1, 3, size, size), numpy.float32)
red[:, 0] = 0.8
probabilities, rejected = session.run(None, {"images": red})
assert probabilities.argmax() == 2, probabilities
"""
RAY = """
from deepbdc.batch import classify_files, finished
from pathlib import Path
assert classify_files("colours.safetensors", ["photos/red.png", "photos/blue.png"], "answers", workers=1) == 2
assert len(finished(Path("answers"))) == 2
"""


def run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command, and return what it printed; stop with that if it fails."""
    start = time.monotonic()
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    shown = " ".join([Path(command[0]).name, *command[1:]]).strip().replace("\n", "; ")
    print(f"{time.monotonic() - start:6.1f} s  {shown[:100]}", flush=True)
    if done.returncode:
        sys.exit(f"failed: {shown}\n{done.stdout}\n{done.stderr}")
    return done.stdout


@dataclass
class Installed:
    """An environment with the wheel, and a folder to work in that knows nothing of the source tree."""

    python: Path
    folder: Path
    used: set[str] = field(default_factory=set)
    """The commands that were run."""

    @property
    def variables(self) -> dict[str, str]:
        """Those of the system, without any that lead to other packages, data or settings."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DEEPBDC", "XDG"))}
        return {**kept, "HOME": str(self.folder / "home")}

    def script(self, code: str) -> str:
        """Run Python code."""
        return run(str(self.python), "-c", code, cwd=self.folder, env=self.variables)

    def deepbdc(self, *arguments: str) -> str:
        """Run a command of the package."""
        self.used.add(arguments[0])
        return run(str(self.python.with_name("deepbdc")), *arguments, cwd=self.folder, env=self.variables)

    def serve(self, *arguments: str, answered: Callable[[str], bool]) -> None:
        """Start a command that runs until Ctrl-C, wait until it has answered, and stop it.

        Args:
            arguments: The command.
            answered: Given the first printed line with an address or "Watching", says whether the answer is right.
        """
        self.used.add(arguments[0])
        process = subprocess.Popen(
            [str(self.python.with_name("deepbdc")), *arguments],
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # scripts in the background ignore Ctrl-C
        )
        watchdog = Timer(600, process.kill)
        watchdog.start()
        printed: list[str] = []
        try:
            for line in process.stdout or ():
                printed.append(line)
                if "http://" in line or "Watching" in line:
                    break
            right = process.poll() is None and answered(printed[-1])
            process.send_signal(signal.SIGINT)
            printed.append(process.communicate()[0])
        finally:
            watchdog.cancel()
            process.kill()
        shown = f"deepbdc {' '.join(arguments)}"
        if not right or process.returncode:
            sys.exit(f"failed: {shown}\n{''.join(printed)}")
        print(f"          {shown}: started, answered, stopped", flush=True)


def draw_pictures(folder: Path) -> None:
    """Examples of three colours, photos to classify, and an empty folder for photos that arrive later."""
    for name, colour in COLOURS.items():
        (folder / "examples" / name).mkdir(parents=True)
        for number, shade in enumerate((0, 15, 30)):
            picture = Image.new("RGB", (64, 48), tuple(part + shade for part in colour))
            picture.save(folder / "examples" / name / f"{number}.png")
    for name in ("photos", "inbox"):
        (folder / name).mkdir()
    for name in ("red", "blue"):
        Image.new("RGB", (80, 60), COLOURS[name]).save(folder / "photos" / f"{name}.png")


def check_own_pictures(installed: Installed) -> None:
    """Every command for own pictures, and the extras heic, lite and onnx."""
    deepbdc, folder = installed.deepbdc, installed.folder
    installed.script(HEIC)
    assert "red" in deepbdc("classify", "examples", "photos", "--csv", "answers.csv")
    assert "phone.heic" in (folder / "answers.csv").read_text()
    deepbdc("classify", "examples", "photos", "--backbone", "efficientnet_lite1")
    deepbdc("fit", "examples", "-o", "colours.safetensors", "--onnx", "colours.onnx")
    installed.script(ONNX)
    deepbdc("explain", "colours.safetensors", "photos/red.png", "-o", "why.png")
    deepbdc("check", "examples")
    deepbdc("suggest", "examples", "photos", "--number", "1")
    deepbdc("classify", "colours.safetensors", "photos", "--move-to", "sorted")
    assert (folder / "sorted" / "red" / "red.png").exists()
    deepbdc("undo", "sorted")
    assert (folder / "photos" / "red.png").exists()


def check_servers(installed: Installed) -> None:
    """The commands that run until Ctrl-C, and the extra app."""
    photo = (installed.folder / "photos" / "red.png").read_bytes()

    def fetch(greeting: str, path: str = "", body: bytes | None = None) -> str:
        address = re.search(r"http://[\d.]+:\d+", greeting)
        assert address, greeting
        request = urllib.request.Request(address[0] + path, body, {"content-type": "image/png"} if body else {})
        return str(urllib.request.urlopen(request, timeout=60).read(), "utf-8")

    def arrives(_: str) -> bool:
        (installed.folder / "inbox" / "new.png").write_bytes(photo)
        sorted_ = installed.folder / "arrived" / "red" / "new.png"
        return any(sorted_.exists() or time.sleep(0.5) for _ in range(120))

    model = "colours.safetensors"
    installed.serve("serve", model, "--port", "0", answered=lambda line: '"red"' in fetch(line, "/predict", photo))
    installed.serve("app", "--port", "0", "--no-open", answered=lambda line: "<html" in fetch(line, "/"))
    installed.serve("watch", model, "inbox", "--every", "0.5", "--move-to", "arrived", answered=arrives)


def check_research(installed: Installed) -> None:
    """Every command for research, with trainings of seconds."""
    deepbdc = installed.deepbdc
    deepbdc("methods")
    deepbdc("methods", "dn4")
    deepbdc("data", "list")
    deepbdc("data", "check", "examples")
    deepbdc("train", "glyphs/protonet", "--dry-run")
    deepbdc("train", "glyphs/meta_deepbdc", *SHORT, "meta.epochs=1", "meta.episodes=5")
    deepbdc("evaluate", "runs/glyphs/meta_deepbdc", "--shot", "1", "--episodes", "20")
    deepbdc("compare", "glyphs/simpleshot", "glyphs/good_embed", "distill=null", *SHORT)
    deepbdc("paper", "relations", "--points", "100", "-o", "relations.png")


def check_everything(installed: Installed) -> None:
    """Run every command, use every extra, and check that none was forgotten."""
    commands = set(installed.script(NAMES).split())
    draw_pictures(installed.folder)
    check_own_pictures(installed)
    check_servers(installed)
    installed.script(RAY)
    check_research(installed)
    assert installed.used == commands, f"not tried: {commands - installed.used}"
