"""The web server: it serves the page and answers the requests of its scripts."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from importlib.resources import files
from io import BytesIO
from threading import Lock
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from deepbdc.app import results, uploads
from deepbdc.app.example import draw_example
from deepbdc.app.limits import AppLimits, Refused
from deepbdc.app.protection import Door, Protection
from deepbdc.app.visitor import LabelledImages, Visitor
from deepbdc.app.visitors import Visitors
from deepbdc.estimator import EmbeddedImage, FewShotClassifier

_STATIC = files("deepbdc.app") / "static"
_MEDIA_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_FOREVER = {"cache-control": "private, max-age=86400, immutable"}
T = TypeVar("T")


class Service:
    """What the routes share: the visitors, the limits, and a few threads for slow work.

    Args:
        template: A classifier with the settings for all visitors.
        limits: What the server accepts.
        door: Who may use the server.
        examples: The examples that every visitor starts with.
    """

    def __init__(
        self, template: FewShotClassifier, limits: AppLimits, door: Door, examples: LabelledImages = ()
    ) -> None:
        self.template = template
        self.network = uploads.Network.of(template)
        self.limits = limits
        self.door = door
        self._example: tuple[LabelledImages, list[EmbeddedImage]] | None = None
        self._example_lock = Lock()
        self.visitors = Visitors(lambda: Visitor(template, limits, examples), limits)
        # One thread per core: more would only keep more decoded pictures in memory at once.
        self.threads = ThreadPoolExecutor(max(2, os.cpu_count() or 2), thread_name_prefix="embed")

    async def work(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a slow function in a thread. Functions start in the order of the requests."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, partial(function, *arguments))

    def example(self) -> tuple[LabelledImages, list[EmbeddedImage]]:
        """The bundled example: labelled pictures, and pictures to classify. It is made once for all visitors."""
        with self._example_lock:
            if self._example is None:
                drawn = draw_example()
                embedded = self.template.embed([picture.image for picture in drawn])
                named = [replace(image, name=picture.name) for image, picture in zip(embedded, drawn, strict=True)]
                pairs = list(zip(named, drawn, strict=True))
                examples = [(image, picture.label) for image, picture in pairs if picture.label is not None]
                self._example = examples, [image for image, picture in pairs if picture.label is None]
            return self._example


def create_app(service: Service) -> FastAPI:
    """The application that a web server runs."""
    app = FastAPI(title="deepbdc", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.service = service
    app.include_router(pages)
    app.include_router(api)
    limits = service.limits
    most = {"/api/pictures": limits.file_bytes, "/api/classifier": limits.classifier_bytes, "": limits.message_bytes}
    app.add_middleware(Protection, door=service.door, most_bytes=most)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _misunderstood)
    app.add_exception_handler(Exception, _failed)
    return app


async def _refused(_: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    return JSONResponse({"error": str(error)}, getattr(error, "status", 400))


async def _misunderstood(_: Request, __: Exception) -> Response:
    return JSONResponse({"error": "The server did not understand the request. Reload the page."}, 422)


async def _failed(_: Request, __: Exception) -> Response:
    return JSONResponse({"error": "The server failed. The terminal in which it runs shows the error."}, 500)


# The page

pages = APIRouter()


@pages.get("/")
def page() -> Response:
    """The page itself."""
    return _static_file("index.html")


@pages.get("/static/{name}")
def static_file(name: str) -> Response:
    """A file of the page. Only files in the folder ``static`` itself are served."""
    if name not in _static_names():
        raise HTTPException(404, "There is no such file.")
    return _static_file(name)


@cache
def _static_names() -> frozenset[str]:
    return frozenset(entry.name for entry in _STATIC.iterdir() if entry.is_file())


def _static_file(name: str) -> Response:
    media_type = _MEDIA_TYPES.get(name, "text/javascript; charset=utf-8")
    return Response((_STATIC / name).read_bytes(), media_type=media_type, headers={"cache-control": "no-cache"})


# The requests of the page. A cookie identifies each visitor; a request without one makes a new visitor.


def _service(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


def _visitor(request: Request, response: Response) -> Visitor:
    service = _service(request)
    cookie = service.door.visitor_cookie
    visitor = service.visitors.find(request.cookies.get(cookie))
    if visitor is None:
        visitor_id, visitor = service.visitors.welcome()
        response.set_cookie(cookie, visitor_id, httponly=True, samesite="strict", path="/")
    return visitor


def _known_visitor(request: Request) -> Visitor:
    """The visitor of a request that makes no sense for a new one, because it needs their classes or pictures."""
    service = _service(request)
    visitor = service.visitors.find(request.cookies.get(service.door.visitor_cookie))
    if visitor is None:
        raise Refused("You were away for too long, or the server was restarted. Reload the page.", status=404)
    return visitor


TheService = Annotated[Service, Depends(_service)]
AnyVisitor = Annotated[Visitor, Depends(_visitor)]
KnownVisitor = Annotated[Visitor, Depends(_known_visitor)]
State = dict[str, Any]
api = APIRouter(prefix="/api")


class ClassName(BaseModel):
    """The name of a class."""

    name: str


class Move(BaseModel):
    """The class to move a picture to; null moves it to the pictures to classify."""

    class_id: str | None


@api.get("/state")
def state(visitor: AnyVisitor, service: TheService) -> State:
    """Everything that the page shows."""
    limits = service.limits
    names = ("pictures", "classes", "name_length", "file_bytes", "classifier_bytes")
    return {**visitor.state(), "limits": {name: getattr(limits, name) for name in names}}


@api.delete("/state")
def start_over(visitor: KnownVisitor) -> State:
    """Remove all classes and pictures, except the examples that every visitor starts with."""
    visitor.start_over()
    return visitor.state()


@api.post("/example")
async def load_example(visitor: KnownVisitor, service: TheService) -> State:
    """Replace all classes and pictures by the bundled example."""
    examples, to_classify = await service.work(service.example)
    return await service.work(_replaced, visitor, examples, to_classify)


def _replaced(visitor: Visitor, examples: LabelledImages, to_classify: list[EmbeddedImage]) -> State:
    visitor.replace(examples, to_classify)
    return visitor.state()


@api.post("/classes")
def add_class(body: ClassName, visitor: KnownVisitor) -> State:
    """Add a class."""
    return {"added": visitor.add_class(body.name), **visitor.state()}


@api.patch("/classes/{class_id}")
def rename_class(class_id: str, body: ClassName, visitor: KnownVisitor) -> State:
    """Give a class another name."""
    visitor.rename_class(class_id, body.name)
    return visitor.state()


@api.delete("/classes/{class_id}")
def remove_class(class_id: str, visitor: KnownVisitor) -> State:
    """Remove a class and its examples."""
    visitor.remove_class(class_id)
    return visitor.state()


@api.post("/pictures")
async def add_picture(
    request: Request, visitor: KnownVisitor, service: TheService, name: str = "", class_id: str | None = None
) -> State:
    """Add a picture, the body of the request, as an example of a class or as a picture to classify.

    The response holds only the id, so that several uploads need only one new fit.
    """
    await run_in_threadpool(visitor.check_room, class_id)
    content = await request.body()
    image = await service.work(uploads.embed, service.template, content, uploads.title_of(name), service.limits)
    return {"added": await run_in_threadpool(visitor.add_picture, image, class_id)}


@api.patch("/pictures/{picture_id}")
def move_picture(picture_id: str, body: Move, visitor: KnownVisitor) -> State:
    """Move a picture into a class, for example to correct a wrong answer."""
    visitor.move_picture(picture_id, body.class_id)
    return visitor.state()


@api.delete("/pictures/{picture_id}")
def remove_picture(picture_id: str, visitor: KnownVisitor) -> State:
    """Remove a picture."""
    visitor.remove_picture(picture_id)
    return visitor.state()


@api.get("/pictures/{picture_id}/thumbnail")
def thumbnail(picture_id: str, visitor: KnownVisitor) -> Response:
    """The thumbnail of a picture."""
    return Response(visitor.picture(picture_id).image.thumbnail, media_type="image/jpeg", headers=_FOREVER)


@api.get("/pictures/{picture_id}/heat")
def heat_map(picture_id: str, visitor: KnownVisitor) -> Response:
    """The picture overlaid with a heat map of the evidence for its class."""
    content = BytesIO()
    visitor.explain(picture_id).overlay().save(content, "PNG")
    return Response(content.getvalue(), media_type="image/png")


@api.get("/pictures/{picture_id}/nearest")
def nearest(picture_id: str, visitor: KnownVisitor) -> list[State]:
    """The examples that are most similar to a picture."""
    return visitor.nearest(picture_id)


@api.get("/classifier")
def download_classifier(visitor: KnownVisitor) -> Response:
    """The fitted classifier as a file for `FewShotClassifier.load` and ``deepbdc classify``."""
    return _download(visitor.classifier().to_bytes(), "classifier.safetensors", "application/octet-stream")


@api.post("/classifier")
async def load_classifier(request: Request, visitor: KnownVisitor, service: TheService) -> State:
    """Replace all classes and pictures by the examples of a saved classifier, the body of the request."""
    content = await request.body()
    examples = await service.work(uploads.saved_examples, service.network, content, service.limits)
    return await service.work(_replaced, visitor, examples, [])


@api.get("/results.csv")
def results_csv(visitor: KnownVisitor) -> Response:
    """The answers as CSV, for spreadsheets."""
    return _download(results.to_csv(visitor.results()).encode(), "results.csv", "text/csv; charset=utf-8")


@api.get("/results.json")
def results_json(visitor: KnownVisitor) -> Response:
    """The answers as JSON, for programs."""
    return _download(results.to_json(visitor.results()).encode(), "results.json", "application/json")


def _download(content: bytes, name: str, media_type: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=media_type, headers=headers)
