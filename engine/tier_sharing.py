"""Sharing of an engine's KV tiers with engines of other hosts: it asks theirs, and serves its own."""

import contextlib
import logging
from collections.abc import Sequence

from pdgate.cluster import address
from pdgate.engine.cache.peer_tier import PeerTier
from pdgate.engine.cache.tier_service import TierService
from pdgate.engine.cache.tier_spec import peers_of
from pdgate.engine.cache.tiers import Tier
from pdgate.engine.peers import open_tier_backend
from pdgate.engine.settings import EngineSettings
from pdgate.transfer.runtime.fleet import Identity

log = logging.getLogger(__name__)


def shared(
    settings: EngineSettings,
    tiers: Sequence[Tier],
    block_bytes: int,
    identity: Identity,
    closing: contextlib.ExitStack,
) -> PeerTier | None:
    """Those that are asked, None for none; ours are served from now on. Until `closing` ends.

    Raises ValueError, LookupError, TypeError, OSError, TransferError.
    """
    backend = open_tier_backend(settings, identity)
    closing.callback(backend.close)

    def lend(name: str) -> memoryview | None:
        found = (tier.lend(name, block_bytes) for tier in tiers)
        return next((pages for pages in found if pages is not None), None)

    if settings.kv_tier_port is not None:
        service = TierService(
            settings.kv_host, settings.kv_tier_port, lend, block_bytes, backend, identity
        )
        closing.callback(service.close)
        log.info("KV tiers are served at %s", address.joined(settings.kv_host, service.port))
    specs = peers_of(settings.kv_tiers)
    if not specs:
        return None
    peers = PeerTier(specs, block_bytes, backend, identity)
    closing.enter_context(peers.fetching())
    return peers
