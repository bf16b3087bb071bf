"""The error for requests that a server refuses, and the response that tells the reason."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from deepbdc.errors import UserError


class Refused(UserError):
    """The server refuses a request. The message tells the visitor why; ``status`` is the HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


async def tell_reason(_: Request, error: Exception) -> JSONResponse:
    """The response to a request that was refused: JSON with the message of the error."""
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    return JSONResponse({"error": str(error)}, getattr(error, "status", 400))
