"""The calls that are measured, and what engines answer to them: bytes made beforehand.

    whole_200, whole_8k    one JSON answer, to a body of that many bytes
    stream_8, stream_72    as many events; what one event costs is the difference, a 64th

A call goes over a prefill engine and a decode engine, as `vllm-nixl` wants it. The engine here
answers to decode only if it was told of prefill's blocks.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.guard.memory_wire import WrongAnswer, unchunked

PATH = "/v1/chat/completions"
MODEL = "some-model"
KEY = "sk-pdgate-guard"
LAST_CHUNK = b"0\r\n\r\n"
CLOSE = b"connection: close\r\n"

_ENGINE_HEADERS = b"date: Sun, 22 Nov 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
_BLOCKS = list(range(1, 17))
TOLD_BYTES = 600
BLOCKS_WRITTEN = b'"remote_block_ids":[[1,2,3,'


@dataclass(frozen=True, slots=True)
class Scenario:
    """
    Attributes:
        request: Head and body.
        end: What the last piece of the answer ends with.
        body: Of the answer.
        events: Of a stream; 0 for a whole answer.
    """

    name: str
    request: bytes
    end: bytes
    body: bytes
    events: int = 0

    def check(self, answer: bytes) -> None:
        """Raises WrongAnswer."""
        body = unchunked(answer) if self.events else answer.partition(b"\r\n\r\n")[2]
        if not answer.startswith(b"HTTP/1.1 200") or body != self.body:
            raise WrongAnswer(f"{self.name}: {answer[:400]!r}")


def written(found: Any) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode()


def _request(prompt_bytes: int, max_tokens: int, *, stream: bool) -> bytes:
    """Its body has `prompt_bytes` and some more; 200 in all for the shortest."""
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "x" * prompt_bytes}],
        "max_tokens": max_tokens,
        "temperature": 0.7,
    }
    if stream:
        asked["stream"] = True
    body = written(asked)
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: gateway:8000\r\nUser-Agent: guard\r\nAccept: */*\r\n"
        f"Authorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _event(number: int, finish: str | None = None) -> bytes:
    """As vLLM writes them, 230 bytes or so."""
    chunk = {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1795000000,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "delta": {"content": f" token {number:04d}"},
                "logprobs": None,
                "finish_reason": finish,
                "token_ids": None,
            }
        ],
    }
    return b"data: %b\n\n" % written(chunk)


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def _whole(found: Any, headers: bytes = b"") -> list[bytes]:
    body = written(found)
    head = b"HTTP/1.1 200 OK\r\n%b%bcontent-length: %d\r\ncontent-type: application/json\r\n\r\n"
    return [head % (_ENGINE_HEADERS, headers, len(body)) + body]


def _stream(events: Sequence[bytes]) -> list[bytes]:
    head = (
        b"HTTP/1.1 200 OK\r\n%bcontent-type: text/event-stream; charset=utf-8\r\n"
        b"transfer-encoding: chunked\r\n\r\n" % _ENGINE_HEADERS
    )
    return [head + _chunk(events[0]), *map(_chunk, events[1:]), LAST_CHUNK]


_COMPLETION = {
    "id": "chatcmpl-0123456789abcdef0123456789abcdef",
    "object": "chat.completion",
    "created": 1795000000,
    "model": MODEL,
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": " token" * 16},
            "finish_reason": "length",
        }
    ],
    "usage": {"prompt_tokens": 40, "completion_tokens": 16, "total_tokens": 56},
}
KV: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [_BLOCKS],
    "remote_engine_id": "0123456789abcdef",
    "remote_request_id": "chatcmpl-0123456789abcdef",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
}
PREFILLED = _whole(_COMPLETION | {"kv_transfer_params": KV})


def _whole_scenario(name: str, prompt_bytes: int) -> Scenario:
    body = written(_COMPLETION)
    return Scenario(name, _request(prompt_bytes, 16, stream=False), body[-30:], body)


def _stream_scenario(events: int) -> Scenario:
    """`events` with the last two, which say why and that it is over."""
    body = b"".join(_events(events))
    request = _request(88, events, stream=True)
    return Scenario(f"stream_{events}", request, LAST_CHUNK, body, events)


def _events(count: int) -> list[bytes]:
    return [*map(_event, range(count - 2)), _event(count - 2, "length"), b"data: [DONE]\n\n"]


SHORT, LONG = 8, 72

SCENARIOS = (
    _whole_scenario("whole_200", 102),
    _whole_scenario("whole_8k", 8 << 10),
    _stream_scenario(SHORT),
    _stream_scenario(LONG),
)


@dataclass(frozen=True, slots=True)
class Answers:
    """What the engines say (a `Script`), by a mark in the request."""

    by_tokens: Mapping[bytes, Sequence[bytes]] = field(
        default_factory=lambda: {
            b'"max_tokens":16,': _whole(_COMPLETION),
            b'"max_tokens":%d,' % SHORT: _stream(_events(SHORT)),
            b'"max_tokens":%d,' % LONG: _stream(_events(LONG)),
        }
    )

    def __call__(self, request: bytes) -> Sequence[bytes]:
        # What is behind the prompt: to look through that would be the most of a long call.
        told = request[-TOLD_BYTES:]
        if b'"do_remote_decode":true' in told:
            return PREFILLED
        if BLOCKS_WRITTEN in told:
            for mark, pieces in self.by_tokens.items():
                if mark in told:
                    return pieces
        if request.startswith(b"GET /v1/models "):
            return _whole({"object": "list", "data": [{"id": MODEL}]}, CLOSE)
        if request.startswith((b"GET /health ", b"GET /metrics ", b"GET /is_sleeping ")):
            return _whole({}, CLOSE)
        raise WrongAnswer(f"an engine was asked: {request[:400]!r}")
