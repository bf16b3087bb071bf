"""The page in a real browser with a real server, from the empty page to the saved classifier."""

import csv
import io
from pathlib import Path

from deepbdc import FewShotClassifier
from tests.app.actions import (
    BROWSER,
    PHONE,
    Open,
    add_class,
    ask,
    card,
    class_card,
    drop_files,
    expect,
    file,
    label,
    learn,
    save,
    sideways,
    thumbs,
)
from tests.app.drawing import picture

pytestmark = BROWSER


def test_from_the_empty_page_to_the_saved_classifier(open_page: Open, tmp_path: Path) -> None:
    page = open_page()
    learn(page)
    ask(page, file("stripes", 7), file("cross", 1), file("cross", 2), file("disc", 8))
    expect(label(page, "stripes 7.png")).to_have_text("stripes")
    expect(label(page, "disc 8.png")).to_have_text("disc")
    expect(page.get_by_role("heading", name="Three steps, and no training")).to_be_hidden()
    bars = card(page, "stripes 7.png").locator(".bar")
    expect(bars.locator(".bar-name")).to_have_text(["stripes", "disc"])
    nearest = card(page, "stripes 7.png").locator(".near-list img")
    expect(nearest.first).to_have_attribute("alt", "An example of stripes")

    # The heat map covers the picture from the start, and can be hidden.
    heat = card(page, "disc 8.png").locator(".heat")
    expect(heat).to_be_visible()
    page.wait_for_function("element => element.naturalWidth > 0", arg=heat.element_handle())
    card(page, "disc 8.png").get_by_role("button", name="Heat map").click()
    expect(heat).to_be_hidden()

    # A wrong answer is corrected with the mouse, and the other answers follow.
    add_class(page, "cross")
    card(page, "cross 1.png").drag_to(class_card(page, "cross"))
    expect(thumbs(page, "cross")).to_have_count(1)
    expect(card(page, "cross 1.png")).to_have_count(0)
    expect(label(page, "cross 2.png")).to_have_text("cross")

    # The same by keyboard: the focus moves to the next picture.
    card(page, "disc 8.png").locator(".move").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.get_by_role("dialog").locator(".choices button").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(thumbs(page, "disc")).to_have_count(3)
    expect(page.locator(".question:focus")).to_have_count(1)

    # The classifier and the answers are saved.
    save(page, "For deepbdc (safetensors)").save_as(tmp_path / "saved.safetensors")
    loaded = FewShotClassifier.load(tmp_path / "saved.safetensors")
    assert loaded.classes_.tolist() == ["cross", "disc", "stripes"]
    assert len(loaded.examples_) == 6
    assert loaded.predict([picture("cross", 9), picture("disc", 9)]).tolist() == ["cross", "disc"]
    table = save(page, "Table for Excel (CSV)").path()
    rows = list(csv.DictReader(io.StringIO(Path(table).read_text("utf-8-sig"))))
    assert {row["file"]: (row["label"], row["answered_by"]) for row in rows} == {
        "stripes 7.png": ("stripes", "classifier"),
        "cross 2.png": ("cross", "classifier"),
        "cross 1.png": ("cross", "person"),
        "disc 8.png": ("disc", "person"),
    }

    # A reload keeps everything.
    page.reload()
    expect(thumbs(page, "disc")).to_have_count(3)
    expect(label(page, "cross 2.png")).to_have_text("cross")

    # The saved classifier replaces the classes and pictures.
    page.get_by_text("Files", exact=True).click()
    page.get_by_label("Open a saved classifier").set_input_files(tmp_path / "saved.safetensors")
    page.get_by_role("button", name="Replace").click()
    expect(page.locator(".question")).to_have_count(0)
    expect(thumbs(page, "cross")).to_have_count(1)


def test_unreadable_and_large_files_are_named_and_the_others_are_added(open_page: Open) -> None:
    page = open_page()
    add_class(page, "disc")
    broken = {"name": "<b>broken & bad.jpg", "mimeType": "image/jpeg", "buffer": b"no picture at all"}
    large = {"name": "large.png", "mimeType": "image/png", "buffer": b"\0" * (10 * 2**20 + 1)}
    page.get_by_label("Add pictures to disc").set_input_files([file("disc", 1), broken, large, file("disc", 2)])
    alert = page.locator("#problems")
    expect(alert).to_contain_text("2 files left out")
    expect(alert.locator("li").first).to_contain_text("<b>broken & bad.jpg: not a readable image")
    expect(alert.locator("li").nth(1)).to_contain_text("large.png: This file has 10.0 MB")
    expect(thumbs(page, "disc")).to_have_count(2)
    alert.get_by_role("button", name="Dismiss").click()
    expect(alert).to_be_hidden()
    expect(page.get_by_role("status")).to_have_text("2 pictures added to disc.")


def test_pictures_are_dropped_and_pasted(open_page: Open) -> None:
    page = open_page()
    add_class(page, "disc")
    drop_files(page, ".class", [file("disc", 1), file("disc", 2)], "drop")
    expect(thumbs(page, "disc")).to_have_count(2)
    drop_files(page, "#question-drop", [file("disc", 3)], "drop")
    expect(card(page, "disc 3.png")).to_have_count(1)
    page.get_by_label("Add pictures to disc").focus()
    drop_files(page, "body", [file("disc", 4)], "paste")
    expect(thumbs(page, "disc")).to_have_count(3)
    page.locator("#questions-title").focus()
    drop_files(page, "body", [file("stripes", 5)], "paste")
    expect(label(page, "stripes 5.png")).to_have_text("None of these")


def test_classes_are_renamed_and_removed_by_keyboard(open_page: Open) -> None:
    page = open_page()
    name = "a class with quite a long name that goes on and on & <on>"
    add_class(page, "disc", file("disc", 1))
    field = page.get_by_label("Name of the class")
    field.fill(name)
    field.press("Enter")
    expect(page.get_by_label(f"Add pictures to {name}")).to_be_attached()
    add_class(page, "other")
    field.nth(1).fill(name.upper())
    field.nth(1).press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("already")
    expect(field.nth(1)).to_have_value("other")
    page.get_by_role("button", name=f"Remove the class {name}").press("Enter")
    expect(page.locator(".class")).to_have_count(1)
    expect(page.get_by_role("button", name=f"Undo removing {name}")).to_be_enabled()
    page.keyboard.press("Control+z")
    expect(page.locator(".class")).to_have_count(2)
    expect(thumbs(page, name)).to_have_count(1)


def test_two_visitors_at_once_do_not_mix(open_page: Open) -> None:
    one, other = open_page(), open_page()
    add_class(one, "red", file("disc", 1))
    add_class(other, "blue", file("stripes", 1))
    add_class(one, "lines", file("stripes", 2))
    add_class(other, "round", file("disc", 2))
    for page in (one, other):
        ask(page, file("disc", 5), file("stripes", 5))
    for page, names in ((one, ["red", "lines"]), (other, ["round", "blue"])):
        for file_name, name in zip(("disc 5.png", "stripes 5.png"), names, strict=True):
            expect(card(page, file_name).locator(".bar-name").first).to_have_text(name)
        page.reload()
        expect(page.locator(".class")).to_have_count(2)
        expect(page.locator(".question")).to_have_count(2)


def test_a_phone_shows_everything_without_scrolling_sideways(open_page: Open) -> None:
    page = open_page(**PHONE)
    assert sideways(page) == 0
    page.get_by_role("button", name="Try it with drawn fruit").click()
    expect(page.locator(".question")).to_have_count(7)
    expect(page.locator(".question .label").first).to_have_text("None of these")
    page.get_by_label("Order").select_option("As added")
    expect(page.locator(".question .label")).to_have_text(
        ["apple", "banana", "grapes", "apple", "None of these", "banana", "grapes"]
    )
    page.get_by_label("Name of the class").first.fill("W" * 60)
    page.get_by_label("Name of the class").first.press("Enter")
    expect(page.locator(".question .label").first).to_have_text("W" * 60)
    assert sideways(page) == 0
    page.locator(".thumb button").first.click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert sideways(page) == 0
    page.get_by_role("dialog").get_by_role("button", name="Pictures to classify").click()
    expect(page.locator(".question")).to_have_count(8)
