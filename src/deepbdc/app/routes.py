"""The requests with which the page changes and shows the work of a visitor."""

from io import BytesIO
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from deepbdc.app import uploads
from deepbdc.app.names import title_of
from deepbdc.app.pictures import NewPicture
from deepbdc.app.service import Example, Service
from deepbdc.app.visitor import CONFIRM, Visitor
from deepbdc.web.protection import is_loopback
from deepbdc.web.refusals import Refused

_FOREVER = {"cache-control": "private, max-age=86400, immutable"}
_DAY = 24 * 3600
SUGGESTIONS = 6
"""How many pictures the page asks to label next."""

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
        lasting = service.storage is not None and service.storage.lasting
        age = int(service.limits.keep_days * _DAY) if lasting else None
        response.set_cookie(cookie, visitor_id, max_age=age, httponly=True, samesite="strict", path="/")
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


class Verdict(BaseModel):
    """What pictures show: the id of a class, "none", "confirm" for the answers that they have, or null for unknown."""

    pictures: list[str]
    verdict: str | None


class Kept(BaseModel):
    """Examples that the visitor keeps as they are, and the finding that they keep them in spite of."""

    pictures: list[str]
    finding: Literal["label", "twins", "outlier"]


@api.get("/alive")
def alive(service: TheService) -> State:
    """Tells the page that the server is there, and whether it is the same as before."""
    return {"server": service.number}


@api.get("/state")
def state(visitor: AnyVisitor, service: TheService) -> State:
    """Everything that the page shows."""
    limits = service.limits
    names = ("pictures", "classes", "name_length", "file_bytes", "classifier_bytes")
    return {
        **visitor.state(),
        "server": service.number,
        "limits": {name: getattr(limits, name) for name in names},
        "kept": _kept(service, visitor),
    }


def _kept(service: Service, visitor: Visitor) -> State:
    """Where the work is kept, and for how long. Only the person at this computer is told the folder."""
    lasting = service.storage is not None and service.storage.lasting
    folder = str(visitor.shelf.folder) if visitor.shelf is not None and is_loopback(service.door.host) else None
    return {"days": service.limits.keep_days if lasting else 0, "folder": folder if lasting else None}


@api.delete("/state")
def start_over(visitor: KnownVisitor) -> State:
    """Remove all classes and pictures, except the examples that every visitor starts with. This can be undone."""
    visitor.start_over()
    return visitor.state()


@api.delete("/work")
def forget(visitor: KnownVisitor) -> State:
    """Delete everything that is kept of a visitor, for good."""
    visitor.forget()
    return visitor.state()


@api.post("/undo")
def undo(visitor: KnownVisitor) -> State:
    """Take back the last action."""
    visitor.undo()
    return visitor.state()


@api.post("/example")
async def load_example(visitor: KnownVisitor, service: TheService) -> State:
    """Replace all classes and pictures by the bundled example."""
    service.check_storage()
    return await service.work(_replaced, visitor, await service.work(service.example))


@api.post("/classifier")
async def load_classifier(request: Request, visitor: KnownVisitor, service: TheService) -> State:
    """Replace all classes and pictures by the examples of a saved classifier, the body of the request."""
    service.check_storage()
    content = await request.body()
    examples = await service.work(uploads.saved_examples, service.network, content, service.limits)
    return await service.work(_replaced, visitor, ([(NewPicture(image), label) for image, label in examples], []))


def _replaced(visitor: Visitor, example: Example) -> State:
    visitor.replace(*example)
    return visitor.state()


Batch = Annotated[str | None, Query(max_length=40)]


@api.post("/classes")
def add_class(body: ClassName, visitor: KnownVisitor, batch: Batch = None) -> State:
    """Add a class."""
    return {"added": visitor.add_class(body.name, batch), **visitor.state()}


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
    request: Request,
    visitor: KnownVisitor,
    service: TheService,
    name: str = "",
    folder: str = "",
    class_id: str | None = None,
    picture_id: Annotated[str | None, Query(pattern="^[0-9a-f]{16}$")] = None,
    batch: Batch = None,
) -> State:
    """Add a picture, the body of the request, as an example of a class or as a picture to classify.

    The response holds only the id, so that several uploads need only one new fit.
    """
    await run_in_threadpool(visitor.check_room, class_id)
    await run_in_threadpool(service.check_storage)
    content = await request.body()
    title, example = title_of(name, folder), class_id is not None
    image = await service.work(uploads.embed, service.template, content, title, service.limits, example)
    new = NewPicture(image, content)
    return {"added": await run_in_threadpool(visitor.add_picture, new, class_id, picture_id, batch)}


@api.post("/verdicts")
def judge(body: Verdict, visitor: KnownVisitor) -> State:
    """Say what pictures show, without making them examples."""
    if body.verdict == CONFIRM:
        visitor.confirm(body.pictures)
    else:
        visitor.judge(dict.fromkeys(body.pictures, body.verdict))
    return visitor.state()


@api.get("/suggestions")
def suggestions(
    visitor: KnownVisitor, beside: Annotated[list[str] | None, Query(max_length=SUGGESTIONS)] = None
) -> State:
    """The pictures whose labels would teach most. Earlier ones (``beside``) stay until they have a label."""
    return visitor.suggestions(SUGGESTIONS, beside or ())


@api.get("/findings")
def findings(visitor: KnownVisitor) -> State:
    """What a check of the examples found."""
    return visitor.findings()


@api.post("/kept")
def keep(body: Kept, visitor: KnownVisitor) -> State:
    """Keep examples as they are, although a check found something."""
    visitor.keep_as_they_are(body.pictures, body.finding)
    return visitor.state()


@api.get("/expected")
def expected(visitor: KnownVisitor) -> State:
    """How often the answers should be right, estimated by holding out examples."""
    return visitor.expected()


@api.patch("/pictures/{picture_id}")
def move_picture(picture_id: str, body: Move, visitor: KnownVisitor) -> State:
    """Move a picture into a class, for example to correct a wrong answer."""
    visitor.move_picture(picture_id, body.class_id)
    return visitor.state()


@api.delete("/pictures/{picture_id}")
def remove_picture(picture_id: str, visitor: KnownVisitor, batch: Batch = None) -> State:
    """Remove a picture."""
    visitor.remove_picture(picture_id, batch)
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
