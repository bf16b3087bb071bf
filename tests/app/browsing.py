"""Starts a server and a browser for the tests."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = Path("/usr/bin/chromium")
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")


@contextmanager
def running_server(work: Path | None = None, port: int = 0) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """The address of a real server, started as ``deepbdc app`` starts it, and its process.

    Args:
        work: Where the page keeps its work; None keeps nothing.
        port: The port to listen on; 0 chooses a free one.
    """
    keep = "keep=False" if work is None else f"work=pathlib.Path({str(work)!r})"
    code = f"import pathlib; from deepbdc.commands.app import app; app(port={port}, open_browser=False, {keep})"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line.startswith("The page is at http://127.0.0.1:"), line
            yield line.split()[-1], server
        finally:
            server.terminate()


@contextmanager
def running_browser() -> Iterator["Browser"]:
    """Debian's Chromium without a window, with a camera that sees a test picture. It sends no requests by itself."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*_ARGUMENTS, *_CAMERA])
        yield browser
        browser.close()
