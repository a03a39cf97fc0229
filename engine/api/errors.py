"""Every failure as an error object of the API that was asked, and nowhere else."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pdgate.engine.api import messages
from pdgate.protocols.errors import GatewayError, MethodNotAllowed, NotFound


def install(app: Starlette) -> None:
    app.add_exception_handler(GatewayError, _ours)
    app.add_exception_handler(HTTPException, _framework)
    app.add_exception_handler(Exception, _bug)


def _json(request: Request, error: GatewayError, status: int | None = None) -> Response:
    anthropic = request.url.path in (messages.PATH, messages.COUNT_PATH)
    written = messages.error_object(error) if anthropic else error.as_openai()
    return JSONResponse(written, status_code=status or error.status)


async def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return _json(request, error)


async def _framework(request: Request, error: Exception) -> Response:
    """An unknown path, or a method that it does not have."""
    assert isinstance(error, HTTPException)
    if error.status_code == MethodNotAllowed.status:
        return _json(request, MethodNotAllowed(f"{request.method} is not allowed here"))
    if error.status_code == NotFound.status:
        return _json(request, NotFound(f"there is nothing at {request.url.path}"))
    return _json(request, GatewayError(str(error.detail)), error.status_code)


async def _bug(request: Request, error: Exception) -> Response:
    """The client learns that it happened, we learn what; uvicorn logs the traceback."""
    return _json(request, GatewayError("internal error"))
