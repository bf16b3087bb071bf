"""``deepbdc app``: the web page."""

import hashlib
import os
import socket
import sys
import warnings
import webbrowser
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from deepbdc._optional import require
from deepbdc.commands.common import say_at_once
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deepbdc.app.service import Service
    from deepbdc.app.storage import Storage
    from deepbdc.estimator import FewShotClassifier
    from deepbdc.web.protection import Door


def app(
    *,
    host: Annotated[str, Parameter(metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[int, Parameter(metavar="NUMBER")] = 7860,
    examples: Annotated[Path | None, Parameter(metavar="PATH")] = None,
    token: Annotated[str | None, Parameter(metavar="SECRET")] = None,
    work: Annotated[Path | None, Parameter(metavar="FOLDER")] = None,
    keep: Annotated[bool, Parameter(name="--keep", negative="--no-keep")] = True,
    open_browser: Annotated[bool, Parameter(name="--open", negative="--no-open")] = True,
) -> None:
    """Start a web page where you add example pictures of each class and classify others.

    By default only this computer can open the page. Pictures stay on this computer. The page keeps your work in your
    data folder and shows it again after a restart, until you delete it there. For example:

        deepbdc app
        deepbdc app --examples birds/
        deepbdc app --host 0.0.0.0 --token auto

    The last command lets other computers open the page if they know the token. The connection is not encrypted,
    so use it only in a network that you trust. Each visitor has separate classes and pictures, which are deleted some
    hours after the last visit, or when the program ends.

    Args:
        host: The address to listen on. Any address other than one of this computer alone needs --token, too.
        port: The port to listen on; 0 chooses a free one. Your browser finds your work again at the same address and
            port only.
        examples: What every visitor starts with: a folder that contains one folder of example pictures for each class,
            or a saved classifier.
        token: A secret of at least 12 characters that visitors need, or 'auto' to create one. It is part of the
            address that the program prints.
        work: The folder in which the page keeps its work (default: a folder among the data of your programs, which
            the page names). With this option, work is kept there also if other computers can open the page.
        keep: Whether to keep the work when the program ends.
        open_browser: Whether to open the page in your browser.
    """
    say_at_once("Starting the page ...")
    require("fastapi", "app")
    require("uvicorn", "app")
    from deepbdc.web.listening import chosen_token, listening_at
    from deepbdc.web.protection import is_loopback

    remedy = "only people who know the printed address can use it"
    token = chosen_token(host, token, "lets other computers open this page", remedy)
    if work is not None and not keep:
        raise UserError("--work says where to keep the work, and --no-keep says not to keep it: give one of them")
    lasting = keep and (work is not None or is_loopback(host))
    with listening_at(host, port, token) as (door, listening), _storage(work, lasting, examples) as storage:
        service = _service(door, examples, storage)
        print(f"The page is at {_address(door)}\nPress Ctrl-C to stop.", flush=True)
        _serve(service, listening, _address(door) if open_browser and is_loopback(host) else None)


@contextmanager
def _storage(work: Path | None, lasting: bool, examples: Path | None) -> "Iterator[Storage]":
    """Where the work of visitors is kept: in a folder that stays, or in one that is deleted at the end."""
    from deepbdc.app.limits import AT_HOME, AppLimits
    from deepbdc.app.storage import Storage, data_folder

    if not lasting:
        with TemporaryDirectory(prefix="deepbdc-page-", ignore_cleanup_errors=True) as folder:
            yield Storage(Path(folder), AppLimits().stored_bytes, lasting=False)
        return
    # The work that begins with some examples is not shown when the page is started with others.
    start = "own" if examples is None else hashlib.sha256(str(examples.resolve()).encode()).hexdigest()[:16]
    storage = Storage((work or data_folder()) / start, AT_HOME.stored_bytes)
    storage.forget_old(AT_HOME.keep_days)
    yield storage


def _service(door: "Door", examples: Path | None, storage: "Storage | None" = None) -> "Service":
    """Create the service: load the network, and learn the examples that every visitor starts with."""
    from deepbdc._memory import keep_freed_memory
    from deepbdc.app.limits import AT_HOME, AppLimits
    from deepbdc.app.service import Service
    from deepbdc.estimator import FewShotClassifier
    from deepbdc.web.protection import is_loopback

    keep_freed_memory()
    limits = AT_HOME if is_loopback(door.host) else AppLimits()
    if examples is None:
        return Service(FewShotClassifier(), limits, door, storage=storage)
    if not examples.exists():
        raise FileNotFoundError(
            f"there is no {examples}: --examples is a folder that contains one folder for each class, or a saved "
            "classifier"
        )
    fitted = FewShotClassifier().fit(examples) if examples.is_dir() else _load(examples)
    labels = [str(label) for label in fitted.example_labels_.tolist()]
    pairs = [
        (replace(image, name=Path(image.name).name), label)
        for image, label in zip(fitted.examples_, labels, strict=True)
    ]
    # The given examples do not count towards the limits of a visitor.
    limits = replace(
        limits,
        pictures=limits.pictures + len(pairs),
        classes=limits.classes + len(set(labels)),
        name_length=max(limits.name_length, *map(len, labels)),
    )
    return Service(fitted, limits, door, pairs, storage)


def _load(path: Path) -> "FewShotClassifier":
    """Load a saved classifier. Visitors can fit it again with its own network, so that no other is downloaded."""
    from deepbdc.estimator import FewShotClassifier

    loaded = FewShotClassifier.load(path)
    loaded.set_params(backbone=loaded.method_ or loaded.embedding_, pool=None, size=None)
    return loaded


def _address(door: "Door") -> str:
    """The URL to open in a browser."""
    from deepbdc.web.listening import address_of

    return f"{address_of(door)}/" + ("" if door.token is None else f"?token={door.token}")


def _serve(service: "Service", listening: socket.socket, address: str | None) -> None:
    """Serve the page until Ctrl-C. If there is an address, open it in a browser."""
    from deepbdc.app.server import create_app
    from deepbdc.web.listening import run

    # The estimator warns about duplicate examples. Visitors may add them; the terminal need not show it.
    warnings.filterwarnings("ignore", message=".* is the same picture as ")
    server = create_app(service)
    if address is not None:
        _open(address)
    run(server, listening, most_connections=500)


def _open(address: str) -> None:
    """Open a page in the person's browser, if there is a screen: otherwise a browser would take over the terminal.

    The socket already listens, so a request that comes too early waits.
    """
    screen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if screen:
        Thread(target=webbrowser.open, args=(address,), daemon=True).start()
