"""Components of the calls, the engines and their state, made of what settings say; None for what they do not ask for."""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import APIRouter

from pdgate.cluster.jobs import Run
from pdgate.gateway.admin.instances import Drained, nothing_more
from pdgate.gateway.callbacks.part import CallbackPorts
from pdgate.gateway.component import Component, GatewayCore
from pdgate.gateway.config import Settings
from pdgate.gateway.config.api_keys import api_keys
from pdgate.gateway.config.complaints import ConfigError
from pdgate.gateway.config.jwt import token_checks
from pdgate.gateway.config.rules import breaker_limits, rule_of
from pdgate.gateway.config.sections import DisaggregationSection
from pdgate.gateway.config.setting import OnReload
from pdgate.gateway.control.holds import Holds
from pdgate.gateway.discovery.feed import Feed
from pdgate.gateway.discovery.status import DiscoveryStatus
from pdgate.gateway.engine_metrics.reader import PrefillQueue
from pdgate.gateway.lifecycle.reload import Change
from pdgate.gateway.liveness.detector import Detector
from pdgate.gateway.metrics.family import Samples
from pdgate.gateway.readiness import JobNote
from pdgate.gateway.service import Service
from pdgate.gateway.sync.shared_setting import SharedSetting, SharedStatus
from pdgate.gateway.sync.workers import SharedLoad, SharedPrefixes
from pdgate.gateway.verification.watch import VerificationWatch
from pdgate.gateway.wiring import metrics
from pdgate.gateway.wiring.control import OutOfUse, store_of
from pdgate.gateway.wiring.parts import Signed

if TYPE_CHECKING:
    from pdgate.gateway.console.cards import More
    from pdgate.gateway.kv_events.watch import EventWatch as KvEvents
    from pdgate.gateway.sync.replicas.exchange import ReplicaStatus


def call_path(core: GatewayCore) -> Component:
    """What is counted along the way of every call."""
    sources = (
        partial(metrics.process, core.watchdog),
        partial(metrics.memory, core.crowd),
        partial(metrics.kv, core.ledger, core.lives, core.endpoints),
        partial(metrics.read_back, core.execution),
        partial(metrics.policies, core.policies.passed_over),
        partial(metrics.predictions, core.endpoints),
        partial(metrics.prefixes, core.index),
    )
    return Component(collect=lambda: chain.from_iterable(source() for source in sources))


def process(core: GatewayCore) -> Component:
    """Draining, reloading, and what became of background jobs."""

    def collect() -> Iterator[Samples]:
        yield from metrics.lifecycle(core.drain, core.reload)
        yield from metrics.background(core.jobs)

    def routes(token: str) -> list[APIRouter]:
        from pdgate.gateway.admin.process import routes

        return [routes(core.drain, core.reload, core.jobs, token)]

    def reconfigure(wanted: Settings) -> Change:
        def change() -> None:
            core.drain.grace_seconds = wanted.drain.grace_seconds
            core.drain.notice_seconds = wanted.drain.notice_seconds

        return change

    return Component(
        collect=collect,
        ready={"jobs": JobNote(core.jobs)},
        routes=routes,
        reconfigure={OnReload.DRAIN: reconfigure},
    )


def health(core: GatewayCore, holds: Holds | None) -> Component:
    """Probes, and the detector of silent engines."""
    settings, instances, prober = core.settings, core.endpoints, core.prober
    gone = core.execution.gone
    prober.on_gone, prober.on_left = gone, core.execution.left
    detector = Detector(
        core.upstream.legs,
        instances,
        settings.health.frozen_seconds,
        gone,
        core.access,
        lambda endpoint: holds is not None and holds.stopped(endpoint.models),
    )

    def collect() -> Iterator[Samples]:
        yield from metrics.health(instances)
        yield from metrics.liveness(instances, core.upstream, prober)

    def reconfigure(wanted: Settings) -> Change:
        def change() -> None:
            instances.limits = breaker_limits(wanted.health)
            prober.interval_seconds = wanted.health.interval_seconds
            prober.timeout_seconds = wanted.health.timeout_seconds
            prober.retry_seconds = wanted.health.retry_seconds
            detector.seconds = wanted.health.frozen_seconds

        return change

    return Component(
        jobs={"health": prober.run, "silent-engines": detector.run},
        collect=collect,
        reconfigure={OnReload.HEALTH: reconfigure},
    )


def discovery(feed: Feed | None) -> Component | None:
    """The directory of engines."""
    if feed is None:
        return None
    status = DiscoveryStatus(feed)
    return Component(jobs=feed.jobs, collect=status.collect, ready={"directory": status})


def keys(core: GatewayCore, signed: Signed | None) -> Component:
    """API keys and signed tokens; a file of keys is read again at each reload."""
    authenticator = core.authenticator

    def reconfigure(wanted: Settings) -> Change:
        keys = api_keys(wanted.api_keys, wanted.api_keys_file, wanted.aliases)
        if (authenticator is not None) != wanted.asks_for_keys:
            raise ConfigError(
                "'api_keys': to begin or to end asking for keys needs a restart, "
                "so nothing was changed"
            )
        checks = token_checks(wanted) if wanted.jwt.issuer else None

        def change() -> None:
            if authenticator is not None:
                authenticator.admit(keys)
                if checks is not None and signed is not None:
                    signed.tokens.use(checks)

        return change

    return Component(
        jobs={} if signed is None else {"jwt-keys": signed.keys.run},
        collect=None if authenticator is None else partial(metrics.keys, authenticator),
        reconfigure={OnReload.KEYS: reconfigure},
        each_reload=reconfigure,
    )


def tenants(core: GatewayCore, service: Service) -> Component | None:
    """What keys have taken, in all workers and replicas."""
    found = service.tenants
    if found is None:
        return None
    jobs: dict[str, Run] = {"key-usage": found.run}
    closes = [found.tell]
    if found.shared is not None:
        jobs["shared-usage"] = partial(found.shared.run, found.tell)
    elif core.settings.state_dir:
        from pdgate.gateway.tenants.saved import SavedAccounts

        saving = SavedAccounts(
            Path(core.settings.state_dir), found.local.everything, lambda: found.local.changes
        )
        jobs["saved-usage"] = saving.run
        closes.append(saving.close)

    def close() -> None:
        for one in (*closes, found.local.close):
            one()

    def routes(token: str) -> list[APIRouter]:
        from pdgate.gateway.admin.usage import routes

        return [routes(found, token)]

    return Component(jobs=jobs, close=close, routes=routes)


def realtime(core: GatewayCore) -> Component:
    """Sessions that are open: their limits of time, and what is counted of them."""
    return Component(
        jobs={"realtime": core.sessions.run}, collect=partial(metrics.realtime, core.sessions)
    )


def admission(core: GatewayCore) -> Component | None:
    """Calls that wait for room at engines."""
    gate = core.gate
    return None if gate is None else Component(collect=partial(metrics.admission, gate))


def disaggregation_rule(core: GatewayCore) -> Component:
    """The rule by which calls are split, as operators set it while the gateway runs."""
    settings, scheduler = core.settings, core.scheduler

    def apply(section: DisaggregationSection) -> None:
        scheduler.rule = rule_of(section)

    store = store_of(settings, core.folder, "disaggregation")
    rule = SharedSetting(settings.disaggregation, apply, store)
    status = SharedStatus(rule) if settings.redis else None

    def routes(token: str) -> list[APIRouter]:
        from pdgate.gateway.admin.routes import routes

        return [routes(rule, token)]

    return Component(
        jobs={"disaggregation-rule": rule.follow} if rule.shared else {},
        collect=None if status is None else status.collect,
        ready={} if status is None else {"redis": status},
        routes=routes,
        reconfigure={OnReload.RULE: lambda wanted: partial(rule.configure, wanted.disaggregation)},
    )


def drained_instances(
    core: GatewayCore, more: "More", out: OutOfUse, let_in: Callable[[str], Awaitable[None]] | None
) -> Component:
    """Engines that operators have taken out; `more` is what else is shown of each."""
    instances = core.endpoints
    drained = SharedSetting(
        Drained(),
        lambda said: out.drain(said.instances),
        store_of(core.settings, core.folder, "drained"),
        name="drained instances",
    )

    def routes(token: str) -> list[APIRouter]:
        from pdgate.gateway.admin.instances import routes

        return [routes(instances, drained, token, more, let_in)]

    return Component(
        jobs={"drained-instances": drained.follow} if drained.shared else {}, routes=routes
    )


def engine_metrics(watch: VerificationWatch | None) -> Component | None:
    """Engines' own /metrics: read, compared with what the gateway counted, and shown."""
    if watch is None:
        return None
    return Component(
        jobs={"engine-metrics": watch.reader.run},
        collect=watch.report.collect,
        ready={"prefill_queue": PrefillQueue(watch.reader)},
    )


def callbacks(part: CallbackPorts | None) -> Component | None:
    """What engines say that calls wait for."""
    if part is None:
        return None
    return Component(part.jobs, part.close, partial(metrics.callbacks, part.words))


def kv_events(watch: "KvEvents | None") -> Component | None:
    """What engines publish of their KV caches."""
    return None if watch is None else Component(jobs=watch.jobs, collect=watch.collect)


def worker_sync(load: SharedLoad | None, prompts: SharedPrefixes | None) -> Component | None:
    """What the workers of this gateway know of each other's calls."""
    if load is None or prompts is None:
        return None

    def close() -> None:
        load.close()
        prompts.close()

    return Component(jobs={"worker-load": load.run, "worker-prompts": prompts.run}, close=close)


def replica_sync(status: "ReplicaStatus | None") -> Component | None:
    """What replicas on other hosts know of each other's calls."""
    if status is None or status.prompts is None:
        return None
    return Component(
        jobs={"replica-load": status.exchange.run, "replica-prompts": status.prompts.run},
        collect=status.collect,
        ready={"replicas": status},
    )


def more_of(watch: VerificationWatch | None) -> "More":
    """What engines' own metrics say of each."""
    return nothing_more if watch is None else watch.report.of
