"""Nothing is lost on the page: not when the server ends, not when the page is closed, and not by mistake."""

from pathlib import Path
from urllib.parse import urlsplit

from tests.app.actions import (
    BROWSER,
    PHONE,
    Open,
    add_class,
    ask,
    card,
    class_card,
    expect,
    file,
    label,
    learn,
    sideways,
    thumbs,
)
from tests.app.browsing import running_server

pytestmark = BROWSER


def test_the_server_ends_in_the_middle_of_sixty_pictures(open_page: Open, tmp_path: Path) -> None:
    with running_server(work=tmp_path) as (at, server):
        page = open_page(at=at)
        learn(page)
        ask(page, *(file(("disc", "stripes")[seed % 2], seed) for seed in range(100, 160)))
        expect(page.locator("#progress-text")).to_contain_text("of 60")
        expect(page.locator(".question").nth(2)).to_be_attached()
        server.kill()
        server.wait()
        expect(page.locator("#lost")).to_contain_text("Everything up to now is saved.")
        expect(page.locator("#progress-text")).to_have_text("Waiting for the server")
        page.locator("#undo").click()
        expect(page.locator("#problems")).to_contain_text("this was not done")

    with running_server(work=tmp_path, port=int(urlsplit(at).port or 0)):
        expect(page.locator("#lost")).to_be_hidden()
        expect(page.get_by_role("status")).to_have_text("60 pictures added.")
        expect(page.locator(".question")).to_have_count(60)
        expect(page.locator("#question-list")).to_have_class("question-list is-grid")
        expect(page.locator(".filter")).to_contain_text(["Label these next", "All60", "disc", "stripes"])
        names = page.locator(".file-name").all_text_contents()
        assert len(set(names)) == 60, "none is missing, and none is there twice"
        expect(label(page, "disc 100.png")).to_have_text("disc")
        expect(label(page, "stripes 101.png")).to_have_text("stripes")

        # A page that is closed and opened again shows the same. Only this browser sees it.
        page.goto("about:blank")
        page.goto(at)
        expect(page.locator(".question")).to_have_count(60)
        expect(thumbs(page, "disc")).to_have_count(2)
        open_page(at=at)

        # Everything can be deleted.
        expect(page.locator("#kept-folder")).to_contain_text(str(tmp_path))
        page.get_by_role("button", name="Delete everything").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete everything").click()
        expect(page.get_by_role("heading", name="Three steps, and no training")).to_be_visible()
        assert not list(tmp_path.rglob("*.safetensors"))


def test_mistakes_are_undone(open_page: Open) -> None:
    page = open_page()
    learn(page)
    ask(page, file("disc", 7), file("stripes", 7))
    expect(page.locator(".question")).to_have_count(2)
    page.get_by_role("button", name="Start over").click()
    expect(page.get_by_role("heading", name="Three steps, and no training")).to_be_visible()
    page.get_by_role("button", name="Undo starting over").click()
    expect(page.locator(".question")).to_have_count(2)
    expect(label(page, "disc 7.png")).to_have_text("disc")
    card(page, "disc 7.png").drag_to(class_card(page, "stripes"))
    expect(thumbs(page, "stripes")).to_have_count(3)
    page.keyboard.press("Control+z")
    expect(thumbs(page, "stripes")).to_have_count(2)
    expect(label(page, "disc 7.png")).to_have_text("disc")
    page.get_by_role("button", name="Undo adding pictures").click()
    expect(page.locator(".question")).to_have_count(0), "both pictures were added at once"


def test_the_page_asks_before_it_is_closed_while_pictures_are_sent(open_page: Open) -> None:
    page = open_page(**PHONE)
    asked: list[str] = []

    def note(dialog: object) -> None:
        asked.append(dialog.type)  # type: ignore[attr-defined]
        dialog.dismiss()  # type: ignore[attr-defined]

    page.on("dialog", note)
    add_class(page, "disc")
    page.route("**/api/pictures?**", lambda route: None)  # the server never answers
    page.get_by_label("Add pictures to disc").set_input_files([file("disc", 1)])  # type: ignore[list-item]
    expect(page.locator("#progress-text")).to_have_text("Reading picture 1 of 1")
    page.evaluate("setTimeout(() => location.reload(), 0)")
    page.wait_for_timeout(500)
    assert asked == ["beforeunload"]
    assert sideways(page) == 0
    page.unroute_all()
