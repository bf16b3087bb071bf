"""Checks every request to a web server, and adds security headers to every response."""

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from hmac import compare_digest
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deepbdc.errors import UserError

OWN_HEADER = "x-deepbdc"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_TOKEN = re.compile(r"[A-Za-z0-9_-]{12,200}")
_POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_CLOSE = {"connection": "close"}  # otherwise the server would still read the rest of the body
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
}


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return host in _LOOPBACK or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_token(token: str) -> str:
    """Return the token if it is long enough and can be part of a URL; raise UserError otherwise."""
    if not _TOKEN.fullmatch(token):
        raise UserError(
            f"the token has {len(token)} characters: it must have 12 to 200, from A-Z, a-z, 0-9, - and _. "
            "'--token auto' makes a good one."
        )
    return token


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Door:
    """Decides who may use the server: the host names it answers to, and the token.

    Another web site can let its own host name resolve to this machine (DNS rebinding); the browser then lets its
    scripts send requests to this server. This does not work with IP addresses or with the names of this machine, so the
    server answers only requests to these.
    """

    host: str
    port: int
    token: str | None = None

    @property
    def token_cookie(self) -> str:
        """The cookie with the token. Cookies ignore ports, so the name contains the port to tell servers apart."""
        return f"deepbdc_token_{self.port}"

    @property
    def visitor_cookie(self) -> str:
        """The cookie with the id of the visitor."""
        return f"deepbdc_visitor_{self.port}"

    def knows_host(self, header: str) -> bool:
        """Whether the Host header names this machine. The port is not checked, because it may be forwarded."""
        try:
            name = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        if name in _LOOPBACK:
            return True
        if is_loopback(self.host):
            return is_loopback(name)
        machine = socket.gethostname().lower()
        return _is_address(name) or name in {self.host.lower(), machine, f"{machine}.local"}

    def fits(self, tokens: Iterable[str]) -> bool:
        """Whether one of ``tokens`` is right. The comparison takes constant time, so that timing reveals nothing."""
        wanted = (self.token or "").encode()
        return any(compare_digest(given.encode(), wanted) for given in tokens)


class Protection:
    """Middleware that refuses requests from other sites, requests without the token and bodies that are too large.

    It is made for a page in a browser, which has the token in a cookie. `ProgramProtection` is for other programs.

    Args:
        app: The application that answers the other requests.
        door: Who may use the server.
        most_bytes: The largest body of a request for each prefix of its path. The first prefix that matches counts.
    """

    needs_token = "This page needs a token. Open the address that 'deepbdc app' printed."
    opens_by_address = True
    """Whether the token may be part of the URL, from where it goes into a cookie."""

    def __init__(self, app: ASGIApp, door: Door, most_bytes: dict[str, int]) -> None:
        self.app = app
        self.door = door
        self.most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on to the application."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        most = next(bytes_ for start, bytes_ in self.most_bytes.items() if scope["path"].startswith(start))
        headers, by_address = Headers(scope=scope), self._token_in_address(scope)
        answer = self._with_headers(send, self.door.token if by_address else None)
        refusal = self._refusal(scope, headers, by_address, most)
        if refusal is not None:
            status, text = refusal
            response = JSONResponse({"error": text}, status, _CLOSE)
            await response(scope, receive, answer)
            return
        await self.app(scope, _counted(receive, most), answer)

    def _refusal(self, scope: Scope, headers: Headers, by_address: bool, most: int) -> tuple[HTTPStatus, str] | None:
        """The status and message with which to refuse a request; None if it may pass."""
        host = headers.get("host", "")
        if not self.door.knows_host(host):
            return HTTPStatus.MISDIRECTED_REQUEST, "This server does not answer to the host name in your address."
        if self.door.token is not None and not by_address and not self.door.fits([self.token_in(headers)]):
            return HTTPStatus.UNAUTHORIZED, self.needs_token
        if scope["method"] not in _SAFE_METHODS and not self.may_change(headers, host):
            return HTTPStatus.FORBIDDEN, "Only this server's own page may make changes."
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > most:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _too_large(most)
        return None

    def token_in(self, headers: Headers) -> str:
        """The token that a request has; empty if there is none."""
        return cookie_parser(headers.get("cookie", "")).get(self.door.token_cookie, "")

    def may_change(self, headers: Headers, host: str) -> bool:
        """Whether our own page sent a request. Browsers let no other site set this origin, or our header."""
        return OWN_HEADER in headers if "origin" not in headers else _is_own_origin(headers, host)

    def _token_in_address(self, scope: Scope) -> bool:
        """Whether the URL contains the right token, as when a visitor opens the page for the first time."""
        if not self.opens_by_address:
            return False
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        return self.door.token is not None and scope["method"] in _SAFE_METHODS and self.door.fits(given)

    def _with_headers(self, send: Send, token: str | None) -> Send:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
                if token is not None:
                    # Lax, so that the cookie is also sent when a visitor follows a link on another site.
                    headers.append("set-cookie", f"{self.door.token_cookie}={token}; HttpOnly; Path=/; SameSite=Lax")
            await send(message)

        return answer


class ProgramProtection(Protection):
    """The same for a service that other programs use: they send the token in the header ``Authorization``.

    A request without an Origin does not come from the page of another web site, because browsers always send one with a
    POST to another site.
    """

    needs_token = "This service needs its token. Send the header 'Authorization: Bearer TOKEN'."
    opens_by_address = False

    def token_in(self, headers: Headers) -> str:
        """The token that a request has; empty if there is none."""
        kind, _, token = headers.get("authorization", "").partition(" ")
        return token if kind.lower() == "bearer" else ""

    def may_change(self, headers: Headers, host: str) -> bool:
        """Whether no other web site sent a request."""
        return "origin" not in headers or _is_own_origin(headers, host)


def _is_own_origin(headers: Headers, host: str) -> bool:
    return urlsplit(headers["origin"]).netloc == host


def _too_large(most: int) -> str:
    size = f"{most / 2**20:.0f} MB" if most >= 2**20 else f"{most / 2**10:.0f} KB"
    return f"This is larger than {size}, the most that the server accepts."


def _counted(receive: Receive, most: int) -> Receive:
    """Count the bytes of a body while receiving it, and stop when it is too large, whatever its header said."""
    seen = 0

    async def counted() -> Any:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _too_large(most), _CLOSE)
        return message

    return counted
