"""Real workers: each knows what the others have in flight, and no more of one that was killed."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from pdgate.protocols.instance import Role
from tests.support.fleet import STREAM_HEAD, Engine, Held, HeldCall, ask
from tests.support.processes import Child, child
from tests.support.raw_server import chunk, raw_server
from tests.support.waiting import until
from tests.support.workers import only, workers_of

pytestmark = pytest.mark.slow

TOKEN = "correct-horse-battery-staple"
EVENT = b'data: {"choices": [{"text": "a"}]}\n\n'


class Connection:
    """A client's, to a worker that is known."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def get(self, path: str) -> bytes:
        head = f"GET {path} HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {TOKEN}\r\n\r\n"
        self._writer.write(head.encode())
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.partition(b"content-length: ")[2].split(b"\r\n")[0])
        return await self._reader.readexactly(length)

    def ask(self, prompt: str = "hi") -> None:
        messages = [{"role": "user", "content": prompt}]
        self._writer.write(ask(stream=True, messages=messages))

    async def until_in_flight(self, *expected: int) -> None:
        """Until this worker knows of so many calls at the engines, whosever they are."""

        async def known() -> bool:
            return await self._in_flight() == list(expected)

        await until(known, f"{expected} calls in flight")

    async def _in_flight(self) -> list[int]:
        return [one["calls"] for one in json.loads(await self.get("/admin/instances"))]

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


class Gateway:
    def __init__(self, process: Child, port: int, engines: list[Held]) -> None:
        self.process = process
        self.engines = engines
        self._port = port
        self._connections: list[Connection] = []

    def workers(self) -> list[int]:
        return workers_of(self.process)

    async def connect(self, worker: int) -> Connection:
        with only(worker, self.process):
            connection = Connection(*await asyncio.open_connection("127.0.0.1", self._port))
            self._connections.append(connection)
            await connection.get("/health")
        return connection

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()

    async def chosen(self) -> int:
        """The engine that has got the next call, which it begins to answer."""
        waits = [asyncio.create_task(engine.next()) for engine in self.engines]
        done, others = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in others:
            each.cancel()
        (task,) = done
        call: HeldCall = task.result()
        await call.peer.send(STREAM_HEAD, chunk(EVENT))
        return waits.index(task)


@asynccontextmanager
async def gateway_of(folder: Path, workers: int, engines: int) -> AsyncIterator[Gateway]:
    """All workers serve."""
    token = folder / "token"
    token.write_text(TOKEN)
    async with AsyncExitStack() as stack:
        held = [Held() for _ in range(engines)]
        command = [sys.executable, "-m", "pdgate", "serve", "--port", "0"]
        command += ["--workers", str(workers), "--admin-token-file", str(token)]
        for script in held:
            server = await stack.enter_async_context(raw_server(Engine(Role.PLAIN, script).serve))
            command += ["--plain", server.url]
        running = child(command, name="pdgate serve")
        process = await asyncio.to_thread(running.__enter__)
        try:
            line = await asyncio.to_thread(process.wait_for_line, r"listens on (http://\S+)")
            await asyncio.to_thread(
                process.wait_until,
                lambda: process.tail(1000).count("Application startup complete") >= workers,
                "all workers to have started",
            )
            gateway = Gateway(process, int(line[1].rpartition(":")[2]), held)
            try:
                yield gateway
            finally:
                # Otherwise it would wait for the streams to end.
                await gateway.close()
        finally:
            await asyncio.to_thread(running.__exit__, *sys.exc_info())


async def test_a_worker_avoids_what_another_has_filled_until_that_is_killed(tmp_path: Path) -> None:
    """On its own it would send every second call there."""
    async with gateway_of(tmp_path, workers=2, engines=2) as gateway:
        killed, other = gateway.workers()
        watching = await gateway.connect(other)
        (await gateway.connect(killed)).ask("a long prompt " * 10_000)
        long = await gateway.chosen()
        await watching.until_in_flight(*(int(engine == long) for engine in range(2)))
        for _ in range(3):
            (await gateway.connect(other)).ask()
            assert await gateway.chosen() != long

        os.kill(killed, signal.SIGKILL)
        await watching.until_in_flight(*(0 if engine == long else 3 for engine in range(2)))

        (await gateway.connect(other)).ask()
        assert await gateway.chosen() == long
