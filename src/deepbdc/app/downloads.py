"""The requests with which a visitor saves answers and the classifier as files."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from fastapi import APIRouter, Response
from starlette.background import BackgroundTask
from starlette.responses import FileResponse

from deepbdc.app import results
from deepbdc.app.routes import KnownVisitor, TheService

downloads = APIRouter(prefix="/api")


@downloads.get("/classifier")
def classifier_file(visitor: KnownVisitor) -> Response:
    """The fitted classifier as a file for `FewShotClassifier.load` and ``deepbdc classify``."""
    return _download(visitor.classifier().to_bytes(), "classifier.safetensors", "application/octet-stream")


@downloads.get("/classifier.onnx")
async def onnx_file(visitor: KnownVisitor, service: TheService) -> Response:
    """The fitted classifier as an ONNX model. Making it takes some seconds."""

    def write(path: Path) -> None:
        with service.exporting:  # one at a time, as each needs a lot of memory
            visitor.classifier().to_onnx(path)

    return await service.work(_made, write, "classifier.onnx", "application/octet-stream")


@downloads.get("/results.csv")
def csv_file(visitor: KnownVisitor) -> Response:
    """The answers as CSV, for spreadsheets."""
    text = results.to_csv(visitor.results(), visitor.answer_names())
    return _download(text.encode(), "results.csv", "text/csv; charset=utf-8")


@downloads.get("/results.json")
def json_file(visitor: KnownVisitor) -> Response:
    """The answers as JSON, for programs."""
    text = results.to_json(visitor.results(), visitor.answer_names())
    return _download(text.encode(), "results.json", "application/json")


@downloads.get("/label-studio.json")
def label_studio_file(visitor: KnownVisitor) -> Response:
    """The answers as tasks for Label Studio."""
    text = results.to_label_studio(visitor.results(), visitor.answer_names())
    return _download(text.encode(), "label-studio.json", "application/json")


@downloads.get("/results.zip")
def zip_file(visitor: KnownVisitor) -> Response:
    """The pictures, sorted into folders."""
    return _made(lambda path: results.write_zip(path, visitor), "sorted.zip", "application/zip")


def _download(content: bytes, name: str, media_type: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=media_type, headers=headers)


def _made(write: Callable[[Path], None], name: str, media_type: str) -> Response:
    """Send a file that may be too large for the memory. It is deleted afterwards."""
    folder = tempfile.TemporaryDirectory(prefix="deepbdc-")
    path = Path(folder.name, name)
    try:
        write(path)
    except BaseException:
        folder.cleanup()
        raise
    return FileResponse(path, media_type=media_type, filename=name, background=BackgroundTask(folder.cleanup))
