import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from deepbdc.data.archives import ArchiveLimits, UnreadableArchive, UnsafeArchive, members, safe_name, tar_members
from tests.data.official import tar_bytes, tree, write_folder, write_tar, write_zip

FILES = {"a/one.txt": b"1", "a/b/two.txt": b"22" * 5000, "three.txt": b""}
HOSTILE = ["../x", "a/../../x", "/absolute/x", "..\\x", "a\\..\\..\\x", "C:/x", "c:x", "\\\\server\\x", "a/..", "a\nb"]


def write(path: Path, files: dict[str, bytes]) -> Path:
    return write_zip(path, files) if path.suffix == ".zip" else write_tar(path, files)


def save_all(archive: Path, folder: Path, limits: ArchiveLimits | None = None) -> None:
    """Write every member, as the preparers do."""
    for member in members(archive, limits):
        member.save(folder / member.name)


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.zip"])
def test_all_members_are_saved(tmp_path: Path, name: str) -> None:
    save_all(write(tmp_path / name, FILES), tmp_path / "out")
    assert tree(tmp_path / "out") == FILES


@pytest.mark.parametrize("mode", ["w:bz2", "w:xz"])
def test_other_compressions(tmp_path: Path, mode: str) -> None:
    (tmp_path / "x").write_bytes(tar_bytes(FILES, mode))
    save_all(tmp_path / "x", tmp_path / "out")
    assert tree(tmp_path / "out") == FILES


def test_a_folder_is_read_like_an_archive(tmp_path: Path) -> None:
    write_folder(tmp_path, {**FILES, ".hidden": b"no", ".git/config": b"no"})
    found = {member.name: member.read() for member in members(tmp_path)}
    assert found == FILES


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("kind", ["x.tar.gz", "x.zip"])
def test_paths_that_lead_out_of_the_folder(tmp_path: Path, hostile: str, kind: str) -> None:
    archive = write(tmp_path / kind, {"good.txt": b"good", hostile: b"evil"})
    out = tmp_path / "deep" / "out"
    with pytest.raises(UnsafeArchive, match="This member was not written"):
        save_all(archive, out)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {archive, out / "good.txt"}


@pytest.mark.parametrize("name", ["a//b", "./a/b", "a/./b"])
def test_harmless_names(name: str) -> None:
    assert safe_name(name) == "a/b"


@pytest.mark.parametrize("name", ["a..b/c", "...", "a/b..", "what?.jpg"])
def test_dots_that_lead_nowhere_are_allowed(name: str) -> None:
    assert safe_name(name) == name


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_tars(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        info = tarfile.TarInfo("bad")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    word = "link" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else "device"
    with pytest.raises(UnsafeArchive, match=f"'bad', a {word}"):
        save_all(tmp_path / "x.tar", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("mode", "word"), [(0o120777, "link"), (0o020666, "device")])
def test_links_and_devices_in_zips(tmp_path: Path, mode: int, word: str) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        info = zipfile.ZipInfo("bad")
        info.external_attr = mode << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(UnsafeArchive, match=f"'bad', a {word}"):
        save_all(tmp_path / "x.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_files_of_a_folder_are_linked_or_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "in", FILES)
    save_all(tmp_path / "in", tmp_path / "linked")
    assert tree(tmp_path / "linked") == FILES
    assert (tmp_path / "linked" / "three.txt").samefile(tmp_path / "in" / "three.txt")

    def refuse(*_: object) -> None:
        raise OSError("another disk")

    monkeypatch.setattr(os, "link", refuse)
    save_all(tmp_path / "in", tmp_path / "copied")
    assert tree(tmp_path / "copied") == FILES
    assert not (tmp_path / "copied" / "three.txt").samefile(tmp_path / "in" / "three.txt")


def test_saving_replaces_a_file(tmp_path: Path) -> None:
    write_folder(tmp_path, {"in/x": b"new", "out/x": b"old"})
    save_all(tmp_path / "in", tmp_path / "out")
    assert tree(tmp_path / "out") == {"x": b"new"}


@pytest.mark.parametrize("kind", ["x.tar", "x.tar.gz", "x.zip"])
def test_limits(tmp_path: Path, kind: str) -> None:
    archive = write(tmp_path / kind, FILES)
    with pytest.raises(UnsafeArchive, match="more than 2 files"):
        save_all(archive, tmp_path / "few", ArchiveLimits(members=2))
    assert len(tree(tmp_path / "few")) == 2
    with pytest.raises(UnsafeArchive, match="more than 9,999 bytes"):
        save_all(archive, tmp_path / "small", ArchiveLimits(total_bytes=9_999))
    assert tree(tmp_path / "small") == {"a/one.txt": b"1"}
    save_all(archive, tmp_path / "all", ArchiveLimits(members=3, total_bytes=10_001))
    assert tree(tmp_path / "all") == FILES


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
    with pytest.raises(UnsafeArchive, match="at most 100 are allowed"):
        member.read(limit=100)


def test_tar_in_a_tar(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", {"n1.tar": tar_bytes(FILES), "n2.tar": tar_bytes({"z": b"z"})})
    found = {}
    for outer in members(tmp_path / "x.tar"):
        for _ in range(2):  # the inner tar can be read twice
            with outer.open() as stream:
                found[outer.name] = {inner.name: inner.read() for inner in tar_members(stream, outer.name)}
    assert found == {"n1.tar": FILES, "n2.tar": {"z": b"z"}}


@pytest.mark.parametrize("kind", ["x.tar", "x.tar.gz", "x.zip"])
def test_truncated_archives(tmp_path: Path, kind: str) -> None:
    # Random bytes do not compress, so the cut falls inside the second file.
    archive = write(tmp_path / kind, {"one": os.urandom(50_000), "two": os.urandom(50_000)})
    content = archive.read_bytes()
    archive.write_bytes(content[: len(content) // 2 + 10_000])
    with pytest.raises(UnreadableArchive, match="download was interrupted"):
        save_all(archive, tmp_path / "out")
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("content", [b"", b"not an archive at all" * 100, b"\x1f\x8bnot gzip"])
def test_files_that_are_not_archives(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.tar.gz").write_bytes(content)
    with pytest.raises(UnreadableArchive, match="download it again"):
        list(members(tmp_path / "x.tar.gz"))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        list(members(tmp_path / "x.tar"))
