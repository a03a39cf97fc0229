"""Errors as HTTP: the one place where they become it."""

import logging
from http import HTTPStatus

from pdgate.gateway.apis import shapes
from pdgate.protocols.apis import Shape
from pdgate.protocols.call import Headers
from pdgate.protocols.errors import (
    BadRequest,
    CallBreaksEngines,
    ClientTooSlow,
    EngineRejected,
    GatewayError,
    InsufficientQuota,
    LimitReached,
    MethodNotAllowed,
    NotFound,
    NotServed,
    PermissionDenied,
    RateLimited,
    TooLarge,
    Unauthorized,
    Unprocessable,
    UnsupportedMediaType,
    UpgradeRequired,
)

log = logging.getLogger(__name__)

JSON_TYPE = (b"content-type", b"application/json")
REQUEST_ID = b"x-request-id"

_PASSED = (b"content-type", b"retry-after", b"retry-after-ms")
"""Of the headers of what an engine rejected."""

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_BY_STATUS: dict[int, type[GatewayError]] = {
    error.status: error
    for error in (
        BadRequest,
        Unauthorized,
        PermissionDenied,
        RateLimited,
        NotFound,
        MethodNotAllowed,
        ClientTooSlow,
        TooLarge,
        UnsupportedMediaType,
        Unprocessable,
    )
}


def known(error: BaseException) -> GatewayError:
    """The error itself if it is for clients; a bug becomes "internal error".

    Where it was raised is forgotten: a holder of it would keep all that was in reach there, a body
    above all, until the garbage is collected (140 MB of bodies of 10 MB that were refused).
    """
    if isinstance(error, GatewayError):
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return error
    log.error("unexpected error", exc_info=error)
    return GatewayError("internal error")


def outcome_of(error: GatewayError) -> tuple[str, int]:
    """What a record says of a call that ended with it: outcome and status."""
    if isinstance(error, EngineRejected):
        return "engine_rejected", error.answer_status
    code = error.code or ("bad_request" if isinstance(error, BadRequest) else "internal_error")
    return code, error.status


def of_status(status: int, detail: str = "") -> GatewayError:
    """Error for what the framework refuses by status only."""
    kind = _BY_STATUS.get(status, BadRequest if status < 500 else GatewayError)
    return kind(detail or _PHRASES.get(status) or f"status {status}")


def as_response(
    error: GatewayError, call_id: str = "", shape: Shape = Shape.OPENAI
) -> tuple[int, Headers, bytes]:
    """Status, headers and body: the engine's own for what it rejected."""
    if isinstance(error, EngineRejected):
        status, body = error.answer_status, error.body
        headers = [h for h in error.headers if h[0] in _PASSED]
        if _is_json(headers):
            body = shapes.engines_body(status, body, shape)
        else:
            # An engine's proxy may answer in HTML; our clients read JSON.
            body = shapes.body_of(of_status(status), shape)
            headers = [h for h in headers if h[0] != b"content-type"] + [JSON_TYPE]
    else:
        status, body, headers = error.status, shapes.body_of(error, shape), [JSON_TYPE]
        if error.retry_after_seconds is not None:
            headers.append((b"retry-after", b"%d" % error.retry_after_seconds))
        if isinstance(error, LimitReached):
            headers += error.limits
        if isinstance(error, CallBreaksEngines | NotServed | InsufficientQuota):
            # OpenAI's clients repeat what has failed with 5xx, unless a header forbids it.
            headers.append((b"x-should-retry", b"false"))
        if isinstance(error, UpgradeRequired):
            # RFC 9110, section 15.5.22.
            headers.append((b"upgrade", b"websocket"))
        if error.closes:
            headers.append((b"connection", b"close"))
    headers.append((b"content-length", b"%d" % len(body)))
    if call_id:
        headers.append((REQUEST_ID, call_id.encode()))
    return status, headers, body


def mid_stream(error: GatewayError, after: bytes, shape: Shape = Shape.OPENAI) -> bytes:
    """The status line is gone, so the error travels as the last event.

    `after` is the last piece that went out: half an event, which only a long one can be, must
    not swallow this one.
    """
    gap = b"" if after.endswith((b"\n\n", b"\n\r\n")) else b"\n\n"
    return gap + shapes.event(error, shape, after)


def _is_json(headers: Headers) -> bool:
    return any(name == b"content-type" and b"json" in found for name, found in headers)
