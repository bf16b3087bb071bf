import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from deepbdc._files import make_folder, read_npz, temporary, write_bytes, write_json, write_text


def write_by_hand(target: Path) -> None:
    with temporary(target) as part, part.open("w") as file:
        file.write("new")


WRITERS: list[Callable[[Path], None]] = [
    lambda target: write_text(target, "new"),
    lambda target: write_bytes(target, b"new"),
    write_by_hand,
]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Records every flush and every rename, in their order, each with the name of its file or folder."""
    recorded: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        recorded.append(("sync", path.suffix or path.name))
        fsync(handle)

    def record_replace(source: Path, target: Path) -> None:
        recorded.append(("rename", Path(target).name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    return recorded


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to name an open file")
@pytest.mark.parametrize("write", WRITERS)
def test_the_content_is_flushed_before_the_rename_and_the_folder_after_it(
    write: Callable[[Path], None], tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder / "x.txt")
    assert calls == [("sync", ".part"), ("rename", "x.txt"), ("sync", "folder")]
    assert (folder / "x.txt").read_text() == "new"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to name an open file")
def test_the_parents_of_new_folders_are_flushed(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    make_folder(tmp_path / "outer" / "inner")
    assert (tmp_path / "outer" / "inner").is_dir()
    assert calls == [("sync", tmp_path.name), ("sync", "outer")]
    make_folder(tmp_path / "outer" / "inner")
    assert len(calls) == 2


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_write_keeps_the_old_file(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "x.txt"
    target.write_text("old")

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="no space left"):
        write_text(target, "new")
    assert target.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["x.txt"]


def test_an_interrupted_block_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "x.txt"
    target.write_text("old")

    def write_half() -> None:
        with temporary(target) as part:
            part.write_text("half of the new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert target.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["x.txt"]


def test_a_folder_that_cannot_be_flushed_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where a folder cannot be opened."""
    real = os.open

    def refuse(path: Path, flags: int, *rest: int) -> int:
        if Path(path).is_dir():
            raise PermissionError(path)
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    write_text(tmp_path / "new" / "x.txt", "héllo\n")
    assert (tmp_path / "new" / "x.txt").read_bytes() == "héllo\n".encode()


def test_pickles_in_an_npz_are_not_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match=r"x\.npz is damaged or is not an \.npz file of plain arrays"):
        read_npz(tmp_path / "x.npz")
    with pytest.raises(FileNotFoundError):
        read_npz(tmp_path / "missing.npz")


def test_json_has_one_line_per_array_and_one_per_object(tmp_path: Path) -> None:
    content = {
        "empty": {},
        "nothing": [],
        "lists": [[1, 2], [3, 4]],
        "objects": [{"x": [1.5, None], "word": "ü\n"}, {"y": True}],
        "inner": {"deep": {"tuple": (1, 2)}},
    }
    write_json(tmp_path / "x.json", content)
    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    assert json.loads(text) == json.loads(json.dumps(content))
    assert '\n "lists": [[1,2],[3,4]],\n' in text
    assert '\n   "x": [1.5,null],\n' in text
    assert text.endswith("}\n")
