"""The head of the answer that a client gets, made of the one that the engine sent."""

from typing import Final

from pdgate.forwarders.base import Answer
from pdgate.gateway.front.head_lines import header_lines
from pdgate.protocols.call import Headers

STREAM_TYPE: Final = b"text/event-stream; charset=utf-8"

_STREAM: Final = b"text/event-stream"
_OF_STREAMS: Final = [
    (b"content-type", STREAM_TYPE),
    (b"cache-control", b"no-cache"),
    # Tells nginx and its like to pass events on at once.
    (b"x-accel-buffering", b"no"),
]
_LINES_OF_STREAMS: Final = header_lines(_OF_STREAMS)
_PASSED: Final = (b"content-type", b"content-length", b"content-encoding")


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
    answer: Answer, call_id: str, more: Headers, wanted: frozenset[bytes]
) -> tuple[bytes, bool, bool]:
    """The same as lines; whether it is a stream; and whether they tell the body's length."""
    lines: list[bytes] = []
    sized = is_stream = False
    for name, found in answer.headers:
        if name == b"content-type":
            if found.startswith(_STREAM):
                is_stream = True
                break
        elif name == b"content-length":
            sized = True
        elif name != b"content-encoding":
            continue
        lines += (name, b": ", found, b"\r\n")
    if is_stream:
        lines, sized = [_LINES_OF_STREAMS], False
    lines += (b"x-request-id: ", call_id.encode(), b"\r\n")
    if wanted:
        lines.append(header_lines([found for found in answer.headers if found[0] in wanted]))
    if more:
        lines.append(header_lines(more))
    return b"".join(lines), is_stream, sized
