"""Gateways share by Redis if they have one, and workers of one gateway are known as such."""

from pathlib import Path

from pdgate.gateway.config import Settings
from pdgate.gateway.sync.replicas.entry import decode
from pdgate.gateway.wiring.knowledge import replicas_of
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.prefix import PrefixIndex

SETTINGS = Settings(redis="redis://127.0.0.1:1/0")


def gateway(folder: Path | None) -> str:
    """What a process says that it is of."""
    replicas = replicas_of(SETTINGS, Endpoints(), PrefixIndex(), folder)
    assert replicas is not None
    return decode(replicas.exchange.load.told()).gateway


def test_without_a_redis_nothing_is_shared() -> None:
    assert replicas_of(Settings(), Endpoints(), PrefixIndex(), None) is None


def test_workers_are_of_one_gateway_and_replicas_of_several() -> None:
    one, other = Path("/dev/shm/pdgate-load-one"), Path("/dev/shm/pdgate-load-other")

    assert gateway(one) == gateway(one) != gateway(other)
    assert gateway(None) != gateway(None)
