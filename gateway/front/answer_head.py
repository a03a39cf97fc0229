"""The head of the answer that a client gets, made of the one that the engine sent."""

from pdgate.forwarders.base import Answer
from pdgate.protocols.call import Headers

STREAM_TYPE = b"text/event-stream; charset=utf-8"

_PASSED = (b"content-type", b"content-length", b"content-encoding")


def streams(answer: Answer) -> bool:
    """By what the engine sends, not by what was asked for."""
    for name, found in answer.headers:
        if name == b"content-type":
            return found.startswith(b"text/event-stream")
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
        head = [
            (b"content-type", STREAM_TYPE),
            (b"cache-control", b"no-cache"),
            # Tells nginx and its like to pass events on at once.
            (b"x-accel-buffering", b"no"),
        ]
    else:
        head = [found for found in answer.headers if found[0] in _PASSED]
    if wanted:
        head += [found for found in answer.headers if found[0] in wanted]
    return [*head, (b"x-request-id", call_id.encode()), *more]
