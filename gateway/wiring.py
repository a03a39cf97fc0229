"""Chooses the implementations and puts the gateway together; nobody else does.

settings --> instances, policies --> scheduler --.
         --> forwarders ----------------------- execution --> service --> front end
         --> upstream --------------------------'                          |
         --> prober, books, debug ------------------------> FastAPI app ---'
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from starlette.types import ASGIApp

from pdgate.cluster import etcd
from pdgate.cluster.directory import Directory
from pdgate.forwarders.execution import Execution
from pdgate.forwarders.lives import Lives
from pdgate.forwarders.ownership import KvLedger
from pdgate.gateway.admin.bearer import knows
from pdgate.gateway.admin.board import Board, FileBoard
from pdgate.gateway.admin.dial import Dial
from pdgate.gateway.admin.drain import routes as drain_routes
from pdgate.gateway.admin.instances import Drained, nothing_more
from pdgate.gateway.admin.instances import routes as instance_routes
from pdgate.gateway.admin.listener import Listeners
from pdgate.gateway.admin.reload import routes as reload_routes
from pdgate.gateway.admin.routes import routes
from pdgate.gateway.admin.status import SharedStatus
from pdgate.gateway.admission.books import AdmissionBooks
from pdgate.gateway.admission.gate import Gate
from pdgate.gateway.app import create_app
from pdgate.gateway.asgi import Front
from pdgate.gateway.books import Books, Together, registry_of
from pdgate.gateway.config import Settings
from pdgate.gateway.config.api_keys import api_keys
from pdgate.gateway.config.rules import (
    breaker_limits,
    retrying_of,
    rule_of,
    timeouts_of,
    timeouts_of_models,
    total_time_of,
)
from pdgate.gateway.config.security import engine_access, header_policy
from pdgate.gateway.config.settings import Disaggregation
from pdgate.gateway.config.token import read_token
from pdgate.gateway.debug import RecentCalls, no_headers, path_headers
from pdgate.gateway.discovery.adopt import adopter
from pdgate.gateway.discovery.feed import Feed
from pdgate.gateway.discovery.state import State
from pdgate.gateway.discovery.status import Status
from pdgate.gateway.engine_metrics.prefill_queue import PrefillQueue
from pdgate.gateway.health_metrics import HealthMetrics
from pdgate.gateway.intake import Intake
from pdgate.gateway.kv_metrics import KvMetrics
from pdgate.gateway.lifecycle.drain import Drain
from pdgate.gateway.lifecycle.live import Live
from pdgate.gateway.lifecycle.reload import Reload
from pdgate.gateway.pings import Pings
from pdgate.gateway.probe import Prober
from pdgate.gateway.security.books import KeyBooks
from pdgate.gateway.security.cors import Cors, origins_of
from pdgate.gateway.security.door import Door
from pdgate.gateway.security.engine_access import EngineAccess
from pdgate.gateway.service import Service
from pdgate.gateway.upstream.client import HttpUpstream
from pdgate.gateway.upstream.settings import UpstreamSettings
from pdgate.gateway.verification.watch import Watch
from pdgate.gateway.ways import own_fields, ways
from pdgate.gateway.worker_metrics import WorkerMetrics
from pdgate.scheduling import policy
from pdgate.scheduling.admission import Limits
from pdgate.scheduling.instances import Instances
from pdgate.scheduling.scheduler import Scheduler

log = logging.getLogger(__name__)

SHARED_KEYS = "pdgate"
"""In Redis, for all gateways that use the same database."""

DIRECTORY_SECONDS = 3.0
"""How long the start waits for a directory; without it, those configured are served."""


def build(
    settings: Settings,
    metrics_folder: Path | None = None,
    directory: Directory | None = None,
    admin_port: int | None = None,
) -> Front:
    """The gateway as an ASGI application; it makes no connection before its lifespan begins.

    `metrics_folder` is shared by all workers, where there are several. `directory` is what
    the settings name unless one is given. `admin_port` is that of the admin listener, if any.
    """
    instances = Instances(settings.fleet, breaker_limits(settings.health))
    scheduler = Scheduler(
        instances,
        prefill=policy.load(settings.prefill_policy),
        decode=policy.load(settings.decode_policy),
        plain=policy.load(settings.plain_policy),
        rule=rule_of(settings.disaggregation),
    )
    headers = header_policy(settings)
    access = engine_access(settings)
    upstream = HttpUpstream(
        UpstreamSettings(
            timeouts=timeouts_of(settings.timeouts),
            timeouts_of=timeouts_of_models(settings),
            forwarded=headers.to_engines,
            tls=access.tls,
            server_name=access.server_name,
            authorization=access.authorization,
        )
    )
    recent = RecentCalls() if settings.debug_routes else None
    books = Books(instances, recent, settings.call_log)
    ledger, lives = KvLedger(), Lives()
    execution = Execution(
        scheduler,
        ways(settings),
        upstream,
        retrying=retrying_of(settings),
        ledger=ledger,
        lives=lives,
        max_resumes=settings.max_attempts if settings.resume else 0,
    )
    intake = Intake(
        settings.max_body_bytes,
        settings.trust_client_kv_params,
        headers.to_engines,
        own_fields(settings),
    )
    prober = Prober(
        instances,
        settings.health.interval_seconds,
        settings.health.timeout_seconds,
        settings.health.retry_seconds,
        access,
    )
    reload = Reload(settings)
    drain = Drain(
        lambda: books.in_flight, settings.drain.grace_seconds, settings.drain.notice_seconds
    )
    prober.on_gone = execution.gone
    feed = _feed(settings, directory, instances, prober)
    status = Status(feed) if feed else None
    dial = _dial(settings, scheduler, metrics_folder)
    drained = Dial(
        Drained(),
        lambda said: instances.drain(said.instances),
        _board(settings, metrics_folder, "drained"),
        name="drained instances",
    )
    redis = SharedStatus(dial) if settings.redis else None
    door = _door(settings)
    gate = _gate(settings, instances, scheduler)
    watch = _watch(settings, instances, access)
    parts = [
        books,
        HealthMetrics(instances, drain, reload),
        KvMetrics(ledger, lives),
        status,
        redis,
        KeyBooks(door) if door else None,
        AdmissionBooks(gate) if gate else None,
        watch.report if watch else None,
    ]
    counted = Together(*(part for part in parts if part is not None))
    shared = WorkerMetrics(counted, metrics_folder) if metrics_folder else None

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        async with upstream, asyncio.TaskGroup() as background:
            always = []
            if feed is not None:
                always.append(background.create_task(feed.run()))
                # Calls that come first should find those who are announced already.
                with suppress(TimeoutError):
                    await asyncio.wait_for(feed.listed.wait(), DIRECTORY_SECONDS)
            always.append(background.create_task(prober.run()))
            always.append(background.create_task(dial.follow()))
            always.append(background.create_task(drained.follow()))
            always.append(background.create_task(drain.run()))
            if watch is not None:
                always.append(background.create_task(watch.reader.run()))
            if shared is not None:
                always.append(background.create_task(shared.run()))
            # Engines that are down are found out within the probe's own timeout.
            with suppress(TimeoutError):
                await asyncio.wait_for(
                    prober.first_round.wait(), settings.health.timeout_seconds + 1
                )
            yield
            for task in always:
                task.cancel()

    registry = registry_of(shared or counted)
    notes = {
        "directory": status,
        "redis": redis,
        "prefill_queue": None if watch is None else PrefillQueue(watch.reader),
    }
    told = {name: note for name, note in notes.items() if note is not None}
    app = create_app(
        instances, prober, registry, running, recent, intake.call_id, told, door, drain
    )
    if settings.admin_token_file:
        token = read_token(settings.admin_token_file)
        app.include_router(routes(dial, token))
        more = watch.report.of if watch else nothing_more
        app.include_router(instance_routes(instances, drained, token, more))
        app.include_router(drain_routes(drain, token))
        app.include_router(reload_routes(reload, token))
    debug = path_headers if settings.debug_headers else no_headers
    ping_seconds = settings.timeouts.ping_seconds
    origins = origins_of(settings.cors_origins)
    cors = Cors(origins) if origins else None
    others = app if cors is None else cors.around(app)
    if admin_port is not None:
        others = _listeners(settings, others, intake, admin_port)
    front = Front(
        Service(intake, execution, books, door, gate, drain, instances, total_time_of(settings)),
        others,
        debug,
        headers.to_clients,
        Pings(ping_seconds) if ping_seconds else None,
        reload,
    )
    front.admin_port, front.cors = admin_port, cors
    Live(front, instances, scheduler, execution, upstream, prober, books, dial, feed).register(
        reload
    )
    return front


def _feed(
    settings: Settings, directory: Directory | None, instances: Instances, prober: Prober
) -> Feed | None:
    if directory is None and settings.etcd:
        directory = etcd.opened(settings.etcd, settings.etcd_user_file, settings.etcd_ca_file)
    if directory is None:
        return None
    state = State(Path(settings.state_dir)) if settings.state_dir else None
    return Feed(directory, instances, prober, adopter(settings), time.monotonic, state)


def _gate(settings: Settings, instances: Instances, scheduler: Scheduler) -> Gate | None:
    """None where nothing is limited."""
    limits = Limits(**settings.admission.model_dump()).shared_by(settings.listen.workers)
    if not limits.any:
        return None
    gate = Gate(limits, instances)
    scheduler.freed = gate.look
    return gate


def _listeners(settings: Settings, app: ASGIApp, intake: Intake, admin_port: int) -> ASGIApp:
    check = knows(read_token(settings.admin_token_file))
    both = settings.metrics_on == "both"
    return Listeners(app, admin_port, check, intake.call_id, metrics_on_main=both)


def _door(settings: Settings) -> Door | None:
    """None where no keys are asked for."""
    keys = api_keys(settings.api_keys, settings.api_keys_file)
    return Door(keys, settings.listen.workers) if keys else None


def _watch(settings: Settings, instances: Instances, access: EngineAccess) -> Watch | None:
    given = settings.engine_metrics
    if not given.interval_seconds:
        return None
    return Watch(instances, given.interval_seconds, given.timeout_seconds, time.monotonic, access)


def _dial(settings: Settings, scheduler: Scheduler, folder: Path | None) -> Dial[Disaggregation]:
    def apply(section: Disaggregation) -> None:
        scheduler.rule = rule_of(section)

    return Dial(settings.disaggregation, apply, _board(settings, folder, "disaggregation"))


def _board(settings: Settings, folder: Path | None, name: str) -> Board | None:
    """`folder` is shared by the workers of this gateway, where there are several."""
    if settings.redis:
        # Only who asks for Redis needs its package.
        from pdgate.gateway.admin.redis_board import RedisBoard

        return RedisBoard(settings.redis, f"{SHARED_KEYS}:{name}")
    if folder is not None and settings.admin_token_file:
        return FileBoard(folder / f"{name}.pinned")
    return None
