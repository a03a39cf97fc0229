"""How replicas come to know of each other's load; there are none without a Redis."""

import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pdgate.gateway.config import Settings
from pdgate.scheduling.instances import Instances
from pdgate.scheduling.prefix.index import PrefixIndex

if TYPE_CHECKING:
    from pdgate.gateway.replicas.far_prompts import FarPrompts
    from pdgate.gateway.replicas.status import ReplicaStatus


def far_prompts_of(
    settings: Settings, instances: Instances, index: PrefixIndex, load_folder: Path | None
) -> "FarPrompts | None":
    """`load_folder` as below."""
    if not settings.redis:
        return None
    from pdgate.gateway.replicas.far_prompts import FarPrompts
    from pdgate.gateway.replicas.redis_stream import RedisStream

    return FarPrompts(index, instances, _name(load_folder), RedisStream(settings.redis))


def replicas_of(
    settings: Settings,
    instances: Instances,
    load_folder: Path | None,
    prompts: "FarPrompts | None" = None,
) -> "ReplicaStatus | None":
    """`load_folder` is shared by the workers of this gateway, where there are several."""
    if not settings.redis:
        return None
    # Only who asks for Redis needs its package.
    from pdgate.gateway.replicas.exchange import LEASE_SECONDS, Exchange
    from pdgate.gateway.replicas.load import FarLoad
    from pdgate.gateway.replicas.redis_board import RedisBoard
    from pdgate.gateway.replicas.status import ReplicaStatus

    board = RedisBoard(settings.redis, LEASE_SECONDS)
    exchange = Exchange(FarLoad(instances, _name(load_folder)), board, time.monotonic)
    return ReplicaStatus(exchange, instances, prompts)


def _name(load_folder: Path | None) -> str:
    """Of this gateway, the same for all its workers; made anew for each life of it, as the folder is."""
    return load_folder.name if load_folder else secrets.token_hex(8)
