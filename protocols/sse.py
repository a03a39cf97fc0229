"""Server-sent events, as OpenAI-compatible engines write them.

An event is "data: <payload>" and a blank line; the last one is "data: [DONE]".
Only `data` fields are read; comments and other fields pass through untouched.

Source: WHATWG HTML, section 9.2 "Server-sent events".
"""

import re
from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"
MAX_EVENT_BYTES = 8 << 20
HELD_BYTES = 256 << 10
"""Of an event that has only begun, before a relay passes it on in pieces."""

_BLANK_LINE = re.compile(rb"\n\r?\n")


def event(payload: Any) -> bytes:
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


def whole(held: bytes, chunk: bytes) -> tuple[bytes, bytes]:
    """held + chunk up to its last blank line, and the rest, to be held.

    For a relay, which lets a chunk that ends with an event through as it is. Where the engine
    breaks off inside an event, the client then has none of it: its parser would take it for
    the whole one. An event that grows beyond HELD_BYTES goes out in pieces.
    """
    data = held + chunk if held else chunk
    # The blank line may have begun in what was searched before.
    start = max(0, len(held) - 2)
    end = data.rfind(b"\n\n", start) + 2
    if (other := data.rfind(b"\n\r\n", start)) >= 0:
        end = max(end, other + 3)
    if end == 1:
        end = len(data) if len(data) > HELD_BYTES else 0
    return data[:end], data[end:]


def payload(event_bytes: bytes) -> bytes:
    """The data of one event: its `data` lines joined; empty for a comment."""
    if event_bytes.startswith(b"data: ") and event_bytes.find(b"\n") == len(event_bytes) - 2:
        # As nearly all are, and twenty times quicker.
        return event_bytes[6:-2]
    lines = (
        line[5:].removeprefix(b" ")
        for line in event_bytes.splitlines()
        if line.startswith(b"data:")
    )
    return b"\n".join(lines)


class Splitter:
    """Cuts a byte stream into whole events, however the network cut it.

    Each event comes with its blank line, so joining what `feed` returned and `rest`
    gives the stream back byte for byte.
    """

    def __init__(self) -> None:
        self._rest = b""

    @property
    def rest(self) -> bytes:
        """What came after the last whole event."""
        return self._rest

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that this chunk completes. Raises ValueError for an endless one."""
        data = self._rest + chunk if self._rest else chunk
        events = []
        start = 0
        for blank in _BLANK_LINE.finditer(data):
            events.append(data[start : blank.end()])
            start = blank.end()
        self._rest = data[start:]
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ValueError(f"an event is longer than {MAX_EVENT_BYTES} bytes")
        return events
