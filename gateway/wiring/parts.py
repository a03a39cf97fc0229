"""Parts of the gateway, each made of what the settings say of it."""

import time
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import Request
from starlette.types import ASGIApp

from pdgate.cluster.directory import Directory
from pdgate.forwarders.base import Callback, Mode, Upstream
from pdgate.forwarders.encoding import EncodeStage
from pdgate.forwarders.execution import Execution
from pdgate.forwarders.kv_lease import KvLedger
from pdgate.forwarders.lives import Lives
from pdgate.forwarders.read_back import TurnStore
from pdgate.gateway.admin.bearer import is_operator, knows
from pdgate.gateway.admin.listener import Listeners
from pdgate.gateway.admission.gate import Gate
from pdgate.gateway.admission.giving_way import GivingWayGate
from pdgate.gateway.component import GatewayCore
from pdgate.gateway.config import Settings
from pdgate.gateway.config.api_keys import api_keys
from pdgate.gateway.config.checks import mode_for
from pdgate.gateway.config.directory import directory_of
from pdgate.gateway.config.jwt import token_checks
from pdgate.gateway.config.rules import (
    retry_policy_of,
    rule_of,
    timeouts_of,
    timeouts_of_models,
    total_time_of,
)
from pdgate.gateway.config.token import read_token
from pdgate.gateway.discovery.adopt import adopter
from pdgate.gateway.discovery.feed import Feed
from pdgate.gateway.discovery.state import DiscoveryState
from pdgate.gateway.engine_addresses import EngineAddresses
from pdgate.gateway.front.crowd import Crowd
from pdgate.gateway.front.pings import Pings
from pdgate.gateway.intake import Intake
from pdgate.gateway.lifecycle.drain import Drain
from pdgate.gateway.memory_limit import for_bodies
from pdgate.gateway.metrics.call_stats import CallStats
from pdgate.gateway.policies import Policies, targets_of
from pdgate.gateway.probe import Prober
from pdgate.gateway.realtime.door import RealtimeDoor
from pdgate.gateway.realtime.sessions import Sessions
from pdgate.gateway.security.authenticator import Authenticator
from pdgate.gateway.security.engine_access import EngineAccess
from pdgate.gateway.security.headers import HeaderPolicy
from pdgate.gateway.service import Service
from pdgate.gateway.sockets.dial import SocketDialer
from pdgate.gateway.steering import Steering
from pdgate.gateway.sync.workers import SharedLines, SharedLoad
from pdgate.gateway.tenants import saved
from pdgate.gateway.tenants.local import LocalAccounts
from pdgate.gateway.tenants.shares import Share, Shares
from pdgate.gateway.tenants.tenants import Accounts, Tenants
from pdgate.gateway.upstream.client import HttpUpstream
from pdgate.gateway.upstream.settings import UpstreamSettings
from pdgate.gateway.verification.watch import VerificationWatch
from pdgate.gateway.ways import own_fields, ways
from pdgate.protocols.instance import Role
from pdgate.scheduling.admission import Limits
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.policy import DEFAULT
from pdgate.scheduling.policy_context import PolicyContext, Targets
from pdgate.scheduling.scheduler import Scheduler

if TYPE_CHECKING:
    from pdgate.gateway.tenants.jwks import Jwks
    from pdgate.gateway.tenants.tokens import SignedTokens


def scheduler_of(settings: Settings, endpoints: Endpoints, policies: Policies) -> Scheduler:
    return Scheduler(
        endpoints,
        prefill=policies.of(Role.PREFILL, settings),
        decode=policies.of(Role.DECODE, settings),
        plain=policies.of(Role.PLAIN, settings),
        rule=rule_of(settings.disaggregation),
        prefixes=policies.prefixes,
        of_models=policies.of_models(settings),
        encode=policies.load("random_two", PolicyContext(Role.ENCODE)),
    )


def upstream_of(settings: Settings, headers: HeaderPolicy, access: EngineAccess) -> HttpUpstream:
    return HttpUpstream(
        UpstreamSettings(
            timeouts=timeouts_of(settings.timeouts),
            timeouts_of=timeouts_of_models(settings),
            forwarded=headers.to_engines,
            tls=access.tls,
            server_name=access.server_name,
            authorization=access.authorization,
        )
    )


def execution_of(
    settings: Settings,
    scheduler: Scheduler,
    upstream: Upstream,
    ledger: KvLedger,
    lives: Lives,
    heard: frozenset[Callback],
    turns: TurnStore | None,
) -> Execution:
    return Execution(
        scheduler,
        ways(settings, heard),
        upstream,
        policy=retry_policy_of(settings),
        ledger=ledger,
        lives=lives,
        max_resumes=settings.max_attempts if settings.resume else 0,
        early_first_token=settings.early_first_token,
        read_back=settings.read_back,
        turns=turns,
    )


def encode_stage_of(
    settings: Settings, scheduler: Scheduler, upstream: Upstream, execution: Execution
) -> EncodeStage | None:
    """Make the encode stage; None where no encode engine can be, and calls are not searched for media."""
    if not settings.directory and all(one.role is not Role.ENCODE for one in settings.fleet):
        return None
    return EncodeStage(scheduler, upstream, settings.max_attempts, execution.failed)


def intake_of(settings: Settings, headers: HeaderPolicy) -> Intake:
    return Intake(
        settings.max_body_bytes,
        settings.trust_client_kv_params,
        headers.to_engines,
        own_fields(settings),
        settings.aliases,
    )


def crowd_of(settings: Settings) -> Crowd:
    elsewhere_bytes = settings.prefix_index.max_bytes
    return Crowd(for_bodies(settings.max_memory_bytes, settings.listen.workers, elsewhere_bytes))


def prober_of(settings: Settings, endpoints: Endpoints, access: EngineAccess) -> Prober:
    health = settings.health
    return Prober(
        endpoints, health.interval_seconds, health.timeout_seconds, health.retry_seconds, access
    )


def feed_of(
    settings: Settings, directory: Directory | None, endpoints: Endpoints, prober: Prober
) -> Feed | None:
    directory = directory or directory_of(settings)
    if directory is None:
        return None
    state = DiscoveryState(Path(settings.state_dir)) if settings.state_dir else None
    return Feed(directory, endpoints, prober, adopter(settings), time.monotonic, state)


def limits_of(settings: Settings) -> Limits:
    given = settings.admission.model_dump(exclude_none=True)
    wanted = settings.targets.model_dump(exclude_none=True)
    # Envoy waits for the picker's word for 200 ms unless it is told otherwise.
    bounded = not settings.epp.listen or settings.admission.wait_seconds is not None
    waits = bool(wanted) and settings.prefill_policy == DEFAULT and bounded
    kept = Targets(wanted.get("ttft_seconds", inf), wanted.get("tpot_seconds", inf))
    limits = Limits.of(given, targets_of(settings), kept if waits else None)
    return limits.shared_by(settings.listen.workers)


def gate_of(
    settings: Settings, endpoints: Endpoints, scheduler: Scheduler, neighbours: SharedLoad | None
) -> Gate | None:
    """Make the gate of admission; None where nothing is limited."""
    limits = limits_of(settings)
    if not limits.any:
        return None
    lines = None
    if neighbours is not None:
        lines = SharedLines(neighbours.neighbourhood, neighbours.take_in)
    staged = mode_for(settings, settings.pdd_protocol) is Mode.STAGED
    gate = Gate(limits, endpoints, lines, scheduler.cached, scheduler.stays, staged)
    if limits.give_way:
        gate.giving_way = GivingWayGate(gate)
    scheduler.freed, scheduler.places = gate.look_soon, limits.places
    return gate


def listeners_of(settings: Settings, app: ASGIApp, intake: Intake, admin_port: int) -> ASGIApp:
    check = knows(read_token(settings.admin_token_file))
    both = settings.metrics_on == "both"
    return Listeners(app, admin_port, check, intake.call_id, metrics_on_main=both)


def operators_of(settings: Settings, admin_port: int | None) -> Callable[[Request], bool]:
    path = settings.admin_token_file
    return is_operator(read_token(path) if path else "", admin_port)


class Signed(NamedTuple):
    """Tokens of an identity provider, and what checks them."""

    tokens: "SignedTokens"
    keys: "Jwks"


def signed_of(settings: Settings) -> Signed | None:
    """Make the checks of signed tokens; None where none are taken."""
    if not settings.jwt.issuer:
        return None
    # Only a gateway that takes tokens needs these.
    from pdgate.gateway.tenants.jwks import Jwks, reader_of
    from pdgate.gateway.tenants.tokens import SignedTokens

    keys = Jwks(reader_of(settings.jwt.jwks))
    return Signed(SignedTokens(token_checks(settings), keys, settings.listen.workers), keys)


def door_of(settings: Settings, signed: Signed | None = None) -> Authenticator | None:
    """Make the authenticator; None where no keys are asked for."""
    if not settings.asks_for_keys:
        return None
    keys = api_keys(settings.api_keys, settings.api_keys_file, settings.aliases)
    tokens = None if signed is None else signed.tokens
    return Authenticator(keys, settings.listen.workers, tokens=tokens)


def shares_of(settings: Settings, endpoints: Endpoints) -> Shares | None:
    """Make the shares of models; None where no model's calls are shared."""
    if not settings.shares:
        return None

    def served(model: str, at: str) -> bool:
        return any(
            one.fit and (not at or one.instance.id == at) and model in one.models
            for one in endpoints
        )

    shares = {share.model: Share(share.to, share.by == "key") for share in settings.shares}
    return Shares(shares, served)


def tenants_of(
    settings: Settings,
    authenticator: Authenticator | None,
    endpoints: Endpoints,
    folder: Path | None,
) -> Tenants | None:
    """Make the tenants' accounts; None where no keys are asked for. `folder`: of all workers of this gateway."""
    if authenticator is None:
        return None

    def length_of(model: str | None) -> int | None:
        lengths = [
            one.lengths[name] for one in endpoints for name in one.lengths if model in (name, None)
        ]
        return max(lengths, default=None)

    saves = settings.state_dir and not settings.redis
    read = partial(saved.read, Path(settings.state_dir)) if saves else dict[str, list[int]]
    local = LocalAccounts(folder, saved=read)
    shared: Accounts | None = None
    if settings.redis:
        from pdgate.gateway.tenants.in_redis import RedisAccounts

        shared = RedisAccounts(settings.redis, local)
    return Tenants(authenticator, local, length_of, shared)


def watch_of(
    settings: Settings, endpoints: Endpoints, access: EngineAccess
) -> VerificationWatch | None:
    given = settings.engine_metrics
    if not given.interval_seconds:
        return None
    return VerificationWatch(
        endpoints, given.interval_seconds, given.timeout_seconds, time.monotonic, access
    )


def pings_of(settings: Settings) -> Pings | None:
    seconds = settings.timeouts.ping_seconds
    return Pings(seconds) if seconds else None


def running_of(stats: CallStats, sessions: Sessions) -> Callable[[], int]:
    """How many run: calls, and sessions, which are calls as well."""
    return lambda: stats.in_flight + sessions.open


def drain_of(settings: Settings, stats: CallStats, sessions: Sessions) -> Drain:
    given = settings.drain
    drain = Drain(running_of(stats, sessions), given.grace_seconds, given.notice_seconds)
    drain.last_words = sessions.end_all
    return drain


def realtime_of(core: GatewayCore, service: Service) -> RealtimeDoor:
    access = core.access
    dialer = SocketDialer(access.tls, access.server_name, access.authorization)
    return RealtimeDoor(service, core.execution, core.endpoints, dialer, core.sessions, core.stats)


def steering_of(settings: Settings, endpoints: Endpoints) -> Steering | None:
    """Make the steering; None where no header may say which engines a call is for."""
    return Steering(endpoints, EngineAddresses()) if settings.trust_endpoint_headers else None


def service_of(core: GatewayCore) -> Service:
    service = Service(
        core.intake,
        core.execution,
        core.stats,
        core.authenticator,
        core.gate,
        core.drain,
        core.endpoints,
        total_time_of(core.settings),
    )
    service.steering = steering_of(core.settings, core.endpoints)
    return service
