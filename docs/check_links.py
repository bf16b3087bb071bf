"""Check every link of the built site, and of the Markdown files beside it, without the internet.

    python docs/check_links.py docs/_build README.md CONTRIBUTING.md ...

A link to a page, a picture, a style sheet or another file of the repository must lead to a file that exists, and
`page.html#part` to a part that the page has. Addresses that begin with http:// or https:// are not opened.
"""

import re
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links of a page, and the names of its parts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.parts: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what a tag links to, and its own name."""
        for name, value in attrs:
            if value is not None and (name == "id" or (tag == "a" and name == "name")):
                self.parts.add(value)
            elif value is not None and name in ("href", "src"):
                self.links.append(value)


@cache
def read_html(file: Path) -> Page:
    """A page of the site."""
    return Page(file.read_text(encoding="utf-8"))


def markdown_links(text: str) -> list[str]:
    """The targets of the links and pictures of a Markdown text, without those in its code."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text))


def headings(text: str) -> set[str]:
    """The names that GitHub and myst give to the headings of a Markdown text."""
    titles = re.findall(r"^#+ +(.+?) *$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def parts_of(file: Path) -> set[str] | None:
    """The parts of a file that a link may name, or None if this script does not know."""
    if file.suffix == ".html":
        return read_html(file).parts
    return headings(file.read_text(encoding="utf-8")) if file.suffix == ".md" else None


def broken(file: Path, links: list[str]) -> Iterator[str]:
    """What is wrong with the links of a file, one sentence each."""
    for link in dict.fromkeys(links):
        address = urlsplit(link)
        if address.scheme or address.netloc:
            continue
        target = file.parent / unquote(address.path) if address.path else file
        if not target.exists():
            yield f"{file}: {link} leads to no file"
        elif address.fragment and target.is_file():
            parts = parts_of(target)
            if parts is not None and unquote(address.fragment) not in parts:
                yield f"{file}: {link} leads to a part that {target.name} does not have"


def check(places: list[Path]) -> tuple[int, list[str]]:
    """The number of links in sites (folders) and Markdown files, and what is wrong with them."""
    number, wrong = 0, []
    for place in places:
        pages = sorted(place.glob("**/*.html")) if place.is_dir() else [place]
        if not pages:
            wrong.append(f"{place}: there are no pages")
        for file in pages:
            inside = file.suffix == ".html"
            links = read_html(file).links if inside else markdown_links(file.read_text(encoding="utf-8"))
            number += len(links)
            wrong += broken(file, links)
    return number, wrong


def main() -> None:
    """Check what the command line names."""
    number, wrong = check([Path(place) for place in sys.argv[1:]])
    if wrong:
        sys.exit("\n".join([*wrong, f"{len(wrong)} of {number} links are broken"]))
    print(f"{number} links checked")


if __name__ == "__main__":
    main()
