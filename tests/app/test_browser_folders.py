"""Folders on the page, dropped as the desktop drops them, and chosen."""

import json
from pathlib import Path
from zipfile import ZipFile

from tests.app.actions import (
    BROWSER,
    PHONE,
    Open,
    add_class,
    card,
    class_card,
    drop_paths,
    expect,
    label,
    learn,
    save,
    thumbs,
    write_pictures,
)
from tests.app.drawing import picture

pytestmark = BROWSER


def test_a_dropped_folder_becomes_classes_and_another_is_classified(open_page: Open, tmp_path: Path) -> None:
    page = open_page()
    shapes = write_pictures(tmp_path / "shapes", ("disc", "stripes"), 3)
    (shapes / "disc" / "notes.txt").write_text("no picture")
    (shapes / "disc" / ".hidden.png").write_bytes(b"hidden")
    (shapes / "disc" / "inner").mkdir()
    (shapes / "disc" / "inner" / "deep.png").write_bytes(picture("disc", 50))
    drop_paths(page, ".folder-drop", [shapes])
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("“shapes” has 2 subfolders. What are they?")
    expect(dialog.locator("li")).to_have_text(["disc: 4 pictures", "stripes: 3 pictures"])
    dialog.get_by_role("button", name="Examples of 2 classes").click()
    expect(thumbs(page, "disc")).to_have_count(4)
    expect(thumbs(page, "stripes")).to_have_count(3)
    expect(page.locator("#problems")).to_contain_text("2 files are no pictures.")
    expect(page.locator(".question")).to_have_count(0)

    # A folder without subfolders is classified where pictures are dropped for that, and its path is kept.
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for kind in ("disc", "stripes"):
        (mixed / f"{kind}.png").write_bytes(picture(kind, 9))
    drop_paths(page, "#question-drop", [mixed])
    expect(label(page, "disc.png")).to_have_text("disc")
    expect(label(page, "stripes.png")).to_have_text("stripes")
    expect(card(page, "disc.png").locator(".file-name")).to_have_attribute("title", "mixed/disc.png")

    # One action takes the folder back.
    page.keyboard.press("Control+z")
    expect(page.locator(".question")).to_have_count(0)
    page.get_by_role("button", name="Undo adding").click()
    expect(page.locator(".class")).to_have_count(0)


def test_folders_onto_a_class_beside_each_other_and_without_pictures(open_page: Open, tmp_path: Path) -> None:
    page = open_page()
    add_class(page, "things")
    shapes = write_pictures(tmp_path / "shapes", ("disc", "stripes"), 1)
    drop_paths(page, ".class", [shapes])
    expect(thumbs(page, "things")).to_have_count(2)
    expect(page.locator(".class")).to_have_count(1)

    drop_paths(page, ".folder-drop", [shapes / "disc", shapes / "stripes"])
    page.get_by_role("dialog").get_by_role("button", name="Examples of 2 classes").click()
    expect(page.locator(".class")).to_have_count(3)
    expect(thumbs(page, "stripes")).to_have_count(1)

    drop_paths(page, ".folder-drop", [write_pictures(tmp_path, ("cross",), 2) / "cross"])
    expect(thumbs(page, "cross")).to_have_count(2)

    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.txt").write_text("no picture")
    drop_paths(page, "#question-drop", [tmp_path / "empty"])
    expect(page.locator("#problems")).to_contain_text("There are no pictures in this folder.")
    expect(page.locator("#lost")).to_be_hidden()


def test_a_folder_is_chosen_and_its_pictures_are_saved_sorted(open_page: Open, tmp_path: Path) -> None:
    page = open_page(**PHONE, color_scheme="dark")
    learn(page)
    folder = write_pictures(tmp_path / "mixed", ("disc", "stripes"), 2, first=20)
    (folder / "stripes" / "disc 20.png").write_bytes(picture("disc", 30))
    page.get_by_label("Choose a folder").set_input_files(folder)
    page.get_by_role("dialog").get_by_role("button", name="Classify all 5").click()
    expect(page.locator(".question")).to_have_count(5)
    page.locator("#filters").get_by_role("button", name="stripes").click()
    expect(page.locator(".question")).to_have_count(2)

    with ZipFile(save(page, "Pictures sorted into folders (ZIP)").path()) as file:
        assert sorted(file.namelist()) == [
            "disc/disc 20 (2).png",
            "disc/disc 20.png",
            "disc/disc 21.png",
            "results.csv",
            "stripes/stripes 20.png",
            "stripes/stripes 21.png",
        ]
        assert file.read("stripes/stripes 20.png") == picture("stripes", 20), "the file is as it was"
        assert "mixed/stripes/stripes 20.png,stripes," in file.read("results.csv").decode()
    tasks = json.loads(Path(save(page, "For Label Studio (JSON)").path()).read_text())
    assert {task["data"]["image"] for task in tasks} >= {"/data/local-files/?d=disc/disc%2020%20%282%29.png"}
    assert class_card(page, "disc").count() == 1
