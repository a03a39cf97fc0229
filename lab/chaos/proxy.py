"""Fault proxy in front of one engine, which disturbs what passes.

async with FaultProxy("http://127.0.0.1:8100") as proxy:
    ...                                          # the gateway calls proxy.url
    with proxy.plan(Rule(Cut(2000), every=3), seed=7):
        ...
        await proxy.journal.until_injected(2)
    async with proxy.away():                     # nothing listens
        ...
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Self
from urllib.parse import urlsplit

from pdgate.lab.chaos.fault import Fault
from pdgate.lab.chaos.journal import FaultJournal
from pdgate.lab.chaos.link import ChaosLink, Side
from pdgate.lab.chaos.passage import ChaosPassage, passage
from pdgate.lab.chaos.plan import Per, Plan, Rule

NO_FAULTS = Plan()


class FaultProxy:
    """Works inside its `async with` block, whose end ends all connections.

    Attributes:
        url: What to tell the gateway instead of the engine's.
        journal: What has happened so far.
    """

    def __init__(
        self,
        engine: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        plan: Plan = NO_FAULTS,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """Raises ValueError for an engine that is no http://host:port."""
        self.journal = FaultJournal(tell)
        self._engine = address(engine)
        self._host = host
        self._port = port
        self._plan = plan
        self._links: set[ChaosLink] = set()
        self._is_away = False

    async def __aenter__(self) -> Self:
        """Raises OSError if the address cannot be had."""
        self._loop = asyncio.get_running_loop()
        await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._leave()

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @contextmanager
    def plan(
        self, *rules: Rule, seed: int = 0, only: bytes = b"POST ", per: Per = "request"
    ) -> Iterator[None]:
        """These rules while the block runs; numbers begin at 1 again. Then those before."""
        before, self._plan = self._plan, Plan(rules, seed, only, per)
        numbered, self.journal.numbered = self.journal.numbered, 0
        try:
            yield
        finally:
            self._plan = before
            self.journal.numbered += numbered

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Connections are refused, as by a host whose engine does not run; open ones end."""
        await self._leave()
        try:
            yield
        finally:
            await self._listen()

    # What links need.

    async def dial(self, far: Side) -> None:
        try:
            await self._loop.create_connection(lambda: far, *self._engine)
        except OSError as error:
            self.journal.could_not_dial(error)
            raise

    def passage(self, link: ChaosLink, first: bytes) -> ChaosPassage:
        if not first.startswith(self._plan.only):
            return ChaosPassage(link)
        if not link.number or self._plan.per == "request":
            self.journal.numbered += 1
            link.number = self.journal.numbered
        fault = self._plan.choose(link.number)
        if fault is None:
            return ChaosPassage(link)
        plan, number = self._plan, link.number
        notes = _Notes(self.journal, fault, number)
        return passage(fault, link, notes, lambda below: plan.draw(number, below))

    def ended(self, link: ChaosLink) -> None:
        self._links.discard(link)

    # How.

    async def _listen(self) -> None:
        self._is_away = False
        self._server = await self._loop.create_server(
            self._accept, self._host, self._port, reuse_address=True
        )
        self._port = self._server.sockets[0].getsockname()[1]

    def _accept(self) -> asyncio.Protocol:
        link = ChaosLink(self, self._loop)
        if self._is_away:
            # Accepted just before listening ended: asyncio makes no connection of it, so
            # nothing would ever say that it has ended.
            return link.near
        self._links.add(link)
        self.journal.connections += 1
        return link.near

    async def _leave(self) -> None:
        self._is_away = True
        self._server.close()
        for link in list(self._links):
            await link.end()


class _Notes:
    """Notes of one fault in one exchange."""

    def __init__(self, journal: FaultJournal, fault: Fault, number: int) -> None:
        self._journal = journal
        self._fault = fault
        self._number = number

    def happened(self) -> None:
        self._journal.happened(self._fault, self._number)

    def missed(self) -> None:
        self._journal.did_not_happen(self._fault, self._number)


def address(engine: str) -> tuple[str, int]:
    """ "http://10.0.0.1:8100" -> ("10.0.0.1", 8100). Raises ValueError."""
    parts = urlsplit(engine)
    if parts.scheme != "http" or not parts.hostname or not parts.port:
        raise ValueError(f"an engine is http://host:port, not {engine!r}")
    if parts.path.strip("/") or parts.query or parts.username:
        raise ValueError(f"an engine is http://host:port and nothing more, not {engine!r}")
    return parts.hostname, parts.port
