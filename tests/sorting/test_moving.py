import errno
import os
from pathlib import Path

import pytest

from deepbdc.sorting import Sorter, copy, find_pictures, folder_names, is_inside, move, moving, safe_folder_name


def write(path: Path, content: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def test_pictures_in_folders_are_found_once_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b/2.JPG", "b/1.png", "b/deep/3.webp", "b/.hidden.png", "b/.git/4.png", "b/notes.txt", "a.jpg", "odd"):
        write(Path(name))
    Path("b/same.png").symlink_to("1.png")
    Path("b/round").symlink_to(".")
    found = find_pictures(["b", "odd", "b/1.png", "a.jpg"])
    assert list(map(str, found.pictures)) == ["b/1.png", "b/2.JPG", "b/deep/3.webp", "odd", "a.jpg"]
    assert found.others == 1


def test_an_error_for_a_missing_path_names_the_most_similar_one(tmp_path: Path) -> None:
    write(tmp_path / "photos" / "1.jpg")
    with pytest.raises(FileNotFoundError, match=r"no file or folder .*photo: did you mean .*photos\?"):
        find_pictures([tmp_path / "photo"])
    with pytest.raises(FileNotFoundError, match=r"its folder .*nowhere does not exist either"):
        find_pictures([tmp_path / "nowhere" / "x"])


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("great tit", "great tit"),
        ("../../etc/passwd", "_.._etc_passwd"),
        ("..", "unnamed"),
        (".hidden", "hidden"),
        ("", "unnamed"),
        (" / ", "_"),
        ("a\nb\x1b[2J\x00", "a_b_[2J_"),
        ("C:\\x", "C__x"),
        ("NUL", "NUL_"),
        ("con.txt", "con.txt_"),
        ("caf\udce9", "caf_"),
        ("鳥", "鳥"),
        (7, "7"),
    ],
)
def test_folder_names_are_safe(label: object, name: str, tmp_path: Path) -> None:
    assert safe_folder_name(label) == name
    (tmp_path / name).mkdir()
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_long_folder_names_are_cut_between_characters() -> None:
    name = safe_folder_name("é" * 300)
    assert set(name) == {"é"}
    assert len(name.encode()) == 200


def test_no_two_classes_share_a_folder() -> None:
    names = folder_names(["a/b", "a_b", "A_b", "a_b (2)", "..", "."])
    assert names == ["a_b", "a_b (2)", "A_b (3)", "a_b (2) (2)", "unnamed", "unnamed (2)"]


@pytest.mark.parametrize("copies", [False, True])
def test_existing_files_are_never_touched(copies: bool, tmp_path: Path) -> None:
    sorter = Sorter(tmp_path / "sorted", copy=copies)
    write(tmp_path / "sorted" / "cat" / "1.jpg", "old")
    (tmp_path / "sorted" / "cat" / "1 (2).jpg").symlink_to("nowhere")
    files = [write(tmp_path / folder / "1.jpg", folder) for folder in ("a", "b")]
    places = [sorter.place(file, "cat") for file in files]
    assert [place.name for place in places] == ["1 (3).jpg", "1 (4).jpg"]
    assert [place.read_text() for place in places] == ["a", "b"]
    assert (tmp_path / "sorted" / "cat" / "1.jpg").read_text() == "old"
    assert not (tmp_path / "sorted" / "cat" / "nowhere").exists()
    assert [file.exists() for file in files] == [copies, copies]


def test_a_dry_run_says_where_files_would_go(tmp_path: Path) -> None:
    write(tmp_path / "sorted" / "cat" / "1.jpg", "old")
    files = [write(tmp_path / folder / "1.jpg") for folder in ("a", "b")]
    planned = Sorter(tmp_path / "sorted", dry_run=True)
    promised = [planned.place(file, folder) for file in files for folder in ("cat", "dog")]
    assert [str(path.relative_to(tmp_path / "sorted")) for path in promised] == [
        "cat/1 (2).jpg",
        "dog/1.jpg",
        "cat/1 (3).jpg",
        "dog/1 (2).jpg",
    ]
    assert not (tmp_path / "sorted" / "dog").exists()
    assert all(file.exists() for file in files)


@pytest.mark.parametrize("sorter", [{}, {"copy": True}, {"dry_run": True}])
def test_a_file_that_is_in_its_folder_stays(sorter: dict[str, bool], tmp_path: Path) -> None:
    file = write(tmp_path / "sorted" / "cat" / "1.jpg")
    assert Sorter(tmp_path / "sorted", **sorter).place(file, "cat") == file
    assert [entry.name for entry in file.parent.iterdir()] == ["1.jpg"]


def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "sorted" / "cat", "a file")
    file = write(tmp_path / "1.jpg")
    with pytest.raises(NotADirectoryError, match=r"sorted/cat is a file, but a folder of that name is needed"):
        Sorter(tmp_path / "sorted").place(file, "cat")
    assert file.exists()


def no_links(*arguments: object, **options: object) -> None:
    raise OSError(errno.EXDEV, "Invalid cross-device link")


def test_a_move_to_another_file_system_copies_and_then_removes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", no_links)
    source = write(tmp_path / "1.jpg", "content" * 1000)
    os.utime(source, (1, 1))
    move(source, tmp_path / "2.jpg")
    assert not source.exists()
    assert (tmp_path / "2.jpg").read_text() == "content" * 1000
    assert (tmp_path / "2.jpg").stat().st_mtime == 1
    other = write(tmp_path / "3.jpg", "other")
    with pytest.raises(FileExistsError):
        move(other, tmp_path / "2.jpg")
    assert other.read_text() == "other"
    assert (tmp_path / "2.jpg").read_text() == "content" * 1000


@pytest.mark.parametrize("kind", ["file", "link", "file without hard links"])
def test_the_new_name_is_on_the_disk_before_the_old_one_is_removed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = write(tmp_path / "old" / "1.jpg"), tmp_path / "new" / "1.jpg"
    target.parent.mkdir()
    if kind == "link":
        source = tmp_path / "old" / "link.jpg"
        source.symlink_to("1.jpg")
    elif kind == "file without hard links":
        monkeypatch.setattr(os, "link", no_links)
    calls: list[str] = []
    unlink = Path.unlink
    monkeypatch.setattr(moving, "sync_folder", lambda folder: calls.append(f"sync {folder.name}"))
    monkeypatch.setattr(Path, "unlink", lambda path: (calls.append(f"remove {path.name}"), unlink(path))[1])
    move(source, target)
    assert calls[0] == "sync new"
    assert calls[-1] == f"remove {source.name}"


def test_a_failed_copy_leaves_the_original_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", no_links)
    source = write(tmp_path / "1.jpg", "content")
    monkeypatch.setattr(moving.shutil, "copyfileobj", lambda reader, writer: writer.write(b"conten"))
    with pytest.raises(OSError, match=r"differs from .*1\.jpg"):
        move(source, tmp_path / "2.jpg")
    assert [file.name for file in tmp_path.iterdir()] == ["1.jpg"]

    def interrupt(reader: object, writer: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(moving.shutil, "copyfileobj", interrupt)
    with pytest.raises(KeyboardInterrupt):
        copy(source, tmp_path / "2.jpg")
    assert [file.name for file in tmp_path.iterdir()] == ["1.jpg"]
    assert source.read_text() == "content"


def test_a_file_that_cannot_be_removed_from_its_folder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "1.jpg")
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path == source:
            raise PermissionError(errno.EACCES, "Permission denied")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(PermissionError):
        move(source, tmp_path / "2.jpg")
    assert [file.name for file in tmp_path.iterdir()] == ["1.jpg"]


def test_a_moved_link_points_to_the_same_file(tmp_path: Path) -> None:
    write(tmp_path / "store" / "1.jpg", "content")
    link = tmp_path / "photos" / "1.jpg"
    link.parent.mkdir()
    link.symlink_to("../store/1.jpg")
    place = Sorter(tmp_path / "sorted" / "deep").place(link, "cat")
    assert place.is_symlink()
    assert place.read_text() == "content"
    assert not os.path.lexists(link)
    assert (tmp_path / "store" / "1.jpg").exists()


def test_inside_follows_links(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "link").symlink_to("photos")
    assert is_inside(tmp_path / "link" / "new", tmp_path / "photos")
    assert is_inside(tmp_path / "photos", tmp_path / "photos")
    assert not is_inside(tmp_path / "photos2", tmp_path / "photos")


def test_a_picture_is_preferred_to_links_to_it(tmp_path: Path) -> None:
    real, folder = tmp_path / "z.png", tmp_path / "elsewhere"
    real.touch()
    folder.mkdir()
    (folder / "b.png").touch()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").symlink_to(real)
    (tmp_path / "photos" / "linked").symlink_to(folder)
    found = find_pictures([tmp_path / "photos", real])
    assert found.pictures == [real]
    assert found.links == 2
