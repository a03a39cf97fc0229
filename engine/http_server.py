"""The HTTP server of an engine process: its socket, and how it ends.

Off the directory first, then no new calls, and a moment for the answers under way; then a wait
for KV that peers still need. Prefill has answered, and decode has pages yet to read; or layers
are on their way into decode's pages. All of that holds pages here, so an engine without a page
in use owes nothing. What no peer comes for ends with its lease.

An engine whose entry is taken out of the directory ends as well, and nothing cuts its answers short: a
signal asks for an end by a certain time, and that does not.
"""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from types import FrameType

import typer
import uvicorn

from pdgate.cluster.directory import Listing
from pdgate.engine.announcing import SETTLE_SECONDS
from pdgate.engine.connector import Connector
from pdgate.engine.core import EngineCore
from pdgate.engine.hand_over import registry
from pdgate.engine.settings import NO_PROTOCOL, EngineSettings

log = logging.getLogger(__name__)

LAST_WRITE_SECONDS = 5
"""For aborted answers to be written; only a client that does not read needs it."""
LAST_READ_SECONDS = 5.0
"""For readers that began while the lease lasted."""
LOOK_SECONDS = 0.02


def listen(settings: EngineSettings) -> socket.socket:
    """A listening socket. Raises OSError, LookupError, TypeError.

    Peers may look for the KV side at a distance from the API's port (neuron's). So where the
    port is ours to choose, it is one with a free port there.
    """
    offset = 0
    if settings.protocol != NO_PROTOCOL:
        offset = registry.load(settings.protocol).kv_port_offset
    while True:
        listening = _bind(settings.host, settings.port)
        beside = listening.getsockname()[1] + offset
        if settings.port or not offset or _is_free(settings.kv_host, beside):
            return listening
        listening.close()


def _is_free(host: str, port: int) -> bool:
    try:
        _bind(host, port).close()
    except OverflowError:
        return False
    except OSError as error:
        # Whatever else is wrong would be wrong with any port; who needs it will say so.
        return error.errno != errno.EADDRINUSE
    return True


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


class EngineServer(uvicorn.Server):
    """uvicorn's, which prints a line when it is ready, and ends answers in order when it is stopped."""

    def __init__(
        self,
        config: uvicorn.Config,
        ready_line: str,
        ranks: Sequence[tuple[EngineCore, Connector | None]],
        settings: EngineSettings,
        listed: AbstractAsyncContextManager[Listing | None],
    ) -> None:
        super().__init__(config)
        self._ready_line = ready_line
        self._cores = [core for core, _ in ranks]
        self._connectors = [connector for _, connector in ranks if connector is not None]
        self._goodbye_seconds = settings.goodbye_seconds
        self._lease_seconds = settings.lease_seconds
        self._listed = listed
        self._listing = contextlib.AsyncExitStack()
        self._leaving: asyncio.Task[None] | None = None

    def end(self) -> None:
        """Serve no longer: what the engine computes with is gone. On the event loop."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # Not print, which writes the end of the line apart, behind what the log writes meanwhile.
        typer.echo(self._ready_line)
        listing = await self._listing.enter_async_context(self._listed)
        if listing is not None:
            self._leaving = asyncio.create_task(self._leave_when_revoked(listing))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._leaving is not None:
            # Asked to end while it waited for its answers: by now they have as long as with any end.
            self._leaving.cancel()
        # Before anything is refused, so that no call is sent here any more.
        await self._listing.aclose()
        for connector in self._connectors:
            connector.leave()
        ending = asyncio.ensure_future(self._end_answers())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()
        await self._settle_kv()

    async def _leave_when_revoked(self, listing: Listing) -> None:
        await listing.revoked()
        log.info(
            "the directory does not list this engine any more: it ends when it has nothing to do"
        )
        await asyncio.sleep(SETTLE_SECONDS)
        for server in self.servers:
            server.close()
        for connector in self._connectors:
            connector.leave()
        # As in `_settle_kv`. Clients that are slow to read get what they get at any end.
        while any(core.alive and core.gauges.has_requests for core in self._cores):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)
        self.should_exit = True

    async def _end_answers(self) -> None:
        await asyncio.sleep(self._goodbye_seconds)
        for core in self._cores:
            await asyncio.to_thread(core.stop)

    async def _settle_kv(self) -> None:
        """Wait until no page is in use, but not longer than leases can last, nor if it is hurried.

        Nothing new is to come: all leases have begun.
        """

        def used() -> int:
            return sum(core.gauges.blocks_used for core in self._cores if core.alive)

        if used():
            log.info("waiting for %d pages that others are to have", used())
        try:
            async with asyncio.timeout(self._lease_seconds + LAST_READ_SECONDS):
                # The core's thread does not say when pages change, and this is no hot path.
                while used() and not self.force_exit:  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            log.warning("%d pages were still in use at the end", used())


@contextlib.contextmanager
def calm_signals() -> Iterator[None]:
    """Signal handlers around uvicorn, which stops at a signal and then raises it again,
    which would end us with its code.

    Ending because we were asked to is a success, so the second one has no effect.
    """

    def ignore(_: int, __: FrameType | None) -> None:
        return

    asked_to_end = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, ignore) for number in asked_to_end}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
