"""“Label these next” and “Check my examples” in a browser, and the familiarity of the answers."""

import re

from tests.app.actions import (
    BROWSER,
    PHONE,
    Locator,
    Open,
    Page,
    add_class,
    ask,
    card,
    expect,
    file,
    label,
    learn,
    names,
    sideways,
    thumbs,
)

pytestmark = BROWSER


def label_next(page: Page) -> Locator:
    return page.locator("#filters").get_by_role("button", name="Label these next")


def fill(page: Page) -> None:
    """Two classes, and nine pictures to classify: one of them shows none of the classes."""
    learn(page)
    ask(page, file("cross", 1), *(file(kind, seed) for seed in range(20, 24) for kind in ("disc", "stripes")))
    expect(page.locator(".question")).to_have_count(9)


def focused(page: Page) -> str:
    return str(page.locator(".question:focus .file-name").text_content())


def test_the_pictures_to_label_next_are_labelled_with_one_key_each(open_page: Open) -> None:
    page = open_page()
    fill(page)
    label_next(page).click()
    expect(label_next(page)).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".question")).to_have_count(6)
    expect(page.locator("#next-hint")).to_contain_text("becomes an example")
    expect(page.get_by_role("button", name="Confirm all")).to_be_hidden()
    first = names(page)
    assert first[0] == "cross 1.png", "no example is like it"
    expect(card(page, "cross 1.png").locator(".give-label").first).to_have_text("None of theseEnter")
    known = page.locator(".question", has_not_text="cross").first
    guess = str(known.locator(".label").text_content())
    expect(known.locator(".give-label .choice-name")).to_have_text(
        [guess, "stripes" if guess == "disc" else "disc", "None of these"]
    )

    # Enter accepts the answer. One that is none of these teaches nothing, and the next picture has the focus.
    page.locator(".question").first.focus()
    page.keyboard.press("Enter")
    expect(card(page, "cross 1.png")).to_have_count(0)
    expect(page.locator(".question")).to_have_count(6)
    assert names(page)[:5] == first[1:], "those without a label stay in their places"
    assert names(page)[5] not in first, "the next one follows"
    expect(page.locator(".question").first).to_be_focused()

    # A class learns from what is labelled, by Enter or by its number.
    name = focused(page)
    kind = name.split()[0]
    page.keyboard.press("Enter")
    expect(thumbs(page, kind)).to_have_count(3)
    expect(card(page, name)).to_have_count(0)
    expect(page.locator(".question")).to_have_count(6)
    expect(page.locator(".question").first).to_be_focused()
    page.keyboard.press("2")
    expect(thumbs(page, "stripes")).to_have_count(3 if kind == "disc" else 4)

    # What was undone is there again, in its old place.
    expect(page.locator(".question")).to_have_count(6)
    page.keyboard.press("Control+z")
    expect(thumbs(page, "stripes")).to_have_count(2 if kind == "disc" else 3)
    expect(page.locator(".question").first.locator(".file-name")).to_have_text(first[2])


def test_labelling_on_a_phone_until_nothing_is_left(open_page: Open) -> None:
    page = open_page(**PHONE, color_scheme="dark", has_touch=True, is_mobile=True)
    learn(page)
    ask(page, file("disc", 20), file("stripes", 21), file("cross", 1))
    expect(page.locator(".question")).to_have_count(3)
    label_next(page).tap()
    expect(page.locator(".question .give-label").first).to_be_visible()
    expect(page.locator(".question .give-label .key").first).to_be_hidden()
    assert sideways(page) == 0
    card(page, "disc 20.png").get_by_role("button", name="disc", exact=True).tap()
    expect(thumbs(page, "disc")).to_have_count(3)
    card(page, "stripes 21.png").get_by_role("button", name="None of these").tap()
    expect(page.locator(".question")).to_have_count(1)
    card(page, "cross 1.png").get_by_role("button", name="None of these").tap()
    expect(page.get_by_role("status")).not_to_be_empty()
    expect(label_next(page)).to_have_count(0)
    expect(page.locator(".question.is-checked")).to_have_count(2), "all are shown again"


def test_familiarity_explains_none_of_these(open_page: Open) -> None:
    page = open_page()
    learn(page)
    ask(page, file("disc", 8), file("cross", 1))
    expect(page.locator(".question")).to_have_count(2)
    known, other = card(page, "disc 8.png"), card(page, "cross 1.png")
    expect(known.locator(".familiar")).to_have_text(re.compile(r"^Familiarity [\d.]+\s%$"))
    expect(known.locator(".bars-title")).to_be_hidden()
    expect(label(page, "cross 1.png")).to_have_text("None of these")
    expect(other.locator(".familiar")).to_have_text(re.compile(r"^Familiarity (<\s)?[0-4]?[\d.]+\s%, below\s5\s%$"))
    expect(other.locator(".bars-title")).to_have_text("If it is one of them")
    expect(other.locator(".familiar")).to_have_attribute("title", re.compile("look even less like the examples"))
    page.get_by_text("What familiarity means").click()
    expect(page.locator(".explanations")).to_contain_text("below 5 %, the answer is “none of these”")

    # In the grid, the details are in the dialog of a picture.
    page.get_by_role("button", name="Grid").click()
    other.locator("figure").click()
    expect(page.locator("#picture-answer")).to_have_text(re.compile("None of these. Unlike your examples. Familiarity"))
    page.keyboard.press("Escape")
    page.get_by_role("button", name="disc 1.png, an example of disc").click()
    expect(page.locator("#picture-answer")).to_be_hidden()


def finding(page: Page, text: str) -> Locator:
    return page.locator(".finding", has_text=text)


def teach_badly(page: Page) -> None:
    """Discs and crosses; one disc is an example of cross, and one disc occurs twice."""
    add_class(page, "disc", *(file("disc", seed) for seed in range(4)), {**file("disc", 0), "name": "copy.png"})
    add_class(page, "cross", *(file("cross", seed) for seed in range(4)), file("disc", 11))


def test_a_wrong_example_is_found_moved_undone_and_kept(open_page: Open) -> None:
    page = open_page()
    expect(page.locator("#check-examples")).to_be_hidden()
    teach_badly(page)
    page.get_by_role("button", name="Check my examples").click()
    expect(page.locator("#check-title")).to_be_focused()
    wrong = finding(page, "“disc 11.png” is an example of cross, but looks like disc")
    expect(wrong.locator("img")).to_have_js_property("complete", True)
    expect(page.locator("#check-text")).to_contain_text("10 examples checked")
    wrong.get_by_role("button", name="Move to disc").press("Enter")
    expect(thumbs(page, "disc")).to_have_count(6)
    expect(wrong).to_have_count(0)
    expect(page.locator("#check button:focus")).to_have_count(1), "the focus is at the next finding"
    page.keyboard.press("Control+z")
    expect(thumbs(page, "disc")).to_have_count(5)
    expect(wrong).to_have_count(1)

    # Keeping it is remembered, and can be undone, too.
    wrong.get_by_role("button", name="Keep in cross").click()
    expect(wrong).to_have_count(0)
    page.reload()
    page.get_by_role("button", name="Check my examples").click()
    twins = finding(page, "are the same picture")
    expect(twins).to_have_count(1)
    expect(wrong).to_have_count(0)
    page.get_by_role("button", name="Undo keeping disc 11.png").click()
    expect(wrong).to_have_count(1)
    wrong.get_by_role("button", name="Delete").click()
    expect(thumbs(page, "cross")).to_have_count(4)
    expect(wrong).to_have_count(0)


def test_a_check_on_a_phone_until_nothing_is_found(open_page: Open) -> None:
    page = open_page(**PHONE, color_scheme="dark", has_touch=True, is_mobile=True)
    teach_badly(page)
    add_class(page, "one", file("stripes", 1))
    page.get_by_role("button", name="Check my examples").tap()
    few = finding(page, "one has 1 example.")
    expect(few).to_be_visible()
    assert sideways(page) == 0
    page.get_by_label("Add more pictures to one").set_input_files([file("stripes", 2), file("stripes", 3)])  # type: ignore[list-item]
    expect(thumbs(page, "one")).to_have_count(3)
    expect(few).to_have_count(0)
    page.get_by_role("button", name="Move to disc").tap()
    finding(page, "“copy.png”").get_by_role("button", name="Keep only the first").tap()
    expect(finding(page, "“copy.png”")).to_have_count(0)
    expect(thumbs(page, "disc")).to_have_count(5)
    expect(page.locator("#check-text")).to_contain_text("12 examples checked")
    for left in reversed(range(page.locator(".finding").count())):  # some drawings are unusual, or nearly the same
        page.locator(".finding").last.get_by_role("button", name="Keep").last.tap()
        expect(page.locator(".finding")).to_have_count(left)
    expect(page.locator("#check-text")).to_have_text("12 examples checked, and nothing found. Your examples look good.")
    page.get_by_role("button", name="Close").tap()
    expect(page.locator("#check")).to_be_hidden()
