"""What an engine's process, or a rank's, needs to meet peers: a transfer backend, and settings for a connector."""

from collections.abc import Callable, Mapping
from typing import Any

from pdgate.engine import transfer_options
from pdgate.engine.hand_over.settings import ConnectorSettings
from pdgate.engine.roles import may_change
from pdgate.engine.settings import WILDCARDS, EngineSettings
from pdgate.protocols.instance import Role
from pdgate.transfer import registry
from pdgate.transfer.base import Backend
from pdgate.transfer.device.base import DeviceEvent
from pdgate.transfer.runtime.fleet import Identity


def open_backend(settings: EngineSettings, identity: Identity) -> Backend:
    """Raises ValueError, LookupError, TypeError, OSError."""
    options = transfer_options.read(settings.transfer, settings.transfer_options)
    return _opened(settings.transfer, settings, identity, options)


def open_tier_backend(settings: EngineSettings, identity: Identity) -> Backend:
    """For blocks of tiers between hosts. Raises as `open_backend`."""
    return _opened(settings.kv_tier_transfer, settings, identity, {})


def _opened(
    name: str, settings: EngineSettings, identity: Identity, options: Mapping[str, Any]
) -> Backend:
    # Peers dial what is advertised, which a wildcard is not.
    advertise = settings.host if settings.kv_host in WILDCARDS else settings.kv_host
    return registry.load(
        name, identity=identity, host=settings.kv_host, advertise=advertise, **options
    )


def connector_settings(
    settings: EngineSettings,
    api_port: int,
    model: str,
    identity: Identity,
    *,
    state_bytes: int | None = None,
    ranks: tuple[int, ...] = (),
    kv_port: int | None = None,
    engine_id: str = "",
    tell_ranks: Callable[[Any], object] = lambda _: None,
    moment: Callable[[], DeviceEvent | None] = lambda: None,
) -> ConnectorSettings:
    """`ranks`, and what goes with them, are of one of several processes. Raises ValueError."""
    return ConnectorSettings(
        role=Role.BOTH if may_change(settings) else Role(settings.role),
        host=settings.host,
        api_port=api_port,
        kv_host=settings.kv_host,
        kv_port=settings.kv_port if kv_port is None else kv_port,
        lease_seconds=settings.lease_seconds,
        model=model,
        peer=settings.peer,
        queue=settings.queue,
        max_local_prefill=settings.max_local_prefill,
        max_prefill_queue=settings.max_prefill_queue,
        store=settings.store,
        layer_wise=settings.neuron_layer_wise,
        whole_pages=settings.neuron_whole_pages,
        read_back=settings.read_back,
        max_seqs=settings.max_seqs,
        engine_id=engine_id or settings.engine_id,
        identity=identity,
        state_bytes=state_bytes,
        speculates=settings.speculate > 0,
        # Of several processes the first one is asked, and could not tell the others of a loan.
        borrows=not ranks,
        ranks=ranks,
        tell_ranks=tell_ranks,
        moment=moment,
    )
