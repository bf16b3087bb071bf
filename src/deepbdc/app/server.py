"""The web server: it serves the page and answers the requests of its scripts."""

from functools import cache
from importlib.resources import files

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from deepbdc.app.downloads import downloads
from deepbdc.app.routes import api
from deepbdc.app.service import Service
from deepbdc.errors import UserError
from deepbdc.web.protection import Protection
from deepbdc.web.refusals import tell_reason

_STATIC = files("deepbdc.app") / "static"
_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "js": "text/javascript; charset=utf-8",
}


def create_app(service: Service) -> FastAPI:
    """The application that a web server runs."""
    app = FastAPI(title="deepbdc", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.service = service
    for router in (pages, api, downloads):
        app.include_router(router)
    limits = service.limits
    most = {"/api/pictures": limits.file_bytes, "/api/classifier": limits.classifier_bytes, "": limits.message_bytes}
    app.add_middleware(Protection, door=service.door, most_bytes=most)
    app.add_exception_handler(UserError, tell_reason)
    app.add_exception_handler(HTTPException, tell_reason)
    app.add_exception_handler(RequestValidationError, _misunderstood)
    app.add_exception_handler(Exception, _failed)
    return app


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
    media_type = _MEDIA_TYPES[name.rpartition(".")[2]]
    return Response((_STATIC / name).read_bytes(), media_type=media_type, headers={"cache-control": "no-cache"})
