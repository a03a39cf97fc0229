"""An engine process: model, KV memory, core, connector and HTTP, put together and ended.

Stopping goes backwards: the HTTP side (http_server.py); then the core, which ends what is left
as aborted, so that no client is left with half an answer and nothing touches the pages; then the
connector, then the memory.
"""

import asyncio
import contextlib
import logging
import math
import socket
import sys
from collections.abc import Iterator, Sequence

import uvicorn
import uvloop

from pdgate.cluster import secret
from pdgate.cluster.stderr import log_to_stderr
from pdgate.engine.announcing import announcement
from pdgate.engine.api import app
from pdgate.engine.api import roles as role_routes
from pdgate.engine.api.service import Service
from pdgate.engine.cache.tier_spec import specs_of
from pdgate.engine.cache.tiers import Tier, Tiers, weights_of
from pdgate.engine.connector import Connector
from pdgate.engine.core import EngineCore
from pdgate.engine.hand_over.blocks import Blocks
from pdgate.engine.hand_over.registry import connect
from pdgate.engine.hand_over.settings import ConnectorSettings
from pdgate.engine.http_server import LAST_WRITE_SECONDS, Server, calm_signals, listen
from pdgate.engine.kv_events.journal import Journal
from pdgate.engine.kv_events.serving import journal_of, publishing, sources_route
from pdgate.engine.layout import Layout
from pdgate.engine.metrics import EngineMetrics
from pdgate.engine.model.load import LoadedModel, load
from pdgate.engine.output_queue import OutputQueue
from pdgate.engine.pace import Faults, Pace
from pdgate.engine.roles import Roles, may_change, why_fixed
from pdgate.engine.scheduler import Limits
from pdgate.engine.settings import NO_PROTOCOL, WILDCARDS, Settings
from pdgate.engine.work import Options
from pdgate.protocols.instance import Role
from pdgate.transfer.base import Backend, Region
from pdgate.transfer.runtime.fleet import Identity, configured

# The core's thread and the event loop take turns at the interpreter; five milliseconds,
# the default, is several tokens of a small model.
SWITCH_SECONDS = 0.0005


def run(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT. Raises OSError, ValueError, LookupError, TypeError at the start."""
    log_to_stderr(settings.log_level)
    # One line for each renewal of a lease is noise.
    if settings.log_level != "debug":
        logging.getLogger("httpx2").setLevel(logging.WARNING)
    sys.setswitchinterval(SWITCH_SECONDS)
    model = load(settings.model, settings.most_tokens)
    with listen(settings) as listening, calm_signals():
        uvloop.run(_serve(settings, model, listening))


async def _serve(settings: Settings, model: LoadedModel, listening: socket.socket) -> None:
    output_queue = OutputQueue(asyncio.get_running_loop())
    api_port = listening.getsockname()[1]
    identity = _identity(settings)
    with (
        publishing(settings, identity) as publisher,
        _core(
            settings,
            model,
            output_queue,
            api_port,
            journal_of(publisher, settings.block_tokens),
            identity,
        ) as (core, connector),
    ):
        names = settings.served_names or (model.root,)
        metrics = EngineMetrics(core, connector, names[0], identity.refusals)
        service = Service(
            core,
            output_queue,
            metrics,
            names,
            settings.default_max_tokens,
            head_first=settings.head_first,
        )
        roles = Roles(
            Role(settings.role),
            why_fixed(settings.protocol),
            *([connector.role_is] if connector else []),
        )
        admin = []
        if settings.admin_token_file:
            admin.append(role_routes.routes(roles, secret.token(settings.admin_token_file)))
        if publisher is not None:
            admin.append(sources_route(publisher))
        config = uvicorn.Config(
            app.build(service, *admin),
            log_level=settings.log_level,
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=math.ceil(settings.goodbye_seconds + LAST_WRITE_SECONDS),
        )
        ready = _ready_line(settings, listening, connector)
        listed = announcement(settings, api_port, connector, names, roles)
        await Server(config, ready, core, connector, settings, listed).serve([listening])


@contextlib.contextmanager
def _core(
    settings: Settings,
    model: LoadedModel,
    output_queue: OutputQueue,
    api_port: int,
    journal: Journal | None,
    identity: Identity,
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
        planes=config.kv_planes,
    )
    with contextlib.ExitStack() as closing:
        backend, regions = _memory(settings, layout, identity, closing)
        shards = [region.memory for region in regions]
        if backend is None:
            shards = [memoryview(bytearray(layout.total_bytes)) for _ in range(layout.tp)]
        tiers = _tiers(settings, layout, model, shards, closing)
        core = EngineCore(
            model,
            layout,
            shards,
            output_queue.deliver,
            Options(
                Limits(settings.max_seqs, settings.max_step_tokens),
                settings.reuse_prefixes,
                settings.on_failed_load,
                journal,
                settings.hash_seed,
                tiers,
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
            connector = _connect(settings, core, layout, regions, backend, api_port, identity)
            closing.callback(connector.close)
            core.connect(connector)
        core.start()
        closing.callback(core.stop)
        yield core, connector


def _tiers(
    settings: Settings,
    layout: Layout,
    model: LoadedModel,
    shards: Sequence[memoryview],
    closing: contextlib.ExitStack,
) -> Tiers | None:
    specs = specs_of(settings.kv_tiers)
    if not specs:
        return None
    tiers = [Tier(spec) for spec in specs]
    found = Tiers(tiers, Blocks(layout, model.root, shards), weights_of(model.root))
    closing.enter_context(found.writing())
    return found


def _identity(settings: Settings) -> Identity:
    """What we prove to peers, where there may be any. Raises ValueError."""
    if settings.protocol == NO_PROTOCOL and settings.kv_events_port is None:
        return Identity()
    return configured(settings.kv_secret_file, settings.kv_tls)


def _memory(
    settings: Settings, layout: Layout, identity: Identity, closing: contextlib.ExitStack
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
        settings.transfer,
        identity=identity,
        host=settings.kv_host,
        advertise=advertise,
        **options,
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
    identity: Identity,
) -> Connector:
    return connect(
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
            max_local_prefill=settings.max_local_prefill,
            max_prefill_queue=settings.max_prefill_queue,
            store=settings.store,
            layer_wise=settings.neuron_layer_wise,
            whole_pages=settings.neuron_whole_pages,
            max_seqs=settings.max_seqs,
            engine_id=settings.engine_id,
            identity=identity,
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
