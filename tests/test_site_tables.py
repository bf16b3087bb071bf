"""The search box of the site, in a browser: docs/_static/filter_table.js."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.actions import BROWSER
from tests.app.browsing import running_browser
from tests.pages import ROOT

pytestmark = BROWSER
STATIC = ROOT / "docs" / "_static"


def table(rows: list[str]) -> str:
    cells = "".join(f"<tr><td>{name}</td><td>50.00 ± 0.50 (± 8.4)</td><td>{'long ' * 40}</td></tr>" for name in rows)
    head = "<thead><tr><th>method</th><th>ours</th><th>idea</th></tr></thead>"
    return f'<div class="table-wrapper"><table class="docutils">{head}<tbody>{cells}</tbody></table></div>'


def page_with(*sections: tuple[str, list[str]]) -> str:
    parts = "".join(f"<section><h2>{title}</h2>{table(rows)}</section>" for title, rows in sections)
    style, script = ((STATIC / name).read_text("utf-8") for name in ("site.css", "filter_table.js"))
    content = f"<article><section><h1>Results</h1>{parts}</section></article>"
    return f"<html><style>{style}</style><body>{content}<script>{script}</script></body></html>"


METHODS = ["protonet", "dn4", *(f"method{number}" for number in range(20))]


@pytest.fixture(scope="module")
def open_html(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with running_browser() as browser:

        def opened(html: str, width: int = 1280, name: str = "results.html") -> Any:
            file: Path = tmp_path_factory.mktemp("site") / name
            file.write_text(html, encoding="utf-8")
            page = browser.new_page(viewport={"width": width, "height": 800})
            page.goto(file.as_uri())
            return page

        yield opened


def visible_rows(page: Any) -> list[str]:
    rows = page.locator("tbody tr:visible td:first-child")
    return [str(text) for text in rows.all_inner_texts()]


def test_one_box_searches_methods_and_data_sets(open_html: Any) -> None:
    page = open_html(page_with(("CIFAR-FS", METHODS), ("Glyphs", ["protonet", "frn"])))
    box = page.get_by_role("searchbox")
    assert box.count() == 1
    assert len(visible_rows(page)) == 24
    box.fill("protonet")
    assert visible_rows(page) == ["protonet", "protonet"]
    assert page.get_by_text("2 of 24 rows").is_visible()
    box.fill("glyphs")
    assert visible_rows(page) == ["protonet", "frn"]
    box.fill("DN4 cifar")
    assert visible_rows(page) == ["dn4"]
    box.fill("nothing like it")
    assert visible_rows(page) == []
    box.fill("")
    assert len(visible_rows(page)) == 24


def test_other_pages_have_no_box(open_html: Any) -> None:
    page = open_html(page_with(("Glyphs", METHODS)), name="paper.html")
    assert page.get_by_role("searchbox").count() == 0


def test_the_pages_that_are_searched_exist() -> None:
    line = next(line for line in (STATIC / "filter_table.js").read_text("utf-8").splitlines() if "SEARCHED = " in line)
    names = re.findall(r'"([^"]+)"', line)
    assert {"methods", "results"} <= set(names)
    assert all((ROOT / "docs" / f"{name}.md").is_file() for name in names)


def test_a_wide_table_scrolls_by_itself_on_a_phone(open_html: Any) -> None:
    page = open_html(page_with(("Glyphs", METHODS)), width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    number = page.locator("tbody tr td:nth-child(2)").first
    assert number.evaluate("cell => getComputedStyle(cell).whiteSpace") == "nowrap", "numbers keep to one line"
    page.locator(".table-wrapper").evaluate("wrapper => { wrapper.scrollLeft = 200; }")
    first = page.locator("tbody tr td:first-child").first
    assert first.bounding_box()["x"] >= 0, "the first column stays in place"
