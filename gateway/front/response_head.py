"""Response heads: which of an engine's headers a client gets, and how a head is written, byte by byte."""

from http import HTTPStatus
from typing import Final

from pdgate.forwarders.base import Answer
from pdgate.protocols.call import Headers

CLOSE: Final = b"connection: close\r\n"

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}

STREAM_TYPE: Final = b"text/event-stream; charset=utf-8"

_STREAM: Final = b"text/event-stream"
_OF_STREAMS: Final = [
    (b"content-type", STREAM_TYPE),
    (b"cache-control", b"no-cache"),
    # Tells nginx and its like to pass events on at once.
    (b"x-accel-buffering", b"no"),
]
_PASSED: Final = (b"content-type", b"content-length", b"content-encoding")


def head_lines(status: int, headers: Headers, more: bytes = b"") -> bytes:
    """`more` is whole lines."""
    return b"".join((status_line(status), header_lines(headers), more, b"\r\n"))


def status_line(status: int) -> bytes:
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def header_lines(headers: Headers) -> bytes:
    lines: list[bytes] = []
    for name, found in headers:
        lines += (name, b": ", found, b"\r\n")
    return b"".join(lines)


_LINES_OF_STREAMS: Final = header_lines(_OF_STREAMS)


def streams(answer: Answer) -> bool:
    """By what the engine sends, not by what was asked for."""
    for name, found in answer.headers:
        if name == b"content-type":
            return found.startswith(_STREAM)
    return False


def answer_head(
    answer: Answer,
    is_stream: bool,
    call_id: str,
    more: Headers = (),
    wanted: frozenset[bytes] = frozenset(),
) -> Headers:
    """What concerns the body, and what is `wanted`; nothing else of the engine's head gets out."""
    if is_stream:
        head = list(_OF_STREAMS)
    else:
        head = [found for found in answer.headers if found[0] in _PASSED]
    if wanted:
        head += [found for found in answer.headers if found[0] in wanted]
    return [*head, (b"x-request-id", call_id.encode()), *more]


def answer_lines(
    answer: Answer, call_id: str, more: bytes, wanted: frozenset[bytes]
) -> tuple[bytes, bool, bool]:
    """The same as lines; whether it is a stream; and whether they tell the body's length. `more` is whole lines."""
    lines: list[bytes] = []
    sized = is_stream = False
    # A dictionary of them takes three times as long.
    for name, found in answer.headers:
        if name in _PASSED:
            lines += (name, b": ", found, b"\r\n")
            if name == b"content-length":
                sized = True
            elif name == b"content-type" and found.startswith(_STREAM):
                is_stream = True
    if is_stream:
        lines, sized = [_LINES_OF_STREAMS], False
    lines += (b"x-request-id: ", call_id.encode(), b"\r\n")
    if wanted:
        lines.append(header_lines([found for found in answer.headers if found[0] in wanted]))
    lines.append(more)
    return b"".join(lines), is_stream, sized


class CommonHeadLines:
    """The lines that many answers have in common: uvicorn's own, of which it makes a new list each second, and
    those about a key's limits, of which most of its answers have the same."""

    def __init__(self) -> None:
        self._headers: Headers | None = None
        self._lines = b""
        self._told: Headers = ()
        self._told_lines = b""

    def head(self, status: int, headers: Headers, lines: bytes) -> bytes:
        """A whole head: `headers` are uvicorn's own, `lines` those of this answer."""
        if headers is not self._headers:
            self._headers, self._lines = headers, header_lines(headers)
        # As a call of `status_line` it would be a function more for each answer.
        first = _STATUS_LINES.get(status) or status_line(status)
        return b"".join((first, self._lines, lines, b"\r\n"))

    def told(self, headers: Headers) -> bytes:
        """`header_lines` of these, which are not written into."""
        if headers is not self._told:
            self._told, self._told_lines = headers, header_lines(headers)
        return self._told_lines
