"""A web service that classifies pictures for other programs: one address, described by OpenAPI, without any state."""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from threading import BoundedSemaphore
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from deepbdc import __version__
from deepbdc.errors import UserError
from deepbdc.estimator import FewShotClassifier
from deepbdc.web.pictures import FILE_BYTES, MESSAGE_BYTES, PIXELS, decode
from deepbdc.web.protection import Door, ProgramProtection
from deepbdc.web.refusals import Refused, tell_reason

AT_ONCE = 2
"""Requests whose pictures are decoded and classified at the same time; others wait."""


@dataclass(frozen=True)
class ServiceLimits:
    """What one request may send. Size and pixels of a picture are those of the web page."""

    pictures: int = 32
    """Pictures in one request."""
    request_bytes: int = 64 * 2**20
    """Size of one request with several pictures."""
    file_bytes: int = FILE_BYTES
    """Size of one picture file."""
    pixels: int = PIXELS
    """Pixels of one picture after decoding."""


class Answer(BaseModel):
    """The answer for one picture."""

    label: str = Field(description="The most likely class")
    probability: float = Field(description="Its probability, from 0 to 1")
    none_of_these: bool = Field(description="Whether the picture looks like none of the classes")
    familiarity: float = Field(
        description="The share of the pictures of the known classes that look even less like the examples, from 0 to 1"
    )
    probabilities: dict[str, float] = Field(description="The probability of every class")


class Problem(BaseModel):
    """Why a picture has no answer."""

    problem: str


class Answers(BaseModel):
    """The answers, in the order of the pictures."""

    answers: list[Answer | Problem]


class Pictures(BaseModel):
    """Several pictures."""

    pictures: Annotated[list[str], Field(min_length=1, description="The content of each file, in base64")]


class Facts(BaseModel):
    """What the service recognises."""

    classes: list[str]
    version: str
    most_pictures: int
    most_bytes: int


class Failure(BaseModel):
    """Why a request was refused."""

    error: str


_FAILURES: dict[int | str, dict[str, Any]] = {
    400: {"model": Failure, "description": "The request is not understood"},
    401: {"model": Failure, "description": "The token is missing or wrong"},
    413: {"model": Failure, "description": "Too large, or too many pictures"},
    422: {"model": Failure, "description": "The picture cannot be read"},
}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "image/*": {"schema": {"type": "string", "format": "binary"}},
            "application/json": {"schema": Pictures.model_json_schema()},
        },
    }
}


def create_service(fitted: FewShotClassifier, door: Door, limits: ServiceLimits | None = None) -> FastAPI:
    """The application that a web server runs.

    Args:
        fitted: The classifier.
        door: Who may use the service: the host names it answers to, and the token.
        limits: What one request may send.
    """
    limits = limits or ServiceLimits()
    app = FastAPI(
        title="deepbdc",
        version=__version__,
        summary="Classifies pictures after a few examples of each class",
        docs_url=None,
        redoc_url=None,
    )
    predictor = _Predictor(fitted, limits)

    @app.get("/", response_model=Facts, responses={401: _FAILURES[401]})
    def facts() -> Facts:
        """What the service recognises, and what it accepts."""
        classes = [str(name) for name in fitted.classes_]
        most = limits.file_bytes
        return Facts(classes=classes, version=__version__, most_pictures=limits.pictures, most_bytes=most)

    @app.post("/predict", response_model=Answers, responses=_FAILURES, openapi_extra=_BODY)
    async def predict(request: Request) -> Answers:
        """Classify one picture, sent as the body of the request, or several in JSON.

        A single picture that cannot be read is refused with status 422. Among several, it has a problem instead of an
        answer, and the others are answered.
        """
        body = await request.body()
        several = request.headers.get("content-type", "").partition(";")[0].strip() == "application/json"
        contents = _contents(body, limits) if several else [body]
        found = await run_in_threadpool(predictor, contents)
        if not several and isinstance(found[0], Problem):
            raise Refused(found[0].problem, status=422)
        return Answers(answers=found)

    for kind in (UserError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, tell_reason)
    app.add_middleware(ProgramProtection, door=door, most_bytes={"/predict": limits.request_bytes, "": MESSAGE_BYTES})
    return app


def _contents(body: bytes, limits: ServiceLimits) -> list[bytes]:
    """The files in a JSON body."""
    try:
        texts = Pictures.model_validate_json(body).pictures
        if len(texts) > limits.pictures:
            raise Refused(f"{len(texts)} pictures are more than {limits.pictures}, the most of a request.", status=413)
        return [base64.b64decode(text, validate=True) for text in texts]
    except (ValidationError, binascii.Error) as error:
        raise Refused('Send JSON like {"pictures": ["...", "..."]} with files in base64.') from error


class _Predictor:
    """Classifies the pictures of a request; only a few requests at a time, so that memory is bounded."""

    def __init__(self, fitted: FewShotClassifier, limits: ServiceLimits) -> None:
        self.fitted, self.limits = fitted, limits
        self.free = BoundedSemaphore(AT_ONCE)

    def __call__(self, contents: Sequence[bytes]) -> list[Answer | Problem]:
        with self.free:
            return [self._answer(content, f"picture {place}") for place, content in enumerate(contents)]

    def _answer(self, content: bytes, name: str) -> Answer | Problem:
        most = self.limits.file_bytes
        if len(content) > most:
            return Problem(problem=f"{name}: larger than {most / 2**20:.0f} MB")
        try:
            (answer,) = self.fitted.classify([decode(content, name, self.limits.pixels)])
        except ValueError as error:
            return Problem(problem=str(error))
        names = [str(label) for label in self.fitted.classes_]
        probabilities = dict(zip(names, answer.probabilities.tolist(), strict=True))
        return Answer(
            label=str(answer.label),
            probability=answer.probability,
            none_of_these=answer.rejected,
            familiarity=answer.familiarity,
            probabilities=probabilities,
        )
