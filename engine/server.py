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
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import uvicorn
import uvloop

from pdgate.cluster import secret
from pdgate.cluster.address import joined
from pdgate.cluster.stderr import log_to_stderr
from pdgate.engine.announcing import announcement, dialled
from pdgate.engine.api import app
from pdgate.engine.api import roles as role_routes
from pdgate.engine.api.service import EngineService
from pdgate.engine.cache.memory import KvMemory, PagedKv
from pdgate.engine.cache.tier_spec import specs_of
from pdgate.engine.cache.tiers import Tier, Tiers, weights_of
from pdgate.engine.connector import Connector
from pdgate.engine.core import EngineCore
from pdgate.engine.data_parallel import RankRouter
from pdgate.engine.hand_over.blocks import NamedBlocks
from pdgate.engine.http_server import LAST_WRITE_SECONDS, EngineServer, calm_signals, listen
from pdgate.engine.kv_events.journal import EventJournal
from pdgate.engine.kv_events.serving import journal_of, publishing, sources_route
from pdgate.engine.metrics import EngineMetrics
from pdgate.engine.model.load import LoadedModel, load
from pdgate.engine.output_queue import OutputQueue
from pdgate.engine.pace import Faults, StepPace
from pdgate.engine.ranks.crew import RankLost
from pdgate.engine.roles import EngineRoles, why_fixed
from pdgate.engine.scheduler import StepLimits
from pdgate.engine.settings import NO_PROTOCOL, EngineSettings
from pdgate.engine.starting import layout_of
from pdgate.engine.tensors import open_tensors, own_pages
from pdgate.engine.vision import MediaEncoder
from pdgate.engine.work import Options
from pdgate.protocols.instance import Role
from pdgate.transfer.runtime.fleet import Identity, configured

if TYPE_CHECKING:
    from pdgate.engine.kv_events.publisher import Publisher

# The core's thread and the event loop take turns at the interpreter; five milliseconds,
# the default, is several tokens of a small model.
SWITCH_SECONDS = 0.0005


def run(settings: EngineSettings) -> None:
    """Serves until SIGTERM or SIGINT. Raises OSError, ValueError, LookupError, TypeError at the start."""
    log_to_stderr(settings.log_level)
    # One line for each renewal of a lease is noise.
    if settings.log_level != "debug":
        logging.getLogger("httpx2").setLevel(logging.WARNING)
    sys.setswitchinterval(SWITCH_SECONDS)
    tensors = open_tensors(settings.device, settings.threads)
    model = load(settings.model, settings.most_tokens, tensors)
    with listen(settings) as listening, calm_signals():
        uvloop.run(_serve(settings, model, listening))


async def _serve(settings: EngineSettings, model: LoadedModel, listening: socket.socket) -> None:
    """Raises RankLost at the end if that is why it ended."""
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[str] = loop.create_future()

    def has_lost(why: str) -> None:
        if not lost.done():
            lost.set_result(why)

    def lose(why: str) -> None:
        loop.call_soon_threadsafe(has_lost, why)

    api_port = listening.getsockname()[1]
    identity = _identity(settings)
    names = settings.served_names or (model.root,)
    with contextlib.ExitStack() as closing:
        ranks: list[tuple[EngineCore, Connector | None]] = []
        services: list[EngineService] = []
        publishers: list[Publisher] = []
        for number in range(settings.dp):
            own = settings if settings.dp == 1 else settings.of_rank(number)
            publisher = closing.enter_context(publishing(own, identity))
            if publisher is not None:
                publishers.append(publisher)
            output_queue = OutputQueue(loop)
            journal = journal_of(publisher, own.block_tokens)
            core, connector = closing.enter_context(
                _core(own, model, output_queue, api_port, journal, identity, lose)
            )
            ranks.append((core, connector))
            # Of the process, so that one rank counts them for all.
            refusals = None if number else identity.refusals
            services.append(
                EngineService(
                    core,
                    output_queue,
                    EngineMetrics(core, connector, names[0], refusals),
                    names,
                    settings.default_max_tokens,
                    head_first=settings.head_first,
                )
            )
        connectors = [connector for _, connector in ranks if connector is not None]

        def tell(role: Role) -> None:
            for connector in connectors:
                connector.role_is(role)

        roles = EngineRoles(Role(settings.role), why_fixed(settings.protocol), tell)
        admin = []
        if settings.admin_token_file:
            admin.append(role_routes.routes(roles, secret.token(settings.admin_token_file)))
        if settings.control:
            # Only an engine that trainers control needs it.
            from pdgate.engine.api import control as control_routes
            from pdgate.engine.control import EngineControl, why_fixed_weights

            why = why_fixed_weights(settings.protocol)
            admin.append(control_routes.routes(EngineControl(services, why)))
        if publishers:
            admin.append(sources_route(publishers))
        if settings.role == "encode":
            encoder = MediaEncoder(dialled(settings, settings.host), api_port)
            admin.append(encoder.routes(services[0]))
        apps = [(service, app.build(service, *admin)) for service in services]
        config = uvicorn.Config(
            apps[0][1] if len(apps) == 1 else RankRouter(apps),
            log_level=settings.log_level,
            access_log=False,
            ws="wsproto",
            timeout_graceful_shutdown=math.ceil(settings.goodbye_seconds + LAST_WRITE_SECONDS),
        )
        first = ranks[0][1]
        ready = _ready_line(settings, listening, first)
        listed = announcement(settings, api_port, first, names, roles)
        server = EngineServer(config, ready, ranks, settings, listed)
        lost.add_done_callback(lambda _: server.end())
        await server.serve([listening])
    if lost.done():
        raise RankLost(lost.result())


@contextlib.contextmanager
def _core(
    settings: EngineSettings,
    model: LoadedModel,
    output_queue: OutputQueue,
    api_port: int,
    journal: EventJournal | None,
    identity: Identity,
    lost: Callable[[str], None],
) -> Iterator[tuple[EngineCore, Connector | None]]:
    """A running core, with its connector if a protocol is spoken; `lost`: a rank of it has ended."""
    layout = layout_of(settings, model.config)

    def made(memory: PagedKv) -> EngineCore:
        tiers = _tiers(settings, memory, model, identity, closing)
        return EngineCore(
            model,
            layout,
            memory,
            output_queue.deliver,
            Options(
                StepLimits(settings.max_seqs, settings.max_step_tokens),
                settings.reuse_prefixes,
                settings.on_failed_load,
                journal,
                settings.hash_seed,
                tiers,
                settings.speculate,
            ),
            StepPace(
                settings.min_prefill_ms / 1000,
                settings.min_token_ms / 1000,
                settings.min_read_ms / 1000,
            ),
            Faults(settings.fail_rate, settings.die_after),
        )

    with contextlib.ExitStack() as closing:
        connector: Connector | None = None
        if settings.protocol == NO_PROTOCOL:
            core = made(own_pages(layout, model.tensors))
        else:
            # Only an engine with a protocol needs a transfer backend and what it brings along.
            from pdgate.engine import meeting

            core, connector = meeting.met(
                settings, made, layout, model, api_port, identity, lost, closing
            )
            core.connect(connector)
        core.start()
        closing.callback(core.stop)
        yield core, connector


def _tiers(
    settings: EngineSettings,
    memory: PagedKv,
    model: LoadedModel,
    identity: Identity,
    closing: contextlib.ExitStack,
) -> Tiers | None:
    """Those that are asked for, until `closing` ends. Raises ValueError, LookupError, OSError, TransferError."""
    if not settings.kv_tiers:
        return None
    if not isinstance(memory, KvMemory):
        raise ValueError(  # noqa: TRY004, a combination of flags that cannot be
            "--kv-tier copies pages of the engine's own process: ranks have theirs in others (--tp, --pp)"
        )
    tiers = [Tier(spec) for spec in specs_of(settings.kv_tiers)]
    blocks = NamedBlocks(memory.layout, model.root, memory.views)
    peers = None
    if settings.shares_tiers:
        # Only tiers between hosts need a transfer backend and what it brings along.
        from pdgate.engine import tier_sharing

        peers = tier_sharing.shared(settings, tiers, memory.layout.block_bytes, identity, closing)
    found = Tiers(tiers, blocks, weights_of(model.root), peers)
    closing.enter_context(found.writing())
    return found


def _identity(settings: EngineSettings) -> Identity:
    """What we prove to peers, where there may be any. Raises ValueError."""
    alone = settings.protocol == NO_PROTOCOL and not settings.shares_tiers
    if alone and settings.kv_events_port is None:
        return Identity()
    return configured(settings.kv_secret_file, settings.kv_tls)


def _ready_line(
    settings: EngineSettings, listening: socket.socket, connector: Connector | None
) -> str:
    line = (
        f"pdgate engine ready http://{joined(settings.host, listening.getsockname()[1])} "
        f"role={settings.role} protocol={settings.protocol}"
    )
    return line if connector is None else f"{line} kv={joined(*connector.kv_address)}"
