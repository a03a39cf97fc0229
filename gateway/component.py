"""Component: contract of parts beside the way of a call, and the parts of that way that they know.

    wiring/components.py    makes every Component of what the settings say of it, with on_demand.py
    wiring/build.py         a loop over them: jobs, /metrics, /ready, routes, reload, end

A call waits for no component, and is served where its jobs fail.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import APIRouter

from pdgate.cluster.jobs import Jobs, Run
from pdgate.forwarders.base import Callback
from pdgate.forwarders.execution import Execution
from pdgate.forwarders.kv_lease import KvLedger
from pdgate.forwarders.lives import Lives
from pdgate.gateway.admission.gate import Gate
from pdgate.gateway.config import Settings
from pdgate.gateway.config.setting import OnReload
from pdgate.gateway.debug import RecentCalls
from pdgate.gateway.front.crowd import Crowd
from pdgate.gateway.intake import Intake
from pdgate.gateway.lifecycle.drain import Drain
from pdgate.gateway.lifecycle.reload import Prepare, Reload
from pdgate.gateway.metrics.call_stats import CallStats
from pdgate.gateway.metrics.family import Source
from pdgate.gateway.policies import Policies
from pdgate.gateway.probe import Prober
from pdgate.gateway.readiness import Note
from pdgate.gateway.realtime.sessions import Sessions
from pdgate.gateway.security.authenticator import Authenticator
from pdgate.gateway.security.engine_access import EngineAccess
from pdgate.gateway.upstream.client import HttpUpstream
from pdgate.gateway.watchdog import Watchdog
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.prefix import PrefixIndex
from pdgate.scheduling.scheduler import Scheduler

Routes = Callable[[str], Sequence[APIRouter]]
"""Admin token, which is not empty -> routes that ask for it."""


@dataclass(frozen=True, slots=True)
class Component:
    """A part of a gateway; each field may be left out.

    Attributes:
        jobs: Name -> what runs for as long as the gateway does (cluster/jobs.py).
        close: Called once, when all jobs have ended.
        collect: Samples for /metrics, of families that gateway/metrics/families.py declares.
        ready: Key on /ready -> its note there.
        routes: Of the admin API; there are none without an admin token.
        serves: Routes for clients.
        owns: Beginnings of paths that never pass to an engine.
        reconfigure: Rule that settings name -> what prepares their new values (lifecycle/reload.py).
        each_reload: Prepares what files may say anew, though no setting differs.
    """

    jobs: Mapping[str, Run] = field(default_factory=dict)
    close: Callable[[], None] | None = None
    collect: Source | None = None
    ready: Mapping[str, Note] = field(default_factory=dict)
    routes: Routes | None = None
    serves: Sequence[APIRouter] = ()
    owns: tuple[str, ...] = ()
    reconfigure: Mapping[OnReload, Prepare] = field(default_factory=dict)
    each_reload: Prepare | None = None


@dataclass(frozen=True, slots=True, eq=False)
class GatewayCore:
    """What every call passes, and what a gateway of any settings has.

    Attributes:
        recent: None where no operator may look at single calls.
        heard: How engines can call back, as there is a port.
        authenticator, gate: None where no keys are asked for, and where nothing is limited.
        folder, load_folder: Shared by the workers of this gateway, the second in memory; None where there is
            one process.
    """

    settings: Settings
    endpoints: Endpoints
    index: PrefixIndex
    policies: Policies
    scheduler: Scheduler
    upstream: HttpUpstream
    access: EngineAccess
    ledger: KvLedger
    lives: Lives
    execution: Execution
    recent: RecentCalls | None
    stats: CallStats
    drain: Drain
    sessions: Sessions
    intake: Intake
    authenticator: Authenticator | None
    gate: Gate | None
    prober: Prober
    crowd: Crowd
    watchdog: Watchdog
    jobs: Jobs
    reload: Reload
    folder: Path | None
    load_folder: Path | None
    heard: frozenset[Callback]
