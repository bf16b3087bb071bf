"""How long a person waits for `deepbdc classify` and `FewShotClassifier`, beside onnxruntime on the same network.

    python benchmarks/own_images_speed.py

The report is printed and written to benchmarks/results/own_images_speed.txt. It takes about two minutes on two cores
that do nothing else; other programs make the seconds from a cold start longer.
"""

import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from deepbdc import FewShotClassifier
from deepbdc._optional import require
from deepbdc.data.transforms import central_part
from deepbdc.own_images.engines import VARIABLE
from measure import verdict

RESULTS = Path(__file__).parent / "results" / "own_images_speed.txt"
LINE_SECONDS, ANSWER_SECONDS, TIMES_ONNXRUNTIME = 0.5, 3.0, 1.3  # what is to be reached
PICTURES, CLASSES, EXAMPLES, SIDE = 300, 5, 5, 260  # the side of what the default network is given
STARTS, ROUNDS = 5, 5
PROGRAM = [sys.executable, "-c", "from deepbdc.cli import main; main()"]


def draw(label: int, number: int, size: tuple[int, int]) -> Image.Image:
    """A photo-like picture: coarse colours of its class, and finer ones of its own."""
    kind, own = np.random.default_rng(label), np.random.default_rng((label, number))
    coarse = kind.integers(0, 256, (4, 5, 3)) + own.integers(-60, 60, (4, 5, 3))
    picture = Image.fromarray(np.clip(coarse, 0, 255).astype(np.uint8)).resize(size, Image.Resampling.BICUBIC)
    fine = Image.fromarray(own.integers(0, 256, (48, 64, 3), dtype=np.uint8)).resize(size)
    return Image.blend(picture, fine, 0.3)


def make_files(folder: Path) -> tuple[Path, list[Path]]:
    """The examples, and pictures of 640×480 pixels as JPEG files."""
    for label in range(CLASSES):
        (folder / "examples" / f"class {label}").mkdir(parents=True)
        for number in range(EXAMPLES):
            draw(label, number, (640, 480)).save(folder / "examples" / f"class {label}" / f"{number}.jpg", quality=90)
    (folder / "photos").mkdir()
    files = [folder / "photos" / f"{number}.jpg" for number in range(PICTURES)]
    for number, file in enumerate(files):
        draw(number % CLASSES, EXAMPLES + number, (640, 480)).save(file, quality=90)
    return folder / "examples", files


def cold(arguments: Sequence[str], stop_after_line: bool = False) -> tuple[float, float, float]:
    """Seconds from the start of a new process to its first line and to its end, and its seconds of CPU time."""
    start, used = time.perf_counter(), _cpu_of_children()
    process = subprocess.Popen([*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    first = process.stdout.readline()
    line = time.perf_counter() - start
    if stop_after_line:
        process.terminate()
    rest = process.communicate()[0]
    end = time.perf_counter() - start
    if not first or (process.returncode and not stop_after_line):
        raise SystemExit(f"deepbdc {' '.join(arguments)} failed:\n{first}{rest}")
    return line, end, _cpu_of_children() - used


def cold_starts(saved: Path, picture: Path, examples: Path, folder: Path) -> list[str]:
    """The first line of the commands, and the whole time of one answer: medians over new processes."""
    commands = {
        "classify": ["classify", str(saved), str(picture)],
        "fit": ["fit", str(examples), "-o", str(folder / "again.safetensors"), "--force"],
        "app": ["app", "--port", "0"],
    }
    cold(commands["classify"])  # puts the files of torch into the memory of the operating system
    lines = ["Seconds from the start of the command (a new process each time, median of five; files are in memory):"]
    for name, arguments in commands.items():
        runs = [cold(arguments, stop_after_line=name != "classify") for _ in range(STARTS)]
        first, whole, used = np.median(np.array(runs), axis=0)
        lines.append(
            f"  deepbdc {name + ':':10}{first:5.2f} to the first line (limit {LINE_SECONDS:g}: "
            f"{verdict(first < LINE_SECONDS)})"
        )
        if name == "classify":
            lines.append(
                f"  {'':18}{whole:5.2f} to the end, one picture and a saved classifier (limit {ANSWER_SECONDS:g}: "
                f"{verdict(whole < ANSWER_SECONDS)}); {used:.2f} s of CPU time"
            )
    torch_alone = np.median([_import_torch() for _ in range(3)], axis=0)
    lines.append(
        f"  {'':18}{torch_alone[0]:5.2f} of it take Python and 'import torch' alone; {torch_alone[1]:.2f} s of CPU time"
    )
    return lines


def _import_torch() -> tuple[float, float]:
    """Seconds, and seconds of CPU time."""
    start, used = time.perf_counter(), _cpu_of_children()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - start, _cpu_of_children() - used


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Onnx:
    """The limit: onnxruntime with its own settings, on the exported network with its classifier."""

    def __init__(self, path: Path, threads: int) -> None:
        onnxruntime: Any = require("onnxruntime", extra="onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.threads = threads

    def arrays(self, batches: Sequence[Any]) -> Any:
        """Probabilities of pictures that are in memory as the model takes them, in batches."""
        return np.concatenate([self.session.run(None, {"images": batch})[0] for batch in batches])

    def files(self, files: Sequence[Path]) -> Any:
        """Probabilities of files, which threads decode while the network works."""
        with ThreadPoolExecutor(self.threads) as pool:
            decoded = pool.map(prepare, files)
            batches = (np.stack(batch) for batch in zip(*[decoded] * 4, strict=True))
            return np.concatenate([self.session.run(None, {"images": batch})[0] for batch in batches])


def prepare(file: Path) -> Any:
    """What a person would write: decode, resize the shorter side, crop the middle, colours from 0 to 1."""
    with Image.open(file) as picture:
        picture.draft("RGB", (2 * SIDE, 2 * SIDE))
        width, height = picture.size
        scale = SIDE / min(width, height)
        resized = picture.convert("RGB").resize((int(width * scale), int(height * scale)), Image.Resampling.BICUBIC)
    return as_input(central_part(resized, SIDE))


def as_input(picture: Image.Image) -> Any:
    return np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1).astype(np.float32) / 255)


def compare(title: str, sides: dict[str, Callable[[], Any]], count: int) -> list[str]:
    """Time the sides in turn, round by round. The last side is the limit; the ratio is the median over the rounds."""
    answers = {name: run() for name, run in sides.items()}  # also the warm-up
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, run in sides.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    names = list(sides)
    lines = [title]
    for name in names:
        taken = float(np.median(seconds[name]))
        same = float(np.abs(answers[name] - answers[names[-1]]).max())
        ratio = float(np.median(np.array(seconds[name]) / np.array(seconds[names[-1]])))
        reached = f" (limit {TIMES_ONNXRUNTIME:g}: {verdict(ratio <= TIMES_ONNXRUNTIME)})" if name == names[0] else ""
        lines.append(
            f"  {name:32}{1000 * taken / count:6.1f} ms each, {count / taken:4.0f} per second, "
            f"{ratio:4.2f} times onnxruntime{reached}; answers differ by up to {same:.0e}"
        )
    return lines


def with_engine(engine: str, run: Callable[[], Any]) -> Callable[[], Any]:
    def chosen() -> Any:
        os.environ[VARIABLE] = engine
        return run()

    return chosen


def speeds(classifier: FewShotClassifier, files: Sequence[Path], folder: Path) -> list[str]:
    """Pictures per second, from memory and from files, beside onnxruntime in the same run."""
    classifier.to_onnx(folder / "model.onnx")
    onnx = Onnx(folder / "model.onnx", torch.get_num_threads())
    few = 96
    pictures = [draw(number % CLASSES, 1000 + number, (SIDE, SIDE)) for number in range(few)]
    inputs = [np.stack([as_input(picture) for picture in pictures[i : i + 8]]) for i in range(0, few, 8)]
    from_memory = with_engine("auto", lambda: classifier.predict_proba(pictures))
    from_files = with_engine("auto", lambda: classifier.predict_proba(files))
    first = {
        "FewShotClassifier": from_memory,
        "the same, DEEPBDC_ENGINE=torch": with_engine("torch", lambda: classifier.predict_proba(pictures)),
        "the same, DEEPBDC_ENGINE=plain": with_engine("plain", lambda: classifier.predict_proba(pictures)),
        "onnxruntime": lambda: onnx.arrays(inputs),
    }
    second = {"FewShotClassifier": from_files, "onnxruntime and Pillow": lambda: onnx.files(files)}
    return [
        *compare(f"{few} pictures of {SIDE} pixels in memory, through network and classifier:", first, few),
        "",
        *compare(f"A folder of {len(files)} JPEG files of 640×480 pixels, decoded and classified:", second, len(files)),
    ]


def main() -> None:
    threads = torch.get_num_threads()
    lines = [f"{platform.machine()}, {threads} threads, torch {torch.__version__}, {os.cpu_count()} cores", ""]
    print(lines[0], flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        examples, files = make_files(folder)
        classifier = FewShotClassifier().fit(examples)
        classifier.save(folder / "saved.safetensors")
        for part in (
            partial(cold_starts, folder / "saved.safetensors", files[0], examples, folder),
            partial(speeds, classifier, files, folder),
        ):
            new = [*part(), ""]
            print("\n".join(new), flush=True)
            lines += new
    RESULTS.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
