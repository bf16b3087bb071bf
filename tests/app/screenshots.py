"""Take the screenshots for the documentation: ``python -m tests.app.screenshots docs/images``."""

import sys
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, expect

from tests.app.browsing import running_browser, running_server

WITHOUT_HEAT = (0, 3, 5)  # pictures to classify that are shown without their heat map


def take(browser: Browser, address: str, path: Path, size: tuple[int, int], scheme: Literal["light", "dark"]) -> None:
    """The page with the example and its answers."""
    width, height = size
    phone = width < 500
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, has_touch=phone, is_mobile=phone
    )
    page = context.new_page()
    page.goto(address)
    page.get_by_role("button", name="Try it with drawn fruit").click()
    expect(page.locator(".question")).to_have_count(7, timeout=60_000)
    for place in WITHOUT_HEAT:
        page.locator(".heat-toggle").nth(place).click()
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    page.mouse.move(0, 0)
    expect(page.get_by_role("status")).not_to_have_class("status is-shown", timeout=20_000)
    page.wait_for_function(
        "() => [...document.querySelectorAll('.heat:not([hidden])')].every((image) => image.naturalWidth > 0)"
    )
    expect(page.locator("#expected-text")).to_contain_text("held out", timeout=60_000)
    page.wait_for_timeout(500)  # until the last message has faded out
    page.screenshot(path=path)
    context.close()


def main(folder: str) -> None:
    """Take all screenshots."""
    with running_server() as (address, _), running_browser() as browser:
        take(browser, address, Path(folder, "app_light.png"), (1280, 1300), "light")
        take(browser, address, Path(folder, "app_dark.png"), (1280, 1300), "dark")
        take(browser, address, Path(folder, "app_phone.png"), (375, 2000), "light")


if __name__ == "__main__":
    main(*sys.argv[1:])
