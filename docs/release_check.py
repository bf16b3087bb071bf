"""Checks that a release could go out: `make release-check`.

    python docs/release_check.py

1. Builds sdist and wheel, and checks their metadata and contents.
2. Installs the wheel with all extras for users into an empty environment outside of the source tree.
3. Runs every command and uses every extra there, with an empty home folder (release_smoke.py).

It took 8 minutes on two cores, beside a training on the same cores.
"""

import re
import sys
import tarfile
import tempfile
import time
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

from release_smoke import Installed, check_everything, run

ROOT = Path(__file__).parent.parent
EXTRAS = {"app", "heic", "lite", "onnx", "ray"}
"""The extras for users; `docs`, `test` and `dev` are for developers."""
MOST_BYTES = 5_000_000


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and from it the wheel."""
    run(sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT))
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(source))
    return wheel, source


def check_contents(wheel: Path, source: Path) -> None:
    """The wheel has every file of the package and nothing else; both have the licence."""
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = run("git", "ls-files", "src/deepbdc", cwd=ROOT).splitlines()
    missing = {name.removeprefix("src/") for name in tracked} - names
    assert not missing, f"the wheel lacks {sorted(missing)[:5]}"
    information = re.compile(r"deepbdc-[^/]*\.dist-info/")
    others = {name for name in names if not name.startswith("deepbdc/") and not information.match(name)}
    others |= {name for name in names if name.endswith((".npz", ".npy", ".safetensors", ".png", ".jpg"))}
    assert not others, f"these do not belong into the wheel: {sorted(others)[:5]}"
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names), "the wheel lacks the licence"
    with tarfile.open(source) as archive:
        ends = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "src/deepbdc/py.typed"} <= ends, "the sdist is incomplete"
    for file in (wheel, source):
        assert file.stat().st_size < MOST_BYTES, f"{file.name} has {file.stat().st_size:,} bytes"


def metadata_of(wheel: Path) -> Message:
    """What the wheel says about itself."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def check_metadata(facts: Message) -> None:
    """What package indexes show, and what pip decides by."""
    assert facts["License-Expression"] == "Apache-2.0", facts["License-Expression"]
    assert facts.get_all("License-File") == ["LICENSE"], facts.get_all("License-File")
    assert not [text for text in facts.get_all("Classifier", []) if text.startswith("License")], (
        "use License-Expression"
    )
    assert facts["Requires-Python"] == ">=3.11", facts["Requires-Python"]
    assert facts.get_all("Project-URL"), "there are no URLs"
    assert set(facts.get_all("Provides-Extra", [])) == EXTRAS | {"dev", "docs", "test"}, "an extra is not checked here"
    assert re.search(rf"^## {facts['Version']}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE), (
        "no changes noted"
    )


def install(wheel: Path, folder: Path) -> Installed:
    """Make an empty environment, and install the wheel with the tested versions of what it needs."""
    run(sys.executable, "-m", "venv", str(folder / "env"))
    python = folder / "env" / "bin" / "python"
    # The torch of this environment comes first, so that no other build is chosen.
    torch = run(sys.executable, "-c", "import torch; print(torch.__version__.partition('+')[0])").strip()
    run(str(python), "-m", "pip", "install", "--quiet", f"torch=={torch}")
    wanted = f"{wheel}[{','.join(sorted(EXTRAS))}]"
    run(str(python), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), wanted)
    run(str(python), "-m", "pip", "check")
    (folder / "work" / "home").mkdir(parents=True)
    return Installed(python, folder / "work")


def main() -> None:
    """All checks, in a folder that is deleted afterwards."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="deepbdc-release-") as name:
        wheel, source = build(Path(name) / "dist")
        check_contents(wheel, source)
        facts = metadata_of(wheel)
        check_metadata(facts)
        installed = install(wheel, Path(name))
        check_everything(installed)
    print(f"deepbdc {facts['Version']} can go out. All checks took {(time.monotonic() - start) / 60:.0f} minutes.")


if __name__ == "__main__":
    main()
