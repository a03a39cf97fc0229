"""Reference engines that announce themselves in a real etcd, and a gateway told of nothing else."""

import signal
import time

import pytest

from tests.end_to_end.reference.callers import Callers, ask
from tests.end_to_end.reference.fleet import Engine, Fleet, Gateway
from tests.support.etcd import EtcdServer

PROTOCOL, TRANSFER = "vllm-nixl", "tcp"
CALLERS = 4


def announced(own_fleet: Fleet, etcd: EtcdServer, role: str) -> Engine:
    """One that is listed: it says that it is ready just before."""
    slow = ("--min-itl-ms", "50", "--shutdown-timeout", "30")
    engine = own_fleet.engine(role, PROTOCOL, TRANSFER, "--etcd", etcd.endpoints[0], *slow)
    key = f"/workers/{role}/{engine.url.removeprefix('http://').replace(':', '/')}"
    engine.process.wait_until(lambda: etcd.keys().count(key) or None, f"{key} in etcd")
    return engine


def served(engine: Engine) -> float:
    return engine.metric("vllm:request_success_total")


def test_a_gateway_with_nothing_but_etcd_serves_a_pair(own_fleet: Fleet, etcd: EtcdServer) -> None:
    prefill, decode = announced(own_fleet, etcd, "prefill"), announced(own_fleet, etcd, "decode")

    with own_fleet.serve("--etcd", etcd.endpoints[0]) as gateway:
        assert ask(gateway)

    assert (served(prefill), served(decode)) == (1, 1)
    assert decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") > 0


def test_engines_join_and_leave_under_load_and_no_call_fails(
    own_fleet: Fleet, etcd: EtcdServer
) -> None:
    announced(own_fleet, etcd, "prefill")
    first = announced(own_fleet, etcd, "decode")
    with (
        own_fleet.serve("--etcd", etcd.endpoints[0]) as gateway,
        Callers(gateway, CALLERS).asking() as callers,
    ):
        second = announced(own_fleet, etcd, "decode")
        gateway.process.wait_until(lambda: served(second) or None, "calls at the newcomer")

        first.process.signal(signal.SIGTERM)
        assert first.process.wait_for_end() == 0

        callers.wait_for(2 * CALLERS)
    assert len(etcd.keys()) == 2


@pytest.mark.parametrize(("away_seconds", "empty"), [(20, False), (1, True)])
def test_etcd_may_be_away_and_nothing_is_lost(
    own_fleet: Fleet, etcd: EtcdServer, away_seconds: float, empty: bool
) -> None:
    """20 s are longer than a lease lasts. Empty, it knows nobody when it is back."""
    announced(own_fleet, etcd, "prefill")
    announced(own_fleet, etcd, "decode")
    keys = etcd.keys()
    with (
        own_fleet.serve("--etcd", etcd.endpoints[0]) as gateway,
        Callers(gateway, CALLERS).asking() as callers,
    ):
        etcd.stop()
        away = time.monotonic()
        state(gateway, "degraded")
        while time.monotonic() < away + away_seconds:
            callers.wait_for(CALLERS)
        if empty:
            etcd.forget()
        etcd.start()

        state(gateway, "current")
        callers.wait_for(CALLERS)
        gateway.process.wait_until(
            lambda: (etcd.keys() == keys and len(etcd.leases()) == 2) or None, "entries and leases"
        )
        callers.wait_for(CALLERS)


def state(gateway: Gateway, wanted: str) -> None:
    """Waits until /ready says so of the directory; it is 200 all the time."""

    def said() -> bool | None:
        answer = gateway.ready()
        assert answer["ready"]
        return answer["directory"] == {"state": wanted, "instances": 2} or None

    gateway.process.wait_until(said, f"a {wanted} directory")
