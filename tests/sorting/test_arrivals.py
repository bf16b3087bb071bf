import os
from pathlib import Path

from deepbdc.sorting import Arrivals


def write(path: Path, content: bytes, time: int) -> Path:
    path.write_bytes(content)
    os.utime(path, (time, time))
    return path


def test_a_picture_is_given_once_when_it_no_longer_grows(tmp_path: Path) -> None:
    arrivals = Arrivals(tmp_path)
    picture = write(tmp_path / "a.jpg", b"begin", 1)
    (tmp_path / "notes.txt").write_text("no picture")
    assert arrivals.complete() == []
    write(picture, b"beginning", 2)
    assert arrivals.complete() == []  # it grew
    assert arrivals.complete() == [picture]
    assert arrivals.complete() == []
    write(picture, b"another", 3)
    assert [arrivals.complete(), arrivals.complete()] == [[], [picture]]


def test_empty_files_wait_and_present_ones_can_be_skipped(tmp_path: Path) -> None:
    write(tmp_path / "old.jpg", b"old", 1)
    empty = write(tmp_path / "new.jpg", b"", 1)
    arrivals = Arrivals(tmp_path)
    assert arrivals.skip_present() == 1
    assert [arrivals.complete(), arrivals.complete()] == [[], []]
    write(empty, b"now", 2)
    assert [arrivals.complete(), arrivals.complete()] == [[], [empty]]


def test_a_picture_that_comes_back_is_given_again(tmp_path: Path) -> None:
    arrivals = Arrivals(tmp_path)
    picture = write(tmp_path / "a.jpg", b"a", 1)
    assert [arrivals.complete(), arrivals.complete()] == [[], [picture]]
    picture.unlink()
    assert arrivals.complete() == []
    write(picture, b"a", 1)
    assert [arrivals.complete(), arrivals.complete()] == [[], [picture]]
