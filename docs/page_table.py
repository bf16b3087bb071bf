"""A table that a script of this folder makes, and its place in a page: between two marks."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PageTable:
    """The place of a table, which ``docs/NAME.py`` makes, in a page."""

    name: str
    page: Path

    @property
    def marks(self) -> tuple[str, str]:
        """The lines before and after the table."""
        return f"<!-- {self.name}: made by docs/{self.name}.py -->", f"<!-- end of {self.name} -->"

    def placed(self, table: str) -> str:
        """The text of the page with this table between its marks."""
        start, end = self.marks
        before, _, rest = self.page.read_text(encoding="utf-8").partition(start)
        _, _, after = rest.partition(end)
        return f"{before}{start}\n{table}\n{end}{after}"

    def main(self, description: str | None, make: Callable[[], str], draw: Callable[[], object] | None = None) -> None:
        """The command: print the table that ``make`` gives, or write it into the page, and ``draw`` its pictures."""
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--write", action="store_true", help=f"write the table into docs/{self.page.name}")
        if parser.parse_args().write:
            self.page.write_text(self.placed(make()), encoding="utf-8")
            if draw is not None:
                draw()
        else:
            print(make())
