"""Policies' knowledge: index of what engines have cached, KV events, other workers and replicas."""

import secrets
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pdgate.cluster import secret
from pdgate.gateway.config import Settings
from pdgate.gateway.policies import Load, Policies
from pdgate.gateway.security.engine_access import EngineAccess
from pdgate.gateway.sync.workers import SharedLoad, SharedPrefixes
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.policy import load
from pdgate.scheduling.prefix.index import BlocksOf, PrefixIndex, blocks_of
from pdgate.scheduling.prefix.tiers import TierPrices

if TYPE_CHECKING:
    from pdgate.gateway.kv_events.watch import EventWatch
    from pdgate.gateway.sync.replicas.exchange import ReplicaStatus
    from pdgate.gateway.sync.replicas.far_prompts import FarPrompts


def prefix_index_of(settings: Settings, source: BlocksOf = blocks_of) -> PrefixIndex:
    given = settings.prefix_index
    prices = TierPrices(given.host_price, given.disk_price)
    return PrefixIndex(source, max_bytes=given.max_bytes, kv_tokens=given.kv_tokens, prices=prices)


def policies_of(
    index: PrefixIndex,
    neighbours: SharedLoad | None,
    prompts: SharedPrefixes | None,
    far: "FarPrompts | None" = None,
) -> Policies:
    """Policies that read the index.

    `neighbours` and `prompts`: what other workers have in flight, and have sent where; `far`: what
    other replicas have.
    """
    find: Load = load
    if neighbours is not None and prompts is not None:
        find = prompts.around(neighbours.policy)
    if far is not None:
        find = far.around(find)
    return Policies(find, index)


def watched_index_of(
    settings: Settings, endpoints: Endpoints, access: EngineAccess
) -> "tuple[PrefixIndex, EventWatch | None]":
    """The index, and what feeds it besides the calls themselves."""
    given = settings.kv_events
    if not given.endpoint:
        return prefix_index_of(settings), None
    # Only a gateway that asks for them needs ZeroMQ.
    from pdgate.gateway.kv_events.subscriptions import Where
    from pdgate.gateway.kv_events.watch import EventWatch

    watch = EventWatch(
        lambda source: prefix_index_of(settings, source),
        Where(
            given.endpoint,
            given.replay_endpoint,
            given.topic,
            partial(secret.several, given.secret_file) if given.secret_file else tuple,
        ),
        endpoints,
        access,
        tokenize=given.tokenize,
    )
    return watch.index, watch


def replicas_of(
    settings: Settings, endpoints: Endpoints, index: PrefixIndex, load_folder: Path | None
) -> "ReplicaStatus | None":
    """`load_folder` is shared by the workers of this gateway, where there are several."""
    if not settings.redis:
        return None
    # Only a gateway that asks for Redis needs its package.
    from pdgate.gateway.sync.replicas.exchange import LEASE_SECONDS, ReplicaExchange, ReplicaStatus
    from pdgate.gateway.sync.replicas.far_prompts import FarPrompts
    from pdgate.gateway.sync.replicas.in_redis import RedisLoadEntries, RedisStream
    from pdgate.gateway.sync.replicas.load import FarLoad

    entries = RedisLoadEntries(settings.redis, LEASE_SECONDS)
    name = _name(load_folder)
    exchange = ReplicaExchange(FarLoad(endpoints, name), entries, time.monotonic)
    prompts = FarPrompts(index, endpoints, name, RedisStream(settings.redis))
    return ReplicaStatus(exchange, endpoints, prompts)


def _name(load_folder: Path | None) -> str:
    """Of this gateway, the same for all its workers; made anew for each life of it, as the folder is."""
    return load_folder.name if load_folder else secrets.token_hex(8)
