import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from deepbdc.data.archives import Limits, UnreadableArchive, UnsafeArchive, extract, members, safe_name, tar_members
from tests.data.official import tar_bytes, tree, write_folder, write_tar, write_zip

FILES = {"a/one.txt": b"1", "a/b/two.txt": b"22" * 5000, "three.txt": b""}
HOSTILE = ["../x", "a/../../x", "/absolute/x", "..\\x", "a\\..\\..\\x", "C:/x", "c:x", "\\\\server\\x", "a/..", "a\nb"]


def write(path: Path, files: dict[str, bytes]) -> Path:
    return write_zip(path, files) if path.suffix == ".zip" else write_tar(path, files)


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.zip"])
def test_extract(tmp_path: Path, name: str) -> None:
    written = extract(write(tmp_path / name, FILES), tmp_path / "out")
    assert tree(tmp_path / "out") == FILES
    assert sorted(written) == sorted(tmp_path / "out" / inner for inner in FILES)


@pytest.mark.parametrize("mode", ["w:bz2", "w:xz"])
def test_other_compressions(tmp_path: Path, mode: str) -> None:
    (tmp_path / "x").write_bytes(tar_bytes(FILES, mode))
    extract(tmp_path / "x", tmp_path / "out")
    assert tree(tmp_path / "out") == FILES


def test_a_folder_is_visited_like_an_archive(tmp_path: Path) -> None:
    write_folder(tmp_path, {**FILES, ".hidden": b"no", ".git/config": b"no"})
    found = {member.name: member.read() for member in members(tmp_path)}
    assert found == FILES


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("kind", ["x.tar.gz", "x.zip"])
def test_names_that_leave_the_folder(tmp_path: Path, hostile: str, kind: str) -> None:
    archive = write(tmp_path / kind, {"good.txt": b"good", hostile: b"evil"})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UnsafeArchive, match="This member was not written"):
        extract(archive, tmp_path / "deep" / "out")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["a//b", "./a/b", "a/./b"])
def test_harmless_names(name: str) -> None:
    assert safe_name(name) == "a/b"


@pytest.mark.parametrize("name", ["a..b/c", "...", "a/b..", "what?.jpg"])
def test_dots_are_no_crime(name: str) -> None:
    assert safe_name(name) == name


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_tars(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("good"), io.BytesIO())
        info = tarfile.TarInfo("bad")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    word = "link" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else "device"
    with pytest.raises(UnsafeArchive, match=f"'bad', a {word}"):
        extract(tmp_path / "x.tar", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("mode", "word"), [(0o120777, "link"), (0o020666, "device")])
def test_links_and_devices_in_zips(tmp_path: Path, mode: int, word: str) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        info = zipfile.ZipInfo("bad")
        info.external_attr = mode << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(UnsafeArchive, match=f"'bad', a {word}"):
        extract(tmp_path / "x.zip", tmp_path / "out")


def test_a_link_that_already_lies_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "outside").mkdir()
    os.symlink(tmp_path / "outside", tmp_path / "out" / "a")
    with pytest.raises(UnsafeArchive, match="through a link"):
        extract(write_tar(tmp_path / "x.tar", FILES), tmp_path / "out")
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("kind", ["x.tar", "x.tar.gz", "x.zip"])
def test_limits(tmp_path: Path, kind: str) -> None:
    archive = write(tmp_path / kind, FILES)
    with pytest.raises(UnsafeArchive, match="more than 2 files"):
        extract(archive, tmp_path / "out", Limits(members=2))
    with pytest.raises(UnsafeArchive, match="more than 9,999 bytes"):
        extract(archive, tmp_path / "out", Limits(total_bytes=9_999))
    assert not (tmp_path / "out").exists()
    assert len(extract(archive, tmp_path / "out", Limits(members=3, total_bytes=10_001))) == 3


def test_a_member_that_declares_a_huge_size(tmp_path: Path) -> None:
    info = tarfile.TarInfo("huge")
    info.size = 2**50
    (tmp_path / "x.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(UnsafeArchive, match="bytes unpacked"):
        list(members(tmp_path / "x.tar"))


def test_a_header_that_asks_for_all_memory(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2**40
    (tmp_path / "x.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(UnsafeArchive, match="no honest archive"):
        list(members(tmp_path / "x.tar"))


def test_reading_a_member_has_a_limit(tmp_path: Path) -> None:
    member = next(m for m in members(write_tar(tmp_path / "x.tar", FILES)) if m.name == "a/b/two.txt")
    with pytest.raises(UnsafeArchive, match="at most 100"):
        member.read(limit=100)


def test_tar_in_a_tar(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", {"n1.tar": tar_bytes(FILES), "n2.tar": tar_bytes({"z": b"z"})})
    found = {}
    for outer in members(tmp_path / "x.tar"):
        for _ in range(2):  # it can be visited twice
            with outer.open() as stream:
                found[outer.name] = {inner.name: inner.read() for inner in tar_members(stream, outer.name)}
    assert found == {"n1.tar": FILES, "n2.tar": {"z": b"z"}}


def save_all(archive: Path, folder: Path) -> None:
    for member in members(archive):
        member.save(folder / member.name)


@pytest.mark.parametrize("kind", ["x.tar", "x.tar.gz", "x.zip"])
def test_cut_short(tmp_path: Path, kind: str) -> None:
    # Random bytes, so that half of the archive is inside of the file.
    archive = write(tmp_path / kind, {"one": os.urandom(50_000), "two": os.urandom(50_000)})
    content = archive.read_bytes()
    archive.write_bytes(content[: len(content) // 2 + 10_000])
    with pytest.raises(UnreadableArchive, match="cut short"):
        save_all(archive, tmp_path / "out")
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("content", [b"", b"not an archive at all" * 100, b"\x1f\x8bnot gzip"])
def test_no_archive(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.tar.gz").write_bytes(content)
    with pytest.raises(UnreadableArchive, match="fetch it again"):
        list(members(tmp_path / "x.tar.gz"))


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        list(members(tmp_path / "x.tar"))
