"""Reference engines that announce themselves in a real etcd, and a gateway told of nothing else."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.end_to_end.reference.callers import PROMPT, Callers, ask
from tests.end_to_end.reference.fleet import Engine, Fleet, Gateway
from tests.support.etcd import EtcdServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

PROTOCOL, TRANSFER = "vllm-nixl", "tcp"
RUNNING = "vllm:num_requests_running"
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


def test_a_revoked_lease_ends_an_engine_when_it_has_answered(
    own_fleet: Fleet, etcd: EtcdServer
) -> None:
    """With calls under way, which no time cuts: a signal would have given them none."""
    announced(own_fleet, etcd, "prefill")
    flags = ("--min-itl-ms", "50", "--shutdown-timeout", "0")
    before = set(etcd.leases())
    decode = own_fleet.engine("decode", PROTOCOL, TRANSFER, "--etcd", etcd.endpoints[0], *flags)
    (lease,) = decode.process.wait_until(
        lambda: (len(etcd.keys()) == 2 and set(etcd.leases()) - before) or None, "both in etcd"
    )
    with (
        own_fleet.serve("--etcd", etcd.endpoints[0]) as gateway,
        ThreadPoolExecutor(1) as pool,
    ):
        # Twice as long as it may take until the engine asks etcd again.
        asked = pool.submit(ask, gateway, PROMPT, 160)
        decode.process.wait_until(lambda: decode.metric(RUNNING) or None, "a call at decode")
        etcd.revoke(lease)

        decode.process.wait_for_line("does not list this engine any more")
        assert not asked.done()
        assert asked.result()
        assert decode.process.wait_for_end() == 0
    assert not [key for key in sorted(etcd.keys()) if "decode" in key]


def test_an_engine_that_stood_still_for_longer_than_its_lease_is_listed_again(
    own_fleet: Fleet, etcd: EtcdServer
) -> None:
    """etcd says of its lease what it says of one that was revoked; and a call was under way."""
    options = [f"urls={etcd.endpoints[0]}", "lease_seconds=1"]
    words = [word for option in options for word in ("--directory-option", option)]
    engine = own_fleet.engine("plain", "plain", "shm", "--directory", "etcd", *words, "--min-itl-ms", "50")  # fmt: skip
    engine.process.wait_until(lambda: etcd.keys() or None, "it in etcd")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, Gateway(engine.url, engine.process), PROMPT, 100)
        engine.process.wait_until(lambda: engine.metric(RUNNING) or None, "a call")
        engine.process.signal(signal.SIGSTOP)
        wait_until(lambda: not etcd.keys(), "the end of its lease")
        engine.process.signal(signal.SIGCONT)

        wait_until(lambda: len(etcd.keys()) == 1, "its entry again")
        assert asked.result()
    assert engine.process.process.poll() is None


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
