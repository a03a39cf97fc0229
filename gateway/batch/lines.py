"""Lines of a batch: what is asked for in one, and what is written of it.

    in      {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
    out     {"id": "batch_req_...", "custom_id": "a", "response": {"status_code": 200, ...}, "error": null}
    error   the same with another status, or {..., "response": null, "error": {"code", "message"}}

A line that is no call has its error line, and costs no other one anything. Bodies stay the bytes that
they came as, less the white space between: an answer may be written over several lines.

Source: OpenAI API reference, "The request input object" and "The request output object" of batches.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import BinaryIO, Final

import msgspec

from pdgate.protocols.call import parse_object
from pdgate.protocols.errors import GatewayError
from pdgate.protocols.fields import is_true, value

LONGEST_ID: Final = 512
MOST_AROUND_BYTES: Final = 4096
"""Of a line, beside the body of its call."""
SKIPPED_BYTES: Final = 1 << 20


class AskedLine(msgspec.Struct, frozen=True):
    """One line as it stands in a file."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class BatchLine(msgspec.Struct, frozen=True):
    """A call. `number` is that of its line in the file, from 1."""

    number: int
    custom_id: str
    body: bytes


class BrokenLine(msgspec.Struct, frozen=True):
    """A line that is no call, and why. `custom_id` is empty where none can be read."""

    number: int
    custom_id: str
    code: str
    message: str


class LineResult(msgspec.Struct, frozen=True):
    """What is written of a line; `failed`: to the file of errors."""

    number: int
    failed: bool
    row: bytes


_asked = msgspec.json.Decoder(AskedLine)


class Reader:
    """Reader of the lines of one file, in their order.

    A custom_id may come once: of the second line that has it there would be no telling.
    """

    def __init__(self, file: BinaryIO, endpoint: str, most_body_bytes: int) -> None:
        self._file = file
        self._endpoint = endpoint
        self._most_bytes = most_body_bytes + MOST_AROUND_BYTES
        self._seen: set[bytes] = set()

    def __iter__(self) -> Iterator[BatchLine | BrokenLine]:
        for number, raw in numbered(self._file, self._most_bytes):
            yield self._read(number, raw)

    def _read(self, number: int, raw: bytes | None) -> BatchLine | BrokenLine:
        if raw is None:
            return BrokenLine(
                number, "", "line_too_long", f"line {number} is longer than a call may be"
            )
        try:
            # As calls are read: nothing of a line may cost more than it does there.
            parse_object(raw)
            asked = _asked.decode(raw)
        except (GatewayError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            return BrokenLine(number, _custom_id(raw), "invalid_line", f"line {number}: {error}")
        if why := self._refusal(asked):
            code, said = why
            return BrokenLine(number, asked.custom_id[:LONGEST_ID], code, f"line {number}: {said}")
        return BatchLine(number, asked.custom_id, bytes(asked.body))

    def _refusal(self, asked: AskedLine) -> tuple[str, str] | None:
        if not asked.custom_id or len(asked.custom_id) > LONGEST_ID:
            return "invalid_custom_id", f"custom_id has 1 to {LONGEST_ID} characters"
        mark = blake2b(asked.custom_id.encode("utf-8", "replace"), digest_size=16).digest()
        if mark in self._seen:
            return "duplicate_custom_id", f"custom_id {asked.custom_id!r} was there before"
        self._seen.add(mark)
        if asked.method.upper() != "POST":
            return "invalid_method", "method is POST"
        if asked.url != self._endpoint:
            return "mismatched_endpoint", f"url is not {self._endpoint}, which the batch is of"
        try:
            fields = parse_object(bytes(asked.body))
            streams = is_true(value(fields, "stream"))
        except GatewayError as error:
            return "invalid_body", str(error)
        if streams:
            return "streaming_not_supported", "a line of a batch cannot stream"
        return None


def numbered(file: BinaryIO, most_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Lines that are not blank, with their numbers; None for one that is longer."""
    number = 0
    while raw := file.readline(most_bytes + 1):
        number += 1
        if len(raw) > most_bytes and not raw.endswith(b"\n"):
            while raw and not raw.endswith(b"\n"):
                raw = file.readline(SKIPPED_BYTES)
            yield number, None
        elif raw.strip():
            yield number, raw


def answered(line: BatchLine, status: int, request_id: str, body: bytes) -> LineResult:
    """What an engine, or the gateway, answered to the call; JSON."""
    try:
        said = msgspec.Raw(msgspec.json.format(body, indent=-1))
    except (msgspec.MsgspecError, RecursionError):
        return errored(
            BrokenLine(line.number, line.custom_id, "unreadable_answer", "it is no JSON")
        )
    response = {"status_code": status, "request_id": request_id, "body": said}
    return _result(line.number, line.custom_id, status >= 400, response, None)


def errored(broken: BrokenLine) -> LineResult:
    error = {"code": broken.code, "message": broken.message}
    return _result(broken.number, broken.custom_id or None, True, None, error)


def expired(line: BatchLine) -> LineResult:
    said = "this request was not executed before the completion window was over"
    return errored(BrokenLine(line.number, line.custom_id, "batch_expired", said))


def _result(
    number: int, custom_id: str | None, failed: bool, response: object, error: object
) -> LineResult:
    row = {
        "id": f"batch_req_{number}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return LineResult(number, failed, msgspec.json.encode(row) + b"\n")


def _custom_id(raw: bytes) -> str:
    """Of a line that is wrong elsewhere."""
    try:
        found = msgspec.json.decode(raw, type=_Named).custom_id
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ""
    return found[:LONGEST_ID]


class _Named(msgspec.Struct):
    custom_id: str = ""
