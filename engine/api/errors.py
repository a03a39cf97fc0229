"""Every failure as an OpenAI error object, and nowhere else."""

import logging

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pdgate.protocols.errors import GatewayError, MethodNotAllowed, NotFound

log = logging.getLogger(__name__)


def install(app: FastAPI) -> None:
    app.add_exception_handler(GatewayError, _ours)
    app.add_exception_handler(HTTPException, _framework)
    app.add_exception_handler(Exception, _bug)


def _json(error: GatewayError) -> Response:
    return JSONResponse(error.as_openai(), status_code=error.status)


async def _ours(_: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return _json(error)


async def _framework(request: Request, error: Exception) -> Response:
    """An unknown path, or a method that it does not have."""
    assert isinstance(error, HTTPException)
    if error.status_code == MethodNotAllowed.status:
        return _json(MethodNotAllowed(f"{request.method} is not allowed here"))
    if error.status_code == NotFound.status:
        return _json(NotFound(f"there is nothing at {request.url.path}"))
    other = GatewayError(str(error.detail)).as_openai()
    return JSONResponse(other, status_code=error.status_code)


async def _bug(_: Request, error: Exception) -> Response:
    """The client learns that it happened, we learn what; uvicorn logs the traceback."""
    return _json(GatewayError("internal error"))
