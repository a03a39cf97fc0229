"""A gateway in a process of its own, in front of engines on the test's event loop, under attack.

    async with besieged(*engines, flags=("--max-calls", "50")) as gateway:
        async with gateway.watched() as watch:
            await at_once(40, flood, seconds)           # flood() is one attacker, for ever
        assert watch.peak_bytes <= watch.allowed_bytes  # 1.5 x rest + 64 MB
        assert watch.bystander.longest_cpu_seconds < 0.1

What an attack does to others is seen by a bystander (`bystander.py`): a client that asks for
/health all the while, and tells how much CPU time the gateway used while it waited.
"""

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.bystander import Waits
from tests.support.fleet import Engine
from tests.support.processes import Child, child
from tests.support.raw_server import raw_server
from tests.support.resident import forget_peak, peak_bytes, resident_bytes

READY_SECONDS = 60.0
BYSTANDER_SECONDS = 60.0
"""After which a gateway that answers a bystander no more has failed the test."""
FIRST_QUESTIONS = 20
"""That a gateway answers before its memory counts as that of one at rest."""


@dataclass
class Watch:
    """What an attack did; the figures are there when its block has ended.

    Attributes:
        rest_bytes: Resident memory of all of the gateway's processes before.
        peak_bytes: The most that they had at once, process by process, since.
        slow_callbacks: What the gateway's watchdog said, with the names of the culprits.
    """

    rest_bytes: int
    peak_bytes: int = 0
    bystander: Waits = field(default_factory=Waits)
    slow_callbacks: list[str] = field(default_factory=list)

    @property
    def allowed_bytes(self) -> int:
        """What a flood without a key may bring a process to."""
        return self.rest_bytes * 3 // 2 + (64 << 20)


@dataclass(frozen=True)
class Besieged:
    """
    Attributes:
        child: `pdgate serve` itself: its parent process where it has workers.
        ca: File of the authority that signed its certificate; empty without TLS.
    """

    child: Child
    host: str
    port: int
    ca: str = ""

    @property
    def url(self) -> str:
        return f"http{'s' if self.ca else ''}://{self.host}:{self.port}"

    @property
    def pids(self) -> list[int]:
        """The process, and those that it started."""
        return [self.child.pid, *_descendants(self.child.pid)]

    @property
    def resident_bytes(self) -> int:
        return sum(map(resident_bytes, self.pids))

    def slow_callbacks(self) -> list[str]:
        """Lines of the log, since the beginning."""
        lines = self.child.log.read_text(encoding="utf-8").splitlines()
        return [line for line in lines if "one callback used" in line]

    async def wire(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection, over TLS where the gateway speaks that."""
        return await asyncio.open_connection(self.host, self.port, ssl=self._tls)

    @cached_property
    def _tls(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cafile=self.ca) if self.ca else None

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body, on a connection of its own."""
        reader, writer = await self.wire()
        writer.write(f"GET {path} HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split()[1]), body

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[Watch]:
        """Attacks are in the block; the bystander asks from before its first to after its last."""
        for _ in range(FIRST_QUESTIONS):
            await self.get("/health")
        pids = self.pids
        for pid in pids:
            forget_peak(pid)
        watch = Watch(sum(map(resident_bytes, pids)))
        bystander = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.bystander"),
            *(self.host, str(self.port), self.ca, *map(str, pids)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert bystander.stdin is not None
        assert bystander.stdout is not None
        try:
            await bystander.stdout.readline()
            yield watch
            bystander.stdin.close()
            async with asyncio.timeout(BYSTANDER_SECONDS):
                watch.bystander = Waits(**json.loads(await bystander.stdout.read()))
            watch.peak_bytes = sum(map(peak_bytes, pids))
            watch.slow_callbacks = self.slow_callbacks()
        finally:
            if bystander.returncode is None:
                bystander.kill()
            await bystander.wait()


@asynccontextmanager
async def besieged(
    *engines: Engine, flags: tuple[str, ...] = (), ca: str = ""
) -> AsyncIterator[Besieged]:
    """`pdgate serve` in front of `engines`, ready; ends it afterwards, however it fares.

    `ca`: of the certificate that `flags` name.
    """
    async with AsyncExitStack() as stack:
        command = [sys.executable, "-m", "pdgate", "serve", "--port", "0", *flags]
        for engine in engines:
            server = await stack.enter_async_context(raw_server(engine.serve))
            engine.url, engine.refuse = server.url, server.stop
            command += [f"--{engine.role.value}", server.url]
        running = child(command, name="pdgate serve")
        process = await asyncio.to_thread(running.__enter__)
        try:
            line = await asyncio.to_thread(process.wait_for_line, r"listens on (https?://\S+)")
            found = urlsplit(line[1])
            assert found.hostname is not None
            assert found.port is not None
            gateway = Besieged(process, found.hostname, found.port, ca)
            async with asyncio.timeout(READY_SECONDS):
                # Nobody is told.
                while (await gateway.get("/ready"))[0] != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            yield gateway
        finally:
            await asyncio.to_thread(running.__exit__, *sys.exc_info())


async def at_once(number: int, attacker: Callable[[], Awaitable[None]], seconds: float) -> None:
    """So many attackers, for so long; one that the gateway hangs up on comes again.

    An attacker that raises anything but a broken connection ends the test.
    """

    async def again_and_again() -> None:
        while True:
            try:
                await attacker()
            except (ConnectionError, asyncio.IncompleteReadError):
                # Hanging up is a gateway's defence; a loop that only fails must let others run.
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        attackers = [group.create_task(again_and_again()) for _ in range(number)]
        await asyncio.wait(attackers, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in attackers:
            task.cancel()


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = (tasks / "children").read_text(encoding="ascii").split()
        except (FileNotFoundError, ProcessLookupError):
            # A thread that has ended since it was listed.
            continue
        for word in children:
            found += [int(word), *_descendants(int(word))]
    return found
