"""What a person does on the page, for the tests in a browser. Tests that import this are skipped without a browser."""

import base64
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.app.browsing import CHROMIUM
from tests.app.drawing import picture

if not os.environ.get("CI"):  # in CI, a missing browser is an error
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}: apt-get install chromium", allow_module_level=True)
    pytest.importorskip("playwright", reason="there is no playwright: pip install -c constraints.txt playwright")

from playwright.sync_api import Download, Locator, Page, expect

expect.set_options(timeout=60_000)

Open = Callable[..., Page]
BROWSER = pytest.mark.xdist_group("browser")
"""All tests in a browser run in one process, so that they share a server."""
PHONE = {"width": 375, "height": 812}
"""The size of a phone, for `open_page`."""


def file(kind: str, seed: int) -> dict[str, object]:
    return {"name": f"{kind} {seed}.png", "mimeType": "image/png", "buffer": picture(kind, seed)}


def add_class(page: Page, name: str, *files: dict[str, object]) -> None:
    page.get_by_label("Name of a new class").fill(name)
    page.keyboard.press("Enter")
    expect(page.get_by_label(f"Add pictures to {name}")).to_be_attached()
    if files:
        page.get_by_label(f"Add pictures to {name}").set_input_files(list(files))
        expect(thumbs(page, name)).to_have_count(len(files))


def class_card(page: Page, name: str) -> Locator:
    return page.locator(".class", has=page.get_by_label(f"Add pictures to {name}"))


def thumbs(page: Page, name: str) -> Locator:
    return class_card(page, name).locator(".thumb")


def ask(page: Page, *files: dict[str, object]) -> None:
    page.get_by_label("Choose pictures").set_input_files(list(files))


def card(page: Page, file_name: str) -> Locator:
    return page.locator(".question", has_text=file_name)


def label(page: Page, file_name: str) -> Locator:
    return card(page, file_name).locator(".label")


def save(page: Page, link: str) -> Download:
    """Choose a file from the menu, and have the browser save it."""
    page.get_by_text("Files", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("link", name=link).click()
    return download.value


def names(page: Page) -> list[str]:
    """The files of the pictures to classify that are shown, in their order."""
    return page.locator(".file-name").all_text_contents()


def learn(page: Page) -> None:
    add_class(page, "disc", file("disc", 1), file("disc", 2))
    add_class(page, "stripes", file("stripes", 1), file("stripes", 2))


def drop_files(page: Page, target: str, files: list[dict[str, object]], event: str) -> None:
    """Send the event that the browser sends when a person drops or pastes files."""
    sent = [[entry["name"], base64.b64encode(bytes(entry["buffer"])).decode()] for entry in files]  # type: ignore[arg-type]
    page.evaluate(
        """([target, sent, kind]) => {
            const data = new DataTransfer();
            for (const [name, content] of sent) {
                const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
                data.items.add(new File([bytes], name, { type: "image/png" }));
            }
            const options = { bubbles: true, cancelable: true };
            const event = kind === "paste"
                ? new ClipboardEvent("paste", { ...options, clipboardData: data })
                : new DragEvent("drop", { ...options, dataTransfer: data });
            document.querySelector(target).dispatchEvent(event);
        }""",
        [target, sent, event],
    )


def drop_paths(page: Page, target: str, paths: list[Path]) -> None:
    """Drop files or folders as the desktop does it."""
    session = page.context.new_cdp_session(page)
    box = page.locator(target).bounding_box()
    assert box is not None
    where = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, **where, "data": data})
    session.detach()


def write_pictures(folder: Path, kinds: Iterable[str], count: int, first: int = 1) -> Path:
    """A folder that holds one folder of pictures for each kind."""
    for kind in kinds:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for seed in range(first, first + count):
            (folder / kind / f"{kind} {seed}.png").write_bytes(picture(kind, seed))
    return folder


def sideways(page: Page) -> int:
    """By how many pixels the page is wider than the screen."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
