"""Failures that a client can see, as OpenAI error objects.

    {"error": {"message": str, "type": str, "param": str | null, "code": str | null}}

Each class is one row of the table: status, type, code, and whether another engine
might do better. Only gateway/errors.py turns them into responses. Messages are for
the client and name no engine; `at` names it for us.

Source: OpenAI API reference, "Error codes".
"""

from collections.abc import Sequence
from typing import Any, ClassVar


class GatewayError(Exception):
    """Something failed on our side of the wire."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None
    worth_retrying: ClassVar[bool] = False
    closes: ClassVar[bool] = False
    """Whether the client's connection is of no more use."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        at: str = "",
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.at = at
        self.retry_after_seconds = retry_after_seconds

    def as_openai(self) -> dict[str, Any]:
        fields = {"message": str(self), "type": self.type, "param": self.param, "code": self.code}
        return {"error": fields}


class BadRequest(GatewayError):
    status, type = 400, "invalid_request_error"


class Unauthorized(BadRequest):
    status, type, code = 401, "authentication_error", "invalid_api_key"


class PermissionDenied(BadRequest):
    status, type, code = 403, "permission_error", "forbidden"


class NotFound(BadRequest):
    status, code = 404, "not_found"


class UnknownModel(BadRequest):
    status, code = 404, "model_not_found"


class ContextTooLong(BadRequest):
    """No engine of the model takes so many tokens."""

    code = "context_length_exceeded"


class MethodNotAllowed(BadRequest):
    status, code = 405, "method_not_allowed"


class ClientTooSlow(BadRequest):
    """The rest of the body is still coming, too slowly to be waited for."""

    status, code, closes = 408, "request_timeout", True


class TooLarge(BadRequest):
    """The rest of the body is still coming, and the gateway will not read it."""

    status, code, closes = 413, "request_too_large", True


class UpgradeRequired(BadRequest):
    """The route is a WebSocket."""

    status, code = 426, "upgrade_required"


class HeadTooLarge(BadRequest):
    status, code = 431, "headers_too_large"


class UnsupportedMediaType(BadRequest):
    status, code = 415, "unsupported_media_type"


class Unprocessable(BadRequest):
    status, code = 422, "unprocessable_entity"


class Overloaded(GatewayError):
    status, type, code = 429, "rate_limit_error", "gateway_overloaded"


class LimitReached(GatewayError):
    """A limit that is the caller's own, not the load."""

    status, type = 429, "rate_limit_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        at: str = "",
        retry_after_seconds: int | None = None,
        limits: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """`limits`: headers that say how much is left of which."""
        super().__init__(message, param=param, at=at, retry_after_seconds=retry_after_seconds)
        self.limits = limits


class RateLimited(LimitReached):
    """Calls, or tokens, in a time or at once: coming back later helps."""

    code = "rate_limit_exceeded"


class InsufficientQuota(LimitReached):
    """The caller's budget is used up, so that coming back later is of no use."""

    type, code = "insufficient_quota", "insufficient_quota"


class Draining(GatewayError):
    """This process is about to end: the call is for another one, by another connection."""

    status, code, closes = 503, "draining", True


class OutOfMemory(GatewayError):
    """What this process may hold is held: the body was not read, or not to its end."""

    status, code, closes = 503, "gateway_out_of_memory", True


class NoMemoryForAnswer(OutOfMemory):
    """The body was read to its end, and its answer cannot be held until it is whole: no engine's fault."""

    closes = False


class NoInstance(GatewayError):
    """No engine of a role that the call needs is up."""

    status, code = 503, "no_instance"


class GenerationsDiffer(NoInstance):
    """Engines of both roles are up, and none of the one understands one of the other."""

    code = "generations_differ"


class NotServed(GatewayError):
    """No engine here could do it, however well all of them are."""

    status, code = 501, "not_served_here"


class CallsHeld(GatewayError):
    """The engines of its model are paused, asleep, or get other weights, and it has waited long enough."""

    status, code = 503, "calls_held"


class CallAborted(GatewayError):
    """An operator ended it, as the engines of its model are about to do something else."""

    status, code = 503, "aborted"


class GatewayShort(GatewayError):
    """This host has no socket to spare (descriptors, ports, memory): no engine's fault."""

    status, code = 503, "gateway_short"


class CallTooLong(GatewayError):
    """A call that took longer, in all, than it may: the limit's fault alone."""

    status, code = 504, "call_timeout"


class GaveWay(GatewayError):
    """A more urgent call has the place of this one, which goes on later; no client sees this."""

    status, code = 503, "gave_way"


class EngineRefused(GatewayError):
    """The engine could not be reached: nothing was sent, so trying another is safe."""

    status, code, worth_retrying = 502, "engine_refused", True


class EngineFailed(GatewayError):
    """The engine took the request and then failed.

    A retry costs the work again but no correctness: nothing of the answer went out yet.

    Attributes:
        broke_off: Its connection ended before its answer did, so its process may have, too.
    """

    status, code, worth_retrying = 502, "engine_failed", True

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        at: str = "",
        retry_after_seconds: int | None = None,
        broke_off: bool = False,
    ) -> None:
        super().__init__(message, param=param, at=at, retry_after_seconds=retry_after_seconds)
        self.broke_off = broke_off


class EngineGaveUp(EngineFailed):
    """The engine ended the request by itself (`finish_reason: "abort"`)."""


class KvNotLoaded(GatewayError):
    """KV that did not come, as the engine says that was to read it; no fault of the call."""

    code = "kv_not_loaded"


class EngineTooSlow(EngineFailed):
    status, code = 504, "engine_timeout"


class EngineFrozen(EngineTooSlow):
    """The engine, or the one that it waits for, was given up: it does nothing any more (gateway/liveness)."""


class KvExpired(EngineTooSlow):
    """Prefill may have dropped its KV before decode read it: decode's tokens may be wrong."""

    code = "kv_expired"


class EngineBusy(EngineFailed):
    """The engine's own admission said no (503)."""

    status, code = 503, "engine_overloaded"


class CallBreaksEngines(GatewayError):
    """Two engines failed on the call in the same way: it is the call, not they."""

    status, code = 502, "call_breaks_engines"


class EngineRejected(GatewayError):
    """The engine says that the call is wrong (4xx): its answer is the client's, word for word."""

    def __init__(
        self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes, *, at: str = ""
    ) -> None:
        super().__init__(f"the engine answered {status}", at=at)
        self.answer_status = status
        self.headers = headers
        self.body = body
