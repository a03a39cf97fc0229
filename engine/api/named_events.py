"""Events that have their type twice: as the name of the event, and in its payload."""

from typing import Any

from pdgate.protocols import sse


def event(name: str, payload: Any) -> bytes:
    return b"event: " + name.encode() + b"\n" + sse.event(payload)
