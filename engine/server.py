"""An engine process: model, KV memory, core, connector and HTTP, put together and ended.

Stopping goes backwards: off the directory, then no new calls, and a moment for the answers
under way, and for the KV that peers have been promised; then the core, which ends what is left
as aborted, so that no client is left with half an answer and nobody touches the pages; then the
connector, then the memory.
"""

import asyncio
import contextlib
import logging
import math
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from types import FrameType

import uvicorn
import uvloop

from pdgate.cluster import secret
from pdgate.engine.announcing import announcement
from pdgate.engine.api import app
from pdgate.engine.api import roles as role_routes
from pdgate.engine.api.service import Service
from pdgate.engine.connector import Connector
from pdgate.engine.core import EngineCore
from pdgate.engine.kv_events.journal import Journal
from pdgate.engine.kv_events.serving import journal_of, publishing
from pdgate.engine.layout import Layout
from pdgate.engine.leaving import settle_kv
from pdgate.engine.listening import listen
from pdgate.engine.mailroom import Mailroom
from pdgate.engine.metrics import EngineMetrics
from pdgate.engine.model.load import LoadedModel, load
from pdgate.engine.pace import Faults, Pace
from pdgate.engine.roles import Roles, may_change, why_fixed
from pdgate.engine.scheduler import Limits
from pdgate.engine.settings import NO_PROTOCOL, WILDCARDS, Settings
from pdgate.engine.work import Options
from pdgate.protocols.instance import Role
from pdgate.transfer.base import Backend, Region

# The core's thread and the event loop take turns at the interpreter; five milliseconds,
# the default, is several tokens of a small model.
SWITCH_SECONDS = 0.0005
# What aborted answers get to be written; only a client that does not read needs it.
LAST_WRITE_SECONDS = 5


def run(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT. Raises OSError, ValueError, LookupError at the start."""
    logging.basicConfig(level=settings.log_level.upper())
    # One line for each renewal of a lease is noise.
    if settings.log_level != "debug":
        logging.getLogger("httpx2").setLevel(logging.WARNING)
    sys.setswitchinterval(SWITCH_SECONDS)
    model = load(settings.model, settings.most_tokens)
    with listen(settings) as listening, _calm_signals():
        uvloop.run(_serve(settings, model, listening))


async def _serve(settings: Settings, model: LoadedModel, listening: socket.socket) -> None:
    mailroom = Mailroom(asyncio.get_running_loop())
    api_port = listening.getsockname()[1]
    with (
        publishing(settings) as publisher,
        _core(
            settings, model, mailroom, api_port, journal_of(publisher, settings.block_tokens)
        ) as (core, connector),
    ):
        names = settings.served_names or (model.root,)
        metrics = EngineMetrics(core, connector, names[0])
        service = Service(core, mailroom, metrics, names, settings.default_max_tokens)
        roles = Roles(
            Role(settings.role),
            why_fixed(settings.protocol),
            *([connector.role_is] if connector else []),
        )
        admin = []
        if settings.admin_token_file:
            admin.append(role_routes.routes(roles, secret.token(settings.admin_token_file)))
        if publisher is not None:
            # As below: an engine alone needs no ZeroMQ.
            from pdgate.engine.kv_events.routes import routes as event_routes

            admin.append(event_routes(publisher))
        config = uvicorn.Config(
            app.build(service, *admin),
            log_level=settings.log_level,
            access_log=False,
            timeout_graceful_shutdown=math.ceil(settings.goodbye_seconds + LAST_WRITE_SECONDS),
        )
        ready = _ready_line(settings, listening, connector)
        listed = announcement(settings, api_port, connector, names, roles)
        await _Server(config, ready, core, connector, settings, listed).serve([listening])


class _Server(uvicorn.Server):
    """Says when it answers, and ends answers in order when it is asked to stop."""

    def __init__(
        self,
        config: uvicorn.Config,
        ready_line: str,
        core: EngineCore,
        connector: Connector | None,
        settings: Settings,
        listed: AbstractAsyncContextManager[None],
    ) -> None:
        super().__init__(config)
        self._ready_line = ready_line
        self._core = core
        self._connector = connector
        self._goodbye_seconds = settings.goodbye_seconds
        self._lease_seconds = settings.lease_seconds
        self._listed = listed
        self._listing = contextlib.AsyncExitStack()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(self._ready_line, flush=True)
        await self._listing.enter_async_context(self._listed)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Before anything is refused, so that nobody is sent here any more.
        await self._listing.aclose()
        if self._connector is not None:
            self._connector.leave()
        ending = asyncio.ensure_future(self._end_answers())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()
        await settle_kv(self._core, self._lease_seconds, lambda: self.force_exit)

    async def _end_answers(self) -> None:
        await asyncio.sleep(self._goodbye_seconds)
        await asyncio.to_thread(self._core.stop)


@contextlib.contextmanager
def _core(
    settings: Settings,
    model: LoadedModel,
    mailroom: Mailroom,
    api_port: int,
    journal: Journal | None,
) -> Iterator[tuple[EngineCore, Connector | None]]:
    """A running core, with its connector if a protocol is spoken."""
    config = model.config
    if config.heads % settings.tp:
        raise ValueError(f"{config.heads} heads cannot be split evenly over tp {settings.tp}")
    layout = Layout(
        config.layers,
        settings.blocks,
        config.kv_heads,
        settings.block_tokens,
        config.head_dim,
        tp=settings.tp,
    )
    with contextlib.ExitStack() as closing:
        backend, regions = _memory(settings, layout, closing)
        shards = [region.memory for region in regions]
        if backend is None:
            shards = [memoryview(bytearray(layout.total_bytes)) for _ in range(layout.tp)]
        core = EngineCore(
            model,
            layout,
            shards,
            mailroom.deliver,
            Options(
                Limits(settings.max_seqs, settings.max_step_tokens),
                settings.reuse_prefixes,
                settings.on_failed_load,
                journal,
                settings.hash_seed,
            ),
            Pace(
                settings.min_prefill_ms / 1000,
                settings.min_token_ms / 1000,
                settings.min_read_ms / 1000,
            ),
            Faults(settings.fail_rate, settings.die_after),
        )
        connector = None
        if backend is not None:
            connector = _connect(settings, core, layout, regions, backend, api_port)
            closing.callback(connector.close)
            core.connect(connector)
        core.start()
        closing.callback(core.stop)
        yield core, connector


def _memory(
    settings: Settings, layout: Layout, closing: contextlib.ExitStack
) -> tuple[Backend | None, list[Region]]:
    """KV memory that peers can reach, a region per shard, if a protocol is spoken."""
    if settings.protocol == NO_PROTOCOL:
        return None, []
    # Only an engine with a protocol needs a transfer backend and what it brings along.
    from pdgate.engine import transfer_options
    from pdgate.transfer import registry

    # Peers dial what is advertised, which a wildcard is not.
    advertise = settings.host if settings.kv_host in WILDCARDS else settings.kv_host
    options = transfer_options.read(settings.transfer, settings.transfer_options)
    backend = registry.load(
        settings.transfer, host=settings.kv_host, advertise=advertise, **options
    )
    closing.callback(backend.close)
    return backend, [backend.allocate(layout.total_bytes) for _ in range(layout.tp)]


def _connect(
    settings: Settings,
    core: EngineCore,
    layout: Layout,
    regions: Sequence[Region],
    backend: Backend,
    api_port: int,
) -> Connector:
    # As above: an engine alone needs none of the protocols.
    from pdgate.engine.hand_over import registry
    from pdgate.engine.hand_over.settings import ConnectorSettings

    return registry.connect(
        settings.protocol,
        core=core,
        layout=layout,
        regions=regions,
        backend=backend,
        settings=ConnectorSettings(
            role=Role.BOTH if may_change(settings) else Role(settings.role),
            host=settings.host,
            api_port=api_port,
            kv_host=settings.kv_host,
            kv_port=settings.kv_port,
            lease_seconds=settings.lease_seconds,
            model=core.model.root,
            peer=settings.peer,
            queue=settings.queue,
            layer_wise=settings.neuron_layer_wise,
            whole_pages=settings.neuron_whole_pages,
            engine_id=settings.engine_id,
        ),
    )


def _ready_line(settings: Settings, listening: socket.socket, connector: Connector | None) -> str:
    line = (
        f"pdgate engine ready http://{_address(settings.host, listening.getsockname()[1])} "
        f"role={settings.role} protocol={settings.protocol}"
    )
    return line if connector is None else f"{line} kv={_address(*connector.kv_address)}"


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.contextmanager
def _calm_signals() -> Iterator[None]:
    """uvicorn stops at a signal and then raises it again, which would end us with its code.

    Ending because we were asked to is a success, so the second one finds nobody at home.
    """

    def nobody(_: int, __: FrameType | None) -> None:
        return

    asked_to_end = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, nobody) for number in asked_to_end}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
