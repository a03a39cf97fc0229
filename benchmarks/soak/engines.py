"""python -m benchmarks.soak.engines --faults 0.01 --seed 1 --report FILE

Two prefill and two decode engines on free ports of 127.0.0.1. Their URLs are printed as a line of
JSON; at SIGTERM they write down which faults each call met: call number -> [[asked for, Fault]].
Decode's answer is made of the prompt, so that whoever asked can tell its own.
"""

import argparse
import asyncio
import json
import signal
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.soak.faults import PREFILLED, STREAM, WHOLE, Fault, Plan

EVENTS: Final = 8
EVENT_SECONDS: Final = 0.01
MODEL: Final = "soak"

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n"
_LENGTH = b"content-length: %d\r\n\r\n"
_STREAM_HEAD = _HEAD % b"text/event-stream" + b"transfer-encoding: chunked\r\n\r\n"


def text_of(prompt: str) -> list[str]:
    """The pieces of the answer."""
    return [f"{prompt}-{number} " for number in range(EVENTS)]


class Engine:
    def __init__(self, role: str, plan: Plan, met: dict[str, list[tuple[str, str]]]) -> None:
        self._role = role
        self._plan = plan
        self._met = met

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection can be used again."""
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET "):
            writer.write(_json(_probe(head)))
            return True
        length = next(
            int(line[15:])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        asked = json.loads(await reader.readexactly(length))
        what = PREFILLED if self._role == "prefill" else STREAM if asked.get("stream") else WHOLE
        fault = self._plan.draw()
        if fault is not None:
            self._met[asked["prompt"]].append((what, fault))
        async for piece in _pieces(asked["prompt"], what):
            if not await _spoilt(writer, piece, fault):
                return False
        return True


async def _pieces(prompt: str, what: str) -> AsyncIterator[bytes]:
    pieces = text_of(prompt)
    if what == PREFILLED:
        blocks = {"remote_block_ids": [[1]], "remote_engine_id": "e", "remote_host": "h"}
        yield _json(_completion("".join(pieces[:1]), "length") | {"kv_transfer_params": blocks})
    elif what == WHOLE:
        yield _json(_completion("".join(pieces), "stop"))
    else:
        yield _STREAM_HEAD
        for number, piece in enumerate(pieces):
            finish = "stop" if number == len(pieces) - 1 else None
            yield _chunk(b"data: %b\n\n" % json.dumps(_completion(piece, finish)).encode())
            await asyncio.sleep(EVENT_SECONDS)
        yield _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


async def _spoilt(writer: asyncio.StreamWriter, piece: bytes, fault: Fault | None) -> bool:
    """Sends the piece as the fault has it; whether there is more to send."""
    match fault:
        case None:
            writer.write(piece)
            await writer.drain()
            return True
        case Fault.REFUSES:
            body = b'{"error": {"message": "by plan"}}'
            head = b"HTTP/1.1 500 No\r\ncontent-type: application/json\r\n"
            writer.write(head + _LENGTH % len(body) + body)
        case Fault.LEAVES:
            pass
        case Fault.HALF_HEAD:
            writer.write(piece[:20])
        case Fault.HALF_ANSWER:
            writer.write(piece if piece is _STREAM_HEAD else piece[:-10])
            if piece is _STREAM_HEAD:
                # A first event that is whole: the client has it before the end comes.
                writer.write(_chunk(b"data: %b\n\n" % json.dumps(_completion("", None)).encode()))
    await writer.drain()
    return False


def _completion(text: str, finish: str | None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return {"id": "cmpl-1", "object": "text_completion", "model": MODEL, "choices": [choice]}


def _probe(head: bytes) -> dict[str, Any]:
    cards = [{"id": MODEL, "object": "model"}]
    return {"object": "list", "data": cards} if b"/v1/models" in head else {}


def _json(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return _HEAD % b"application/json" + _LENGTH % len(data) + data


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak.engines")
    parser.add_argument("--faults", type=float, default=0.01, help="share of all requests")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, required=True, help="where to write the faults")
    asked = parser.parse_args()
    plan, met = Plan(asked.faults, asked.seed), defaultdict[str, list[tuple[str, str]]](list)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with AsyncExitStack() as stack:
        urls: dict[str, list[str]] = {"prefill": [], "decode": []}
        for role in ("prefill", "prefill", "decode", "decode"):
            server = await asyncio.start_server(Engine(role, plan, met).serve, "127.0.0.1", 0)
            await stack.enter_async_context(server)
            urls[role].append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        print(json.dumps(urls), flush=True)
        await ended.wait()
        asked.report.write_text(json.dumps(met), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
