"""Failures of engines, in the words that a client may read: roles, no addresses."""

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from pdgate.protocols.call import Headers
from pdgate.protocols.errors import (
    EngineBusy,
    EngineFailed,
    EngineGaveUp,
    EngineRejected,
    GatewayError,
    KvNotLoaded,
)
from pdgate.protocols.instance import Instance, Role

# What describes the answer to the client; the rest is between the engine and us.
KEPT = frozenset(
    {b"content-language", b"content-type", b"retry-after", b"retry-after-ms", b"www-authenticate"}
)
MAX_RETRY_AFTER_SECONDS = 24 * 3600

_NOT_LOADED: Final = f'"code":"{KvNotLoaded.code}"'.encode()
"""In the error of `pdgate engine`; vLLM ends such a call with a finish_reason."""

_is_seconds = re.compile(rb"[0-9]{1,9}").fullmatch

_NAMES = {
    Role.PREFILL: "the prefill engine",
    Role.DECODE: "the decode engine",
    Role.ENCODE: "the encode engine",
}


def naming(engine: Instance) -> str:
    """How messages call it."""
    return _NAMES.get(engine.role, "the engine")


def failure(status: int, headers: Headers, body: bytes, engine: Instance) -> GatewayError:
    """The error for an answer that is not 2xx."""
    if 400 <= status < 500:
        kept = [(name, value) for name, value in headers if name in KEPT]
        return EngineRejected(status, kept, body, at=engine.id)
    if status == 503:
        return EngineBusy(
            f"{naming(engine)} takes no more requests for now",
            at=engine.id,
            retry_after_seconds=retry_after(headers, datetime.now(UTC)),
        )
    if _NOT_LOADED in body:
        # As where another engine says so by a finish_reason: what two engines say of this is not the call's fault.
        return EngineGaveUp(f"{naming(engine)} did not get the KV of the prompt", at=engine.id)
    return EngineFailed(f"{naming(engine)} answered with status {status}", at=engine.id)


def retry_after(headers: Headers, now: datetime) -> int | None:
    """Seconds, 0 to a day; None if the header is missing or says nothing sensible.

    Source: RFC 9110, section 10.2.3: seconds or a date.
    """
    for name, value in headers:
        if name != b"retry-after":
            continue
        if _is_seconds(value):
            return min(int(value), MAX_RETRY_AFTER_SECONDS)
        try:
            date = parsedate_to_datetime(value.decode("ascii"))
        except (ValueError, OverflowError):
            return None
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        return max(0, min(round((date - now).total_seconds()), MAX_RETRY_AFTER_SECONDS))
    return None
