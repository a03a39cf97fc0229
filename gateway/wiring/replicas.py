"""How replicas come to know of each other's load; there are none without a Redis."""

import secrets
import time
from pathlib import Path

from pdgate.gateway.config import Settings
from pdgate.gateway.replicas.exchange import LEASE_SECONDS, Exchange
from pdgate.gateway.replicas.load import FarLoad
from pdgate.gateway.replicas.status import ReplicaStatus
from pdgate.scheduling.instances import Instances


def replicas_of(
    settings: Settings, instances: Instances, load_folder: Path | None
) -> ReplicaStatus | None:
    """`load_folder` is shared by the workers of this gateway, where there are several."""
    if not settings.redis:
        return None
    # Only who asks for Redis needs its package.
    from pdgate.gateway.replicas.redis_board import RedisBoard

    # Made anew for each life of a gateway, as the folder is.
    gateway = load_folder.name if load_folder else secrets.token_hex(8)
    board = RedisBoard(settings.redis, LEASE_SECONDS)
    exchange = Exchange(FarLoad(instances, gateway), board, time.monotonic)
    return ReplicaStatus(exchange, instances)
