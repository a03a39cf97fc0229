"""Asks at a fixed rate, whatever the answers take, and looks at every answer.

Half of the calls are streams. A call is named by its number, which is its prompt, so engines can
say what befell it, and its answer can be told from any other.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final

from benchmarks.soak.engines import MODEL, text_of

DEADLINE_SECONDS: Final = 30.0
SHOWN: Final = 10


@dataclass(slots=True)
class Answers:
    """
    Attributes:
        failed: Calls that got an error, in whatever way, and what it said.
        wrong: Calls that got a good answer to something else: there must be none.
        slow: Calls that were not over after DEADLINE_SECONDS, and when they were given up, in
            seconds since the first call.
        longest_pause: Seconds for which this program itself did not run, which is the machine's
            fault and may make calls slow.
    """

    asked: int = 0
    good: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    slow: dict[str, float] = field(default_factory=dict)
    longest_pause: float = 0.0
    began: float = field(default_factory=perf_counter)


class Failed(Exception):
    """The gateway said that it could not, or broke off."""


async def ask_for(
    port: int, calls_per_second: float, seconds: float, each: Callable[[Answers], None]
) -> Answers:
    """`each` is told of where things stand about once a second."""
    answers, free = Answers(), _Connections(port)
    began = told = perf_counter()
    async with asyncio.TaskGroup() as calls:
        while (now := perf_counter()) - began < seconds:
            answers.asked += 1
            calls.create_task(_one(str(answers.asked), free, answers))
            if now - told >= 1:
                told = now
                each(answers)
            due = max(now, began + answers.asked / calls_per_second)
            await asyncio.sleep(due - now)
            answers.longest_pause = max(answers.longest_pause, perf_counter() - due)
    free.close()
    return answers


class _Connections:
    """Kept ones, as clients keep them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def take(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._free:
            reader, writer = self._free.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self._port)

    def give(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._free.append((reader, writer))

    def close(self) -> None:
        for _, writer in self._free:
            writer.close()


async def _one(name: str, free: _Connections, answers: Answers) -> None:
    streams = int(name) % 2 == 0
    reader, writer = await free.take()
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            text = await _text(name, streams, reader, writer)
    except TimeoutError:
        answers.slow[name] = round(perf_counter() - answers.began, 1)
        writer.close()
    except Failed as error:
        answers.failed[name] = str(error)
        writer.close()
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        answers.failed[name] = f"broke off: {error!r}"
        writer.close()
    else:
        free.give(reader, writer)
        if text == "".join(text_of(name)):
            answers.good += 1
        else:
            answers.wrong[name] = text


async def _text(
    name: str, streams: bool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> str:
    """Raises Failed, and what reading raises."""
    body = json.dumps({"model": MODEL, "prompt": name, "stream": streams}).encode()
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    chunked = b"transfer-encoding: chunked" in head
    found = await (_chunks(reader) if chunked else _of_length(reader, head))
    if not head.startswith(b"http/1.1 200 "):
        raise Failed(found.decode())
    if not streams:
        return _said(found)
    events = [event.removeprefix(b"data: ") for event in found.split(b"\n\n") if event]
    if events[-1:] != [b"[DONE]"]:
        raise Failed("the stream has no end")
    return "".join(_said(event) for event in events[:-1])


def _said(data: bytes) -> str:
    answer = json.loads(data)
    if "error" in answer:
        raise Failed(answer["error"]["message"])
    text: str = answer["choices"][0]["text"]
    return text


async def _of_length(reader: asyncio.StreamReader, head: bytes) -> bytes:
    length = next(
        int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")
    )
    return await reader.readexactly(length)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    found = []
    while length := int(await reader.readuntil(b"\r\n"), 16):
        found.append((await reader.readexactly(length + 2))[:-2])
    await reader.readexactly(2)
    return b"".join(found)
