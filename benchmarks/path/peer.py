"""Engines and clients of the guard's calls on real sockets, as told by the process that is measured.

peer                             gateway
  | "PREFILL DECODE" (ports) ---->  |
  | <----------------- "PORT"       |
  | "ready" ---------------------->  |  for each scenario, when all is warm
  | <----------------- "go"         |
  | "done" ----------------------->  |
"""

import asyncio
import sys
from collections.abc import Sequence
from typing import Final, cast

from benchmarks.guard.memory_wire import HOST, WrongAnswer
from benchmarks.guard.scenarios import Answers, Scenario
from benchmarks.safety.runs import SHOWN, WARM_CALLS

CLIENTS: Final = 4
EVENT_SECONDS: Final = 0.001
"""Between two pieces, so that each arrives on its own, as tokens do."""

_answers = Answers()


class Engine(asyncio.Protocol):
    """A connection to one."""

    def __init__(self) -> None:
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, end, body = self._read.partition(b"\r\n\r\n")
        _, found, rest = head.lower().partition(b"\r\ncontent-length:")
        if not end or (found and len(body) < int(rest.partition(b"\r\n")[0])):
            return
        request, self._read = self._read, b""
        self._say(_answers(request), 0)

    def _say(self, pieces: Sequence[bytes], number: int) -> None:
        self._transport.write(pieces[number])
        if number + 1 < len(pieces):
            loop = asyncio.get_running_loop()
            loop.call_later(EVENT_SECONDS, self._say, pieces, number + 1)
        elif b"connection: close" in pieces[0]:
            self._transport.close()


async def client(port: int, scenario: Scenario, calls: int) -> None:
    """One call after another on one connection. Raises WrongAnswer."""
    reader, writer = await asyncio.open_connection(HOST, port)
    for _ in range(calls):
        writer.write(scenario.request)
        answer = b""
        while not answer.endswith(scenario.end):
            piece = await reader.read(1 << 16)
            if not piece:
                raise WrongAnswer(f"{scenario.name}: it ended with {answer[-400:]!r}")
            answer += piece
        scenario.check(answer)
    writer.close()
    await writer.wait_closed()


async def clients(port: int, scenario: Scenario, calls: int) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(client(port, scenario, calls // CLIENTS))


async def main(calls: int) -> None:
    loop = asyncio.get_running_loop()
    engines = [await loop.create_server(Engine, HOST, 0) for _ in range(2)]
    print(*(engine.sockets[0].getsockname()[1] for engine in engines), flush=True)
    port = int(sys.stdin.readline())
    for scenario in SHOWN:
        await clients(port, scenario, WARM_CALLS)
        print("ready", flush=True)
        sys.stdin.readline()
        await clients(port, scenario, calls)
        print("done", flush=True)
    # The gateway has its figures before its engines are gone.
    sys.stdin.readline()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
