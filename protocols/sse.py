"""Server-sent events, as OpenAI-compatible engines write them.

An event is "data: <payload>" and a blank line; the last one is "data: [DONE]".
Only `data` fields are read; comments and other fields pass through untouched.

Source: WHATWG HTML, section 9.2 "Server-sent events".
"""

import re
from typing import Any, Final

import msgspec

DONE = b"data: [DONE]\n\n"
MAX_EVENT_BYTES = 8 << 20
PIECE_BYTES = 64 << 10
"""Of an event of which not all is here."""

MOST_LINES = 10_000
"""Of the whole events in one read, of 256 KB: engines write a hundred bytes in a line, and more."""

EVENT_ENDS: Final = (b"\n\n", b"\n\r\n")
"""The blank line: of most engines, and of those that end lines with CRLF, as servers of sse-starlette do."""

_BLANK_LINE = re.compile(rb"\n\r?\n")


def event(payload: Any) -> bytes:
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


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


def is_crowded(whole: bytes) -> bool:
    """Whether there are more lines than are read in one callback: blank ones take 1.5 us each."""
    return len(whole) > MOST_LINES and whole.count(b"\n") + whole.count(b"\r") > MOST_LINES


def events(whole: bytes) -> list[bytes]:
    """What `WholeEvents` let through, one by one, each with its blank line."""
    if whole.find(b"\n\n") == len(whole) - 2 and whole.find(b"\n\r\n") < 0:
        return [whole]
    found = []
    start = 0
    for blank in _BLANK_LINE.finditer(whole):
        found.append(whole[start : blank.end()])
        start = blank.end()
    if start < len(whole):
        found.append(whole[start:])
    return found


def cut_events(stream: bytes) -> tuple[list[bytes], bytes]:
    """The whole events in it, each with its blank line, and what comes behind the last one."""
    found = events(stream)
    if found and not found[-1].endswith(EVENT_ENDS):
        return found[:-1], found[-1]
    return found, b""


class WholeEvents:
    """Lets only whole events through, however the network cut them.

    For a relay. Where the engine breaks off inside an event, the client then has none of it: its
    parser would take it for the whole one. An event that grows beyond MAX_EVENT_BYTES goes out in
    pieces. What is kept of it is not one buffer that grows: those of many streams that grow at once leave
    holes that none of them fits into, three times of what they hold.

    Attributes:
        rest: What came after the last blank line: the last PIECE_BYTES of it, and not less than two.
        size: All of it, in bytes.
    """

    def __init__(self) -> None:
        self.rest = bytearray()
        self._before: list[bytes] = []
        self._before_bytes = 0

    @property
    def size(self) -> int:
        return self._before_bytes + len(self.rest)

    def left(self) -> bytes:
        """All that came after the last blank line."""
        return b"".join([*self._before, bytes(self.rest)])

    def feed(self, chunk: bytes) -> bytes:
        """All up to the last blank line."""
        rest = self.rest
        if not rest and chunk.endswith(b"\n\n"):
            # As nearly all do.
            return chunk
        # The blank line may have begun in what was searched before.
        start = max(0, len(rest) - 2)
        rest += chunk
        end = rest.rfind(b"\n\n", start) + 2
        if (other := rest.rfind(b"\n\r\n", start)) >= 0:
            end = max(end, other + 3)
        if end == 1:
            end = len(rest) if self._before_bytes + len(rest) > MAX_EVENT_BYTES else 0
        if end == 0:
            if len(rest) > PIECE_BYTES:
                # A blank line may have begun.
                self._before.append(bytes(rest[:-2]))
                self._before_bytes += len(rest) - 2
                del rest[:-2]
            return b""
        out = bytes(rest[:end])
        del rest[:end]
        if self._before:
            out = b"".join([*self._before, out])
            self._before, self._before_bytes = [], 0
        return out


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
