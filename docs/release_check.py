"""Checks that a release could go out: `make release-check`.

    python docs/release_check.py

Builds sdist and wheel, looks into both, installs the wheel with all extras for users into an empty environment outside
of the source tree, and runs every command there.
"""

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXTRAS = "app,heic,lite,onnx,ray"
LARGEST = 5_000_000
SMOKE = """
import deepbdc
from PIL import Image
fitted = deepbdc.FewShotClassifier().fit([Image.new("RGB", (64, 64), c) for c in ("red", "blue")], ["red", "blue"])
assert fitted.predict([Image.new("RGB", (64, 64), (250, 10, 0))]) == ["red"]
fitted.save("colours.safetensors"), fitted.to_onnx("colours.onnx")
for name in deepbdc.__all__: getattr(deepbdc, name)
assert "site-packages" in deepbdc.__file__, deepbdc.__file__
print("deepbdc", deepbdc.__version__)
"""
COMMANDS = ("classify", "fit", "explain", "app", "check", "suggest", "watch", "serve", "undo", "train", "evaluate",
            "compare", "methods", "paper", "data")  # fmt: skip


def run(*command: str, cwd: Path = ROOT) -> str:
    """Run a command; stop with what it printed if it fails."""
    print("  " + " ".join(command)[:120], flush=True)
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"failed: {' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def check_contents(wheel: Path, source: Path) -> None:
    """What must and must not be in the files."""
    names = zipfile.ZipFile(wheel).namelist()
    metadata = next(name for name in names if name.endswith("METADATA"))
    facts = Parser().parsestr(zipfile.ZipFile(wheel).read(metadata).decode())
    wrong = [name for name in names if name.startswith(("tests", "gallery", "zoo", "benchmarks")) or ".npz" in name]
    assert not wrong, f"these do not belong into the wheel: {wrong[:5]}"
    assert "deepbdc/py.typed" in names, "py.typed is missing"
    assert any("licenses/LICENSE" in name for name in names), "the licence is missing"
    assert facts["License-Expression"] == "Apache-2.0", facts["License-Expression"]
    assert facts.get_all("Project-URL"), "there are no URLs"
    assert wheel.stat().st_size < LARGEST, f"the wheel has {wheel.stat().st_size:,} bytes"
    with tarfile.open(source) as archive:
        assert any(name.endswith("/README.md") for name in archive.getnames())


def main() -> None:
    """All checks, in a folder that is deleted afterwards."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"))
        (wheel,), (source,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
        run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(source))
        check_contents(wheel, source)
        run(sys.executable, "-m", "venv", str(folder / "env"))
        python = str(folder / "env" / "bin" / "python")
        # The torch of this environment, so that no other build is chosen.
        torch = run(sys.executable, "-c", "import torch; print(torch.__version__.partition('+')[0])").strip()
        run(python, "-m", "pip", "install", "--quiet", f"torch=={torch}")
        constraints = str(ROOT / "constraints.txt")
        run(python, "-m", "pip", "install", "--quiet", "-c", constraints, f"{wheel}[{EXTRAS}]")
        run(python, "-m", "pip", "check")
        print(run(python, "-c", SMOKE, cwd=folder).strip())
        for command in COMMANDS:
            run(python, "-m", "deepbdc", command, "--help", cwd=folder)
        run(python, "-m", "deepbdc", "methods", cwd=folder)
        run(python, "-m", "deepbdc", "data", "list", cwd=folder)
        run(python, "-m", "deepbdc", "train", "glyphs/protonet", "--dry-run", cwd=folder)
    print("The release can go out.")


if __name__ == "__main__":
    main()
