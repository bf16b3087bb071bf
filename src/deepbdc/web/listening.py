"""Starts a web server on a socket: the address, the token that it needs, and the loop that answers requests."""

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from starlette.types import ASGIApp

from deepbdc.errors import UserError
from deepbdc.web.protection import Door, check_token, is_loopback


def chosen_token(host: str, token: str | None, danger: str, remedy: str) -> str | None:
    """The token of a server. ``auto`` makes one; a server that other computers can reach must have one.

    Args:
        host: The address that the server listens on.
        token: What the person gave.
        danger: What happens without a token, after "--host ADDRESS ", for the error.
        remedy: What the token is good for, after "also give --token auto, so that ".
    """
    if token is None and not is_loopback(host):
        raise UserError(f"--host {host} {danger}: also give --token auto, so that {remedy}")
    if token is None:
        return None
    return secrets.token_urlsafe(24) if token == "auto" else check_token(token)


@contextmanager
def listening_at(host: str, port: int, token: str | None) -> Iterator[tuple[Door, socket.socket]]:
    """Open a socket that accepts connections. Port 0 chooses a free one, which the door then has."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise OSError(f"cannot listen on {host}, port {port} ({error}): choose another --port or --host") from error
    with listening:
        yield Door(host, listening.getsockname()[1], token), listening


def address_of(door: Door) -> str:
    """The URL of a server, without a path. One that listens on all addresses is named after this machine."""
    host = socket.gethostname() if door.host in ("0.0.0.0", "::", "") else door.host
    return f"http://{f'[{host}]' if ':' in host else host}:{door.port}"


def run(app: ASGIApp, listening: socket.socket, most_connections: int) -> None:
    """Answer requests until Ctrl-C."""
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # URLs may contain the token
        server_header=False,
        limit_concurrency=most_connections,
        timeout_graceful_shutdown=3,
    )
    with suppress(KeyboardInterrupt):  # the normal way to stop the server
        uvicorn.Server(config).run(sockets=[listening])
