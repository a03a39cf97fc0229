"""Build of the gateway: the core that calls pass, and a loop over its components."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from starlette.types import ASGIApp

from pdgate.cluster.directory import Directory
from pdgate.cluster.jobs import Jobs
from pdgate.forwarders.base import Callback
from pdgate.forwarders.kv_lease import KvLedger
from pdgate.forwarders.lives import Lives
from pdgate.gateway.app import create_app
from pdgate.gateway.callbacks.part import CallbackPorts
from pdgate.gateway.component import Component, GatewayCore
from pdgate.gateway.config import Settings
from pdgate.gateway.config.rules import breaker_limits
from pdgate.gateway.config.security import engine_access, header_policy
from pdgate.gateway.config.token import read_token
from pdgate.gateway.debug import RecentCalls, path_headers
from pdgate.gateway.discovery.feed import Feed
from pdgate.gateway.front.asgi import Front
from pdgate.gateway.lifecycle.reload import Reload
from pdgate.gateway.logs import CallLog
from pdgate.gateway.metrics.call_stats import CallStats
from pdgate.gateway.metrics.family import Samples
from pdgate.gateway.probe import Prober
from pdgate.gateway.realtime.sessions import Sessions
from pdgate.gateway.security.cors import Cors, origins_of
from pdgate.gateway.security.headers import HeaderPolicy
from pdgate.gateway.service import Service
from pdgate.gateway.sync.workers import SharedLoad, SharedPrefixes, SharedTurns
from pdgate.gateway.sync.workers.metrics import WorkerMetrics
from pdgate.gateway.upstream.client import HttpUpstream
from pdgate.gateway.watchdog import Watchdog
from pdgate.gateway.wiring import components, metrics, on_demand, parts
from pdgate.gateway.wiring.control import OutOfUse, control_of
from pdgate.gateway.wiring.knowledge import policies_of, replicas_of, watched_index_of
from pdgate.gateway.wiring.live import LiveCallPath
from pdgate.scheduling.endpoints import Endpoints

T = TypeVar("T")

DIRECTORY_SECONDS = 3.0
"""How long the start waits for a directory; without it, those configured are served."""


def build(
    settings: Settings,
    metrics_folder: Path | None = None,
    directory: Directory | None = None,
    admin_port: int | None = None,
    load_folder: Path | None = None,
    picker_port: int | None = None,
) -> Front:
    """The gateway as an ASGI application; it makes no connection before its lifespan begins.

    `metrics_folder` and `load_folder` are shared by all workers, where there are several.
    `directory` is what the settings name unless one is given. `admin_port` is that of the admin
    listener, if any; `picker_port` that of the endpoint picker, where the settings leave it open.
    """
    endpoints = Endpoints(settings.fleet, breaker_limits(settings.health))
    headers, access = header_policy(settings), engine_access(settings)
    index, kv_events = watched_index_of(settings, endpoints, access)
    load = prompts = turns = None
    if load_folder is not None:
        load = SharedLoad(load_folder, endpoints)
        prompts = SharedPrefixes(load_folder, endpoints, index)
        turns = SharedTurns(load_folder)
    replicas = replicas_of(settings, endpoints, index, load_folder)
    policies = policies_of(index, load, prompts, None if replicas is None else replicas.prompts)
    scheduler = parts.scheduler_of(settings, endpoints, policies)
    upstream = parts.upstream_of(settings, headers, access)
    upstream.memory = crowd = parts.crowd_of(settings)
    callbacks = CallbackPorts.of(settings)
    sends = upstream if callbacks is None else callbacks.around(upstream)
    heard = frozenset[Callback]() if callbacks is None else callbacks.heard
    ledger, lives = KvLedger(), Lives()
    recent = RecentCalls() if settings.debug_routes or on_demand.has_console(settings) else None
    if recent is not None and settings.debug_routes:
        scheduler.told = recent.chose
    stats = CallStats(endpoints, recent, CallLog(settings.call_log, settings.log_prompts))
    signed = parts.signed_of(settings)
    sessions = Sessions(settings.timeouts.session_idle_seconds)
    core = GatewayCore(
        settings=settings,
        endpoints=endpoints,
        index=index,
        policies=policies,
        scheduler=scheduler,
        upstream=upstream,
        access=access,
        ledger=ledger,
        lives=lives,
        execution=parts.execution_of(settings, scheduler, sends, ledger, lives, heard, turns),
        recent=recent,
        stats=stats,
        drain=parts.drain_of(settings, stats, sessions),
        sessions=sessions,
        intake=parts.intake_of(settings, headers),
        authenticator=parts.door_of(settings, signed),
        gate=parts.gate_of(settings, endpoints, scheduler, load),
        prober=parts.prober_of(settings, endpoints, access),
        crowd=crowd,
        watchdog=Watchdog(),
        jobs=Jobs(),
        reload=Reload(settings),
        folder=metrics_folder,
        load_folder=load_folder,
        heard=heard,
    )
    core.execution.encoding = parts.encode_stage_of(settings, scheduler, upstream, core.execution)
    core.execution.room = crowd
    if kv_events is not None:
        core.execution.told_ids = kv_events.read
        core.prober.on_adapters = kv_events.translation.know_adapters
    feed = parts.feed_of(settings, directory, endpoints, core.prober)
    watch = parts.watch_of(settings, endpoints, access)
    more = components.more_of(watch)
    service = parts.service_of(core)
    out = OutOfUse(core)
    control, controlling = control_of(core, service, out)
    service.tenants = parts.tenants_of(settings, core.authenticator, endpoints, load_folder)
    service.shares = parts.shares_of(settings, endpoints)
    front = _front(
        core,
        service,
        feed,
        headers,
        admin_port,
        [
            components.call_path(core),
            components.process(core),
            components.health(core, service.holds),
            components.keys(core, signed),
            components.disaggregation_rule(core),
            components.drained_instances(
                core, more, out, None if control is None else control.let_in
            ),
            on_demand.batches(core, service),
            components.realtime(core),
            *present(
                controlling,
                components.tenants(core, service),
                components.discovery(feed),
                components.admission(core),
                components.callbacks(callbacks),
                components.kv_events(kv_events),
                components.engine_metrics(watch),
                components.worker_sync(load, prompts),
                components.replica_sync(replicas),
                on_demand.adaptive_roles(core),
                on_demand.console(core, more),
                on_demand.tracing(core),
                on_demand.endpoint_picker(core, service, headers, feed, picker_port),
            ),
        ],
    )
    return front


def _front(
    core: GatewayCore,
    service: Service,
    feed: Feed | None,
    headers: HeaderPolicy,
    admin_port: int | None,
    every: Sequence[Component],
) -> Front:
    """The front end, with what its components ask for."""
    settings, jobs, reload = core.settings, core.jobs, core.reload
    counted = metrics.together(core.stats.collect, *present(*(one.collect for one in every)))
    shared = WorkerMetrics(counted, core.folder) if core.folder else None
    if shared is not None:
        jobs.add("worker-metrics", shared.run)

    async def of_one() -> Iterable[Samples]:
        return counted()

    token = read_token(settings.admin_token_file) if settings.admin_token_file else ""
    app = create_app(
        core.endpoints,
        core.prober,
        shared.collect if shared else of_one,
        partial(running, core.upstream, core.prober, feed, jobs, core.watchdog),
        lambda: front,
        core.recent if settings.debug_routes else None,
        core.intake.call_id,
        {name: note for one in every for name, note in one.ready.items()},
        core.authenticator,
        core.drain,
        lambda: front.service.intake.aliases,
        parts.operators_of(settings, admin_port),
    )
    origins = origins_of(settings.cors_origins)
    cors = Cors(origins, headers.to_clients) if origins else None
    if cors is not None:
        cors.add_to(app)
    others: ASGIApp = app
    if admin_port is not None:
        others = parts.listeners_of(settings, app, core.intake, admin_port)
    front = Front(
        service,
        others,
        path_headers if settings.debug_headers else None,
        headers.to_clients,
        parts.pings_of(settings),
        reload,
        core.crowd,
    )
    front.realtime = parts.realtime_of(core, service)
    front.admin_port, front.cors, front.application = admin_port, cors, app
    front.passthrough = settings.passthrough
    for one in (*every, LiveCallPath(front, core, feed).component()):
        jobs.add_all(one.jobs)
        if one.close is not None:
            jobs.at_end(one.close)
        for router in one.serves:
            app.include_router(router)
        front.owns += one.owns
        if one.routes is not None and token:
            for router in one.routes(token):
                app.include_router(router)
        for rule, prepare in one.reconfigure.items():
            reload.part(rule, prepare)
        if one.each_reload is not None:
            reload.always(one.each_reload)
    return front


def present(*found: T | None) -> list[T]:
    """Those that are there."""
    return [one for one in found if one is not None]


@asynccontextmanager
async def running(
    upstream: HttpUpstream, prober: Prober, feed: Feed | None, jobs: Jobs, watchdog: Watchdog
) -> AsyncIterator[None]:
    """Calls may come inside the block: engines have been looked at, as far as they answer.

    `jobs` run until the end of the block, as probing and following the directory do.
    """
    async with upstream, jobs:
        if feed is not None:
            jobs.start(*feed.jobs)
            # Calls that come first should find those that are announced already.
            with suppress(TimeoutError):
                await asyncio.wait_for(feed.listed.wait(), DIRECTORY_SECONDS)
        jobs.start()
        # Engines that are down are found out within the probe's own timeout.
        with suppress(TimeoutError):
            await asyncio.wait_for(prober.first_round.wait(), prober.timeout_seconds + 1)
        # Not before: modules that are first needed by a probe are loaded in its callback.
        with watchdog.watching():
            yield
