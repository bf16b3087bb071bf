"""``deepbdc app``: the web page."""

import secrets
import socket
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from deepbdc._optional import require
from deepbdc.commands.common import errors_in_words
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from deepbdc.app.protection import Door
    from deepbdc.app.server import Service
    from deepbdc.estimator import FewShotClassifier


def app(host: str = "127.0.0.1", port: int = 7860, examples: str | None = None, token: str | None = None) -> None:
    """Open the web page: show a few pictures of each class, and have others recognised.

    Nothing leaves this computer, and nothing is written to its disk. Each visitor has classes of
    their own, which are forgotten some hours after the last visit, or when this program ends.
    Others can be let in with a token; what they send is not encrypted, so do it in a network that you trust.

        deepbdc app
        deepbdc app --examples birds/
        deepbdc app --host 0.0.0.0 --token auto

    Args:
        host: The address to listen at. Anything but this computer's own needs --token as well.
        port: The port to listen at; 0 takes any that is free.
        examples: What every visitor begins with: a folder with a folder per class, or a saved classifier.
        token: A secret of at least 12 characters that visitors must know, or 'auto' for a new one. The address that is
            printed contains it.
    """
    with errors_in_words("app"):
        require("fastapi", "app")
        require("uvicorn", "app")
        from deepbdc.app.protection import Door, check_token, is_loopback

        if token is None and not is_loopback(host):
            raise UserError(
                f"--host {host} lets others reach this page: give --token auto as well, so that only those come in "
                "who have the address that is then printed"
            )
        if token is not None:
            token = secrets.token_urlsafe(24) if token == "auto" else check_token(token)
        with _listen(host, port) as listening:
            door = Door(host, listening.getsockname()[1], token)
            service = _service(door, examples)
            print(f"The page is at {_address(door)}\nCtrl-C ends it.", flush=True)
            _serve(service, listening)


def _listen(host: str, port: int) -> socket.socket:
    """A socket that waits for visitors."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise OSError(f"cannot listen at {host}, port {port} ({error}): choose another --port or --host") from error


def _service(door: "Door", examples: str | None) -> "Service":
    """The service with the network loaded, and with the examples that every visitor begins with."""
    from deepbdc._memory import keep_freed_memory
    from deepbdc.app.limits import AppLimits
    from deepbdc.app.server import Service
    from deepbdc.estimator import FewShotClassifier

    keep_freed_memory()
    limits = AppLimits()
    if examples is None:
        return Service(FewShotClassifier(), limits, door)
    if not Path(examples).exists():
        raise FileNotFoundError(
            f"there is no {examples}: --examples is a folder with a folder per class, or a saved classifier"
        )
    fitted = FewShotClassifier().fit(examples) if Path(examples).is_dir() else _load(examples)
    labels = [str(label) for label in fitted.example_labels_.tolist()]
    pairs = [
        (replace(image, name=Path(image.name).name), label)
        for image, label in zip(fitted.examples_, labels, strict=True)
    ]
    # There is as much room besides the examples as without them.
    limits = replace(
        limits,
        pictures=limits.pictures + len(pairs),
        classes=limits.classes + len(set(labels)),
        name_length=max(limits.name_length, *map(len, labels)),
    )
    return Service(fitted, limits, door, pairs)


def _load(path: str) -> "FewShotClassifier":
    """A saved classifier that learns on with the network of its file, so that no other need be fetched."""
    from deepbdc.estimator import FewShotClassifier

    loaded = FewShotClassifier.load(path)
    loaded.set_params(backbone=loaded.method_ or loaded.embedding_, pool=None, size=None)
    return loaded


def _address(door: "Door") -> str:
    """What to type into the browser."""
    host = socket.gethostname() if door.host in ("0.0.0.0", "::", "") else door.host
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{door.port}/" + ("" if door.token is None else f"?token={door.token}")


def _serve(service: "Service", listening: socket.socket) -> None:
    """Answer until Ctrl-C."""
    import uvicorn

    from deepbdc.app.server import create_app

    # Visitors are free to give one picture twice: that is no note for the terminal.
    warnings.filterwarnings("ignore", message=".* is the same picture as ")
    config = uvicorn.Config(
        create_app(service),
        log_level="warning",
        access_log=False,  # addresses contain the token
        server_header=False,
        limit_concurrency=500,
        timeout_graceful_shutdown=3,
    )
    with suppress(KeyboardInterrupt):  # this is how it is meant to end
        uvicorn.Server(config).run(sockets=[listening])
