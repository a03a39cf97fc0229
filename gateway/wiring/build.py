"""The parts, put together."""

from functools import partial
from pathlib import Path

from fastapi import FastAPI

from pdgate.cluster.directory import Directory
from pdgate.forwarders.lives import Lives
from pdgate.forwarders.ownership import KvLedger
from pdgate.gateway.admin.dial import Dial
from pdgate.gateway.admin.instances import Drained, nothing_more
from pdgate.gateway.admin.status import SharedStatus
from pdgate.gateway.admission.books import AdmissionBooks
from pdgate.gateway.app import create_app
from pdgate.gateway.config import Settings
from pdgate.gateway.config.rules import breaker_limits, total_time_of
from pdgate.gateway.config.sections import Disaggregation
from pdgate.gateway.config.security import engine_access, header_policy
from pdgate.gateway.config.token import read_token
from pdgate.gateway.debug import RecentCalls, no_headers, path_headers
from pdgate.gateway.discovery.status import Status
from pdgate.gateway.engine_metrics.prefill_queue import PrefillQueue
from pdgate.gateway.front.asgi import Front
from pdgate.gateway.lifecycle.drain import Drain
from pdgate.gateway.lifecycle.live import Live
from pdgate.gateway.lifecycle.reload import Reload
from pdgate.gateway.logs.calls import CallLog
from pdgate.gateway.metrics.books import Books, Together, registry_of
from pdgate.gateway.metrics.health import HealthMetrics
from pdgate.gateway.metrics.kv import KvMetrics
from pdgate.gateway.metrics.passed_over import PassedOverMetrics
from pdgate.gateway.metrics.predictions import PredictionMetrics
from pdgate.gateway.metrics.prefixes import PrefixMetrics
from pdgate.gateway.metrics.workers import WorkerMetrics
from pdgate.gateway.neighbours import SharedLoad, SharedPrefixes
from pdgate.gateway.security.books import KeyBooks
from pdgate.gateway.security.cors import Cors, origins_of
from pdgate.gateway.service import Service
from pdgate.gateway.verification.watch import Watch
from pdgate.gateway.wiring import parts
from pdgate.gateway.wiring.adaptive import adaptive_of
from pdgate.gateway.wiring.background import running
from pdgate.gateway.wiring.console import Console, attention_of, has_console
from pdgate.gateway.wiring.kv_events import watched_index_of
from pdgate.gateway.wiring.prefixes import policies_of
from pdgate.gateway.wiring.replicas import far_prompts_of, replicas_of
from pdgate.gateway.wiring.tracing import tracing_of
from pdgate.scheduling.instances import Instances


def build(
    settings: Settings,
    metrics_folder: Path | None = None,
    directory: Directory | None = None,
    admin_port: int | None = None,
    load_folder: Path | None = None,
) -> Front:
    """The gateway as an ASGI application; it makes no connection before its lifespan begins.

    `metrics_folder` and `load_folder` are shared by all workers, where there are several.
    `directory` is what the settings name unless one is given. `admin_port` is that of the admin
    listener, if any.
    """
    instances = Instances(settings.fleet, breaker_limits(settings.health))
    neighbours = SharedLoad(load_folder, instances) if load_folder else None
    headers, access = header_policy(settings), engine_access(settings)
    index, kv_events = watched_index_of(settings, instances, access)
    prompts = SharedPrefixes(load_folder, instances, index) if load_folder else None
    far_prompts = far_prompts_of(settings, instances, index, load_folder)
    policies = policies_of(index, neighbours, prompts, far_prompts)
    scheduler = parts.scheduler_of(settings, instances, policies)
    upstream = parts.upstream_of(settings, headers, access)
    ledger, lives = KvLedger(), Lives()
    execution = parts.execution_of(settings, scheduler, upstream, ledger, lives)

    recent = RecentCalls() if settings.debug_routes or has_console(settings) else None
    if recent is not None and settings.debug_routes:
        scheduler.told = recent.chose
    books = Books(instances, recent, CallLog(settings.call_log, settings.log_prompts))
    tracing = tracing_of(books, settings)
    drain = Drain(
        lambda: books.in_flight, settings.drain.grace_seconds, settings.drain.notice_seconds
    )
    intake = parts.intake_of(settings, headers)
    door, gate = parts.door_of(settings), parts.gate_of(settings, instances, scheduler, neighbours)
    total = total_time_of(settings)
    service = Service(intake, execution, books, door, gate, drain, instances, total)

    prober = parts.prober_of(settings, instances, access)
    prober.on_gone = execution.gone
    feed = parts.feed_of(settings, directory, instances, prober)
    watch = parts.watch_of(settings, instances, access)
    dial = parts.dial_of(settings, scheduler, metrics_folder)
    drained = parts.drained_of(settings, instances, metrics_folder)
    reload = Reload(settings)
    adaptive = adaptive_of(settings, instances, reload, metrics_folder)

    status = Status(feed) if feed else None
    redis = SharedStatus(dial) if settings.redis else None
    replicas = replicas_of(settings, instances, load_folder, far_prompts)
    collectors = (
        books,
        HealthMetrics(instances, drain, reload),
        KvMetrics(ledger, lives, instances),
        PassedOverMetrics(policies.passed_over),
        PredictionMetrics(instances),
        PrefixMetrics(index),
        kv_events.books if kv_events else None,
        status,
        redis,
        replicas,
        KeyBooks(door) if door else None,
        AdmissionBooks(gate) if gate else None,
        adaptive.books if adaptive else None,
        watch.report if watch else None,
        tracing.books if tracing else None,
    )
    counted = Together(*(one for one in collectors if one is not None))
    shared = WorkerMetrics(counted, metrics_folder) if metrics_folder else None
    jobs = [dial.follow, drained.follow, drain.run]
    console = None
    if recent is not None and has_console(settings):
        more = watch.report.of if watch else nothing_more
        attention = attention_of(settings, scheduler, recent)
        console = Console(instances, recent, books, ledger, more, drain, attention, metrics_folder)
        jobs += console.jobs
    if neighbours is not None:
        jobs.append(neighbours.run)
    if prompts is not None:
        jobs.append(prompts.run)
    if watch is not None:
        jobs.append(watch.reader.run)
    if shared is not None:
        jobs.append(shared.run)
    if adaptive is not None:
        jobs.append(adaptive.run)
    if tracing is not None:
        jobs.append(tracing.run)
    if kv_events is not None:
        jobs.append(kv_events.run)
    if replicas is not None:
        jobs.append(replicas.exchange.run)
    if far_prompts is not None:
        jobs.append(far_prompts.run)

    notes = {
        "directory": status,
        "redis": redis,
        "replicas": replicas,
        "prefill_queue": None if watch is None else PrefillQueue(watch.reader),
    }
    app = create_app(
        instances,
        prober,
        registry_of(shared or counted),
        partial(running, upstream, prober, feed, jobs),
        recent if settings.debug_routes else None,
        intake.call_id,
        {name: note for name, note in notes.items() if note is not None},
        door,
        drain,
        lambda: service.intake.aliases,
    )
    if settings.admin_token_file:
        _administer(app, settings, dial, drained, instances, drain, reload, watch)
    if console is not None:
        console.administer(app, settings)
    if adaptive is not None:
        adaptive.administer(app, settings)
    origins = origins_of(settings.cors_origins)
    cors = Cors(origins) if origins else None
    others = app if cors is None else cors.around(app)
    if admin_port is not None:
        others = parts.listeners_of(settings, others, intake, admin_port)
    front = Front(
        service,
        others,
        path_headers if settings.debug_headers else no_headers,
        headers.to_clients,
        parts.pings_of(settings),
        reload,
    )
    front.admin_port, front.cors = admin_port, cors
    front.passthrough = settings.passthrough
    Live(
        front, instances, scheduler, policies, execution, upstream, prober, books, dial, feed
    ).register(reload)
    return front


def _administer(
    app: FastAPI,
    settings: Settings,
    dial: Dial[Disaggregation],
    drained: Dial[Drained],
    instances: Instances,
    drain: Drain,
    reload: Reload,
    watch: Watch | None,
) -> None:
    from pdgate.gateway.admin.drain import routes as drain_routes
    from pdgate.gateway.admin.instances import routes as instance_routes
    from pdgate.gateway.admin.reload import routes as reload_routes
    from pdgate.gateway.admin.routes import routes

    token = read_token(settings.admin_token_file)
    app.include_router(routes(dial, token))
    more = watch.report.of if watch else nothing_more
    app.include_router(instance_routes(instances, drained, token, more))
    app.include_router(drain_routes(drain, token))
    app.include_router(reload_routes(reload, token))
