"""Reference engines that announce themselves in a real etcd, and a gateway told of nothing else."""

import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event

import pytest

from tests.end_to_end.reference.fleet import Engine, Fleet, Gateway
from tests.support.etcd import EtcdServer, etcd_server

PROTOCOL, TRANSFER = "vllm-nixl", "tcp"
CALLERS = 4
TOKENS = 8


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    with etcd_server(tmp_path) as server:
        yield server


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Its engines end with the test: nobody else is to find them."""
    with ExitStack() as running:
        yield Fleet(running, sys.executable)


def announced(fleet: Fleet, etcd: EtcdServer, role: str) -> Engine:
    slow = ("--min-itl-ms", "50", "--shutdown-timeout", "30")
    return fleet.engine(role, PROTOCOL, TRANSFER, "--etcd", etcd.endpoints[0], *slow)


def ask(gateway: Gateway) -> str:
    """Raises what the official client raises for anything but a whole answer."""
    with gateway.openai().completions.create(
        model="pdgate-tiny",
        prompt="To be, or not to be, that is the question",
        max_tokens=TOKENS,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    ) as events:
        choices = [event.choices[0] for event in events if event.choices]
    assert choices[-1].finish_reason == "length"
    return "".join(choice.text for choice in choices)


def served(engine: Engine) -> float:
    return engine.metric("vllm:request_success_total")


class Callers:
    """Ask without a pause until the block ends, which fails if a single call did."""

    def __init__(self, gateway: Gateway) -> None:
        self.answers: list[str] = []
        self._gateway = gateway
        self._enough = Event()

    @contextmanager
    def asking(self) -> Iterator["Callers"]:
        with ThreadPoolExecutor(CALLERS) as pool:
            callers = [pool.submit(self._ask) for _ in range(CALLERS)]
            try:
                yield self
            finally:
                self._enough.set()
            for caller in callers:
                caller.result()
        assert len(set(self.answers)) == 1

    def wait_for(self, more: int) -> None:
        """Until so many calls more have ended."""
        goal = len(self.answers) + more
        self._gateway.process.wait_until(
            lambda: len(self.answers) >= goal or None, f"{more} more answers", seconds=60
        )

    def _ask(self) -> None:
        while not self._enough.is_set():
            self.answers.append(ask(self._gateway))


def test_a_gateway_with_nothing_but_etcd_serves_a_pair(fleet: Fleet, etcd: EtcdServer) -> None:
    prefill, decode = announced(fleet, etcd, "prefill"), announced(fleet, etcd, "decode")

    with fleet.serve("--etcd", etcd.endpoints[0]) as gateway:
        assert ask(gateway)

    assert (served(prefill), served(decode)) == (1, 1)
    assert decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") > 0


def test_engines_join_and_leave_under_load_and_no_call_fails(
    fleet: Fleet, etcd: EtcdServer
) -> None:
    announced(fleet, etcd, "prefill")
    first = announced(fleet, etcd, "decode")
    with fleet.serve("--etcd", etcd.endpoints[0]) as gateway, Callers(gateway).asking() as callers:
        second = announced(fleet, etcd, "decode")
        gateway.process.wait_until(lambda: served(second) or None, "calls at the newcomer")

        first.process.signal(signal.SIGTERM)
        assert first.process.wait_for_end() == 0

        callers.wait_for(2 * CALLERS)
    assert len(etcd.keys()) == 2


@pytest.mark.parametrize(("away_seconds", "empty"), [(20, False), (1, True)])
def test_etcd_may_be_away_and_nothing_is_lost(
    fleet: Fleet, etcd: EtcdServer, away_seconds: float, empty: bool
) -> None:
    """20 s are longer than a lease lasts. Empty, it knows nobody when it is back."""
    announced(fleet, etcd, "prefill")
    announced(fleet, etcd, "decode")
    keys = etcd.keys()
    with fleet.serve("--etcd", etcd.endpoints[0]) as gateway, Callers(gateway).asking() as callers:
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
