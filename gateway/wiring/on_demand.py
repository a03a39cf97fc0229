"""Components of features that a gateway is asked for: batches, adaptive roles, traces, the endpoint picker, the console.

What they need is imported where one is made: what is imported stays in memory.
"""

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fastapi import APIRouter

from pdgate.cluster.jobs import Run
from pdgate.gateway.component import Component, GatewayCore
from pdgate.gateway.config import Settings
from pdgate.gateway.config.directory import directory_of
from pdgate.gateway.config.instances import host_and_port
from pdgate.gateway.discovery.feed import Feed
from pdgate.gateway.engine_addresses import EngineAddresses
from pdgate.gateway.metrics import families
from pdgate.gateway.security.headers import AUTHORIZATION, HeaderPolicy
from pdgate.gateway.service import Service
from pdgate.gateway.sync.shared_store import FileStore
from pdgate.gateway.wiring import metrics
from pdgate.gateway.wiring.control import store_of
from pdgate.gateway.wiring.parts import running_of
from pdgate.protocols.errors import NotServed
from pdgate.scheduling.policy_context import Targets

if TYPE_CHECKING:
    from pdgate.gateway.console.cards import More

SMOOTH_PERIODS: Final = 3.0
"""Of adaptive roles: over how many of its periods pressure is smoothed."""


def batches(core: GatewayCore, service: Service) -> Component:
    """OpenAI's Batch API, or its refusal where no folder is named for it."""
    given = core.settings.batch
    if not given.folder:
        return Component(serves=[_no_batches()])
    from pdgate.gateway.batch.archive import Archive
    from pdgate.gateway.batch.blobs import LocalBlobs, RemoteBlobs
    from pdgate.gateway.batch.operations import BatchOperations
    from pdgate.gateway.batch.routes import BATCHES, FILES, routes
    from pdgate.gateway.batch.runner import Runner
    from pdgate.gateway.batch.sharing import opened
    from pdgate.gateway.batch.state import MOST_FILES, BatchLimits, StoredBatch

    folder = Path(given.folder)
    state, files = opened(given.state, folder), folder / "files"
    blobs = RemoteBlobs(given.storage, files) if given.storage else LocalBlobs(files)
    archive = Archive(blobs)
    limits = BatchLimits(
        concurrency=given.concurrency,
        most_file_bytes=given.max_file_bytes,
        most_lines=given.max_lines,
        most_unfinished=given.max_unfinished,
        most_stored=StoredBatch(MOST_FILES, given.max_stored_bytes),
        keep_seconds=given.keep_days * 86400,
    )
    ready = core.prober.first_round
    runner = Runner(service, state.led, state.lead, archive, limits, core.crowd, ready)
    operations = BatchOperations(service, state.routed, archive, limits, runner.look)
    return Component(
        jobs={"batches": runner.run},
        collect=partial(metrics.batches, runner),
        serves=[routes(operations)],
        owns=(FILES, BATCHES),
    )


def _no_batches() -> APIRouter:
    router = APIRouter(include_in_schema=False)

    async def refuse() -> None:
        raise NotServed("this gateway has no Batch API: name a folder for it (--batch-folder)")

    for path in ("/v1/files", "/v1/batches"):
        for end in ("", "/{rest:path}"):
            router.add_api_route(path + end, refuse, methods=["GET", "POST", "DELETE"])
    return router


def adaptive_roles(core: GatewayCore) -> Component | None:
    """Engines that change sides with the load."""
    settings, instances = core.settings, core.endpoints
    given = settings.adaptive
    if not given.enabled:
        return None
    from pdgate.gateway.adaptive.adapting import Adapting
    from pdgate.gateway.adaptive.sides import Sides
    from pdgate.gateway.policies import targets_of
    from pdgate.scheduling.roles import Roles

    def targets() -> Targets:
        return targets_of(core.reload.settings)

    store = store_of(settings, core.folder, "roles")
    if store is None and core.folder is not None:
        # Workers have to agree also where no operator can tell them anything.
        store = FileStore(core.folder / "roles.pinned")
    sides = Sides(instances, targets, time.monotonic)
    roles = Roles(given.stay_seconds, SMOOTH_PERIODS * given.period_seconds)
    adapting = Adapting(sides, roles, given.period_seconds, store)

    def routes(token: str) -> list[APIRouter]:
        from pdgate.gateway.adaptive.routes import routes

        return [routes(adapting, instances, token)]

    return Component(
        jobs={"adaptive-roles": adapting.run},
        collect=partial(metrics.roles, adapting, instances),
        routes=routes,
    )


def tracing(core: GatewayCore) -> Component | None:
    """Traces and OpenTelemetry's metrics."""
    given = core.settings.tracing
    if not given.endpoint:
        return None
    # Only a gateway with a collector needs the packages, and pays for loading them.
    from pdgate.gateway.tracing.collector import headers_in
    from pdgate.gateway.tracing.export import Exporting
    from pdgate.gateway.tracing.genai import metrics_of
    from pdgate.gateway.tracing.sampling import Tracer

    name, headers = given.service_name, headers_in(given.headers_file)
    exporting = Exporting(given.endpoint, headers, name, metrics_of(core.stats, name))
    core.stats.tracer = Tracer(given.sample_ratio, exporting.put)
    return Component(jobs={"traces": exporting.run}, collect=partial(metrics.traces, exporting))


def endpoint_picker(
    core: GatewayCore,
    service: Service,
    headers: HeaderPolicy,
    feed: Feed | None,
    port: int | None,
) -> Component | None:
    """The picker that gateways made of Envoy ask for engines. `port`: where the settings say 0."""
    given = core.settings.epp
    if not given.listen:
        return None
    # Only a gateway that is asked so needs gRPC and its messages.
    from pdgate.cluster.kubernetes.objectives import InferenceObjectives
    from pdgate.cluster.kubernetes.pool import InferencePool
    from pdgate.gateway.endpoint_picker.picking import EndpointPicker, EngineCredentials
    from pdgate.gateway.endpoint_picker.serving import ListeningAt, PickerServer

    picker = EndpointPicker(
        lambda: service.intake,
        core.execution,
        core.endpoints,
        core.stats,
        core.drain,
        EngineAddresses(),
        EngineCredentials(core.access.authorization, AUTHORIZATION in headers.to_engines),
        core.authenticator,
        core.gate,
        given.fallbacks,
    )
    host, named = host_and_port(given.listen)
    looked = core.prober.first_round
    server = PickerServer(
        picker,
        core.crowd,
        ListeningAt(host, port or named, _certificate(core.settings)),
        lambda: (
            core.drain.began is None and looked.is_set() and (feed is None or feed.listed.is_set())
        ),
    )
    jobs: dict[str, Run] = {"endpoint-picker": server.run}
    directory = directory_of(core.settings)
    if isinstance(directory, InferencePool):
        objectives = InferenceObjectives(directory.access, directory.name)
        picker.priority_of = objectives.priority_of
        jobs["inference-objectives"] = objectives.run
    return Component(
        jobs=jobs,
        collect=lambda: [
            families.ENDPOINT_PICKS.samples(
                (served.value, count) for served, count in server.served.items()
            )
        ],
    )


def _certificate(settings: Settings) -> tuple[bytes, bytes] | None:
    """None where the picker speaks without TLS."""
    given = settings.epp
    if given.insecure:
        return None
    from pdgate.gateway.endpoint_picker.certificate import from_files, self_signed

    return from_files(given.cert_file, given.key_file) if given.cert_file else self_signed()


def has_console(settings: Settings) -> bool:
    return settings.console and bool(settings.admin_token_file)


def console(core: GatewayCore, more: "More") -> Component | None:
    """The console's page and its live picture."""
    recent, scheduler = core.recent, core.scheduler
    if recent is None or not has_console(core.settings):
        return None
    from pdgate.gateway.console.attention import ConsoleAttention
    from pdgate.gateway.console.part import OwnPart
    from pdgate.gateway.console.pulse import Pulse
    from pdgate.gateway.console.snapshots import Snapshots

    # The scheduler explains its choices while an operator watches, and to GET /debug/calls.
    otherwise = scheduler.told

    def begins() -> None:
        scheduler.told = recent.chose

    def ends() -> None:
        scheduler.told = otherwise

    attention, pulse = ConsoleAttention(begins, ends), Pulse(core.stats.collect)
    own = OwnPart(
        recent, core.ledger, pulse, running_of(core.stats, core.sessions), attention, core.jobs
    )
    snapshots = Snapshots(core.endpoints, own, more, core.drain, core.folder)

    def routes(token: str) -> list[APIRouter]:
        from pdgate.gateway.admin.live import routes
        from pdgate.gateway.console import page

        return [routes(snapshots, token), page.routes()]

    jobs = {"console-pulse": pulse.run, "console-attention": attention.run}
    if snapshots.run is not None:
        jobs["console-siblings"] = snapshots.run
    return Component(jobs=jobs, routes=routes)
