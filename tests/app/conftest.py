from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient

from deepbdc import FewShotClassifier
from deepbdc.app.limits import AppLimits
from deepbdc.app.server import create_app
from deepbdc.app.service import Service
from deepbdc.app.storage import Storage
from deepbdc.web.protection import Door
from tests.app.browsing import running_browser, running_server
from tests.app.drawing import picture

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, Request


class Visit:
    """A visitor without a browser. It sends the requests that the page would send."""

    def __init__(self, client: TestClient, another_client: Callable[[], TestClient]) -> None:
        self.client = client
        self.another_client = another_client
        client.headers["X-Deepbdc"] = "1"
        self.state()

    def state(self) -> dict[str, Any]:
        answer = self.client.get("/api/state")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def add_class(self, name: str, *contents: bytes) -> str:
        answer = self.client.post("/api/classes", json={"name": name})
        assert answer.status_code == 200, answer.text
        class_id = str(answer.json()["added"])
        for number, content in enumerate(contents):
            assert self.upload(content, f"{name} {number}.png", class_id).status_code == 200
        return class_id

    def upload(self, content: Any, name: str = "picture.png", class_id: str | None = None, **more: str) -> Any:
        query = {"name": name} | ({} if class_id is None else {"class_id": class_id}) | more
        return self.client.post("/api/pictures", params=query, content=content)

    def learn(self) -> tuple[str, str]:
        """Two classes with two pictures each."""
        return (
            self.add_class("disc", *(picture("disc", seed) for seed in range(2))),
            self.add_class("stripes", *(picture("stripes", seed) for seed in range(2))),
        )


Visiting = Callable[..., Visit]
Serve = Callable[..., Callable[[], TestClient]]


@pytest.fixture(scope="session")
def template() -> FewShotClassifier:
    return FewShotClassifier()


@pytest.fixture
def serve(template: FewShotClassifier) -> Iterator[Serve]:
    """Make a server, and return a function that makes clients for it. Each client has its own cookies."""
    with ExitStack() as stack:

        def clients(
            limits: AppLimits | None = None, token: str | None = None, storage: Storage | None = None
        ) -> Callable[[], TestClient]:
            door = Door("127.0.0.1", 7860, token)
            server = create_app(Service(template, limits or AppLimits(), door, storage=storage))
            return lambda: stack.enter_context(closing(TestClient(server, base_url="http://127.0.0.1:7860")))

        yield clients


@pytest.fixture
def visiting(serve: Serve) -> Visiting:
    """Visit a new server with the given limits, or the server of another visitor."""

    def visit(
        beside: Visit | None = None,
        limits: AppLimits | None = None,
        storage: Storage | None = None,
        cookies: Any = None,
    ) -> Visit:
        client = serve(limits, storage=storage) if beside is None else beside.another_client
        new = client()
        new.cookies.update(cookies)
        return Visit(new, client)

    return visit


@pytest.fixture
def visit(visiting: Visiting) -> Visit:
    """The only visitor of a server."""
    return visiting()


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The address of a real server."""
    with running_server() as (found, _):
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with running_browser() as running:
        yield running


@pytest.fixture
def open_page(browser: "Browser", address: str) -> Iterator[Callable[..., "Page"]]:
    """Open the page as a new visitor. The page must not contact other machines, and no script may fail."""
    contexts: list[BrowserContext] = []
    asked: list[str] = []
    errors: list[str] = []

    def note(request: "Request") -> None:
        if not request.url.startswith(("data:", "blob:")):
            asked.append(str(urlsplit(request.url).hostname))

    def opened(width: int = 1280, height: int = 900, at: str = address, **options: Any) -> "Page":
        context = browser.new_context(viewport={"width": width, "height": height}, accept_downloads=True, **options)
        contexts.append(context)
        context.on("request", note)
        page = context.new_page()
        page.set_default_timeout(120_000)  # a busy machine receives large files slowly
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(at)
        page.get_by_role("heading", name="Three steps, and no training").wait_for()
        return page

    yield opened
    for context in contexts:
        context.close()
    assert set(asked) == {"127.0.0.1"}
    assert not errors
