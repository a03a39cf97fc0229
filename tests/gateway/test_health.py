"""Engines whose calls fail are left alone, and are back as soon as they do well."""

import asyncio
from contextlib import suppress

import pytest

from pdgate.gateway.config.sections import HealthSection
from pdgate.protocols.instance import Role
from tests.support.fleet import (
    PATIENCE_SECONDS,
    Engine,
    Gateway,
    breaks_off,
    engine_error,
    gateway_of,
    says,
)
from tests.support.raw_server import Peer, reply
from tests.support.waiting import until

RARE = HealthSection(
    interval_seconds=600, timeout_seconds=10, retry_seconds=0.01, slow_start_seconds=0
)
"""Whatever comes back here does so without the regular looks."""


async def state(gateway: Gateway, instance: str) -> str:
    """As /metrics has it."""
    found = await gateway.metrics()
    states = [key for key in found if key[0] == "pdgate_instance_state" and key[1] == instance]
    assert len(states) == 1
    return states[0][-1]


async def test_an_engine_in_which_calls_fail_is_left_alone_and_back_after_one_good_call() -> None:
    """Peers lose half of the calls for 135 s, or answer 503 for a minute after two errors."""
    sick, well = Engine(Role.PLAIN), Engine(Role.PLAIN)
    good = sick.script
    async with gateway_of(sick, well, health=RARE) as gateway:
        sick.script = breaks_off()
        async with asyncio.timeout(PATIENCE_SECONDS):
            ejected = "pdgate_instance_ejections_total", "plain-0", "plain", "failures"
            while not (await gateway.metrics())[ejected]:
                assert (await gateway.chat()).status_code == 200

        sick.script = good
        before = len(sick.calls)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await state(gateway, "plain-0") != "up":
                assert (await gateway.chat()).status_code == 200
        assert len(sick.calls) > before


async def test_calls_that_are_wrong_or_too_many_eject_nobody() -> None:
    plain, other = Engine(Role.PLAIN), Engine(Role.PLAIN)
    async with gateway_of(plain, other, health=RARE, max_attempts=1) as gateway:
        for status in (b"400 Bad Request", b"429 Too Many", b"503 Full"):
            plain.script = other.script = says(engine_error(status, "no"))
            for _ in range(8):
                assert (await gateway.chat()).status_code == int(status[:3])

        assert [await state(gateway, f"plain-{n}") for n in (0, 1)] == ["up", "up"]


async def test_the_last_engine_is_tried_however_often_it_has_failed() -> None:
    plain = Engine(Role.PLAIN, breaks_off())
    good = says(reply(b'{"choices": [{"finish_reason": "stop"}]}'))
    async with gateway_of(plain, health=RARE) as gateway:
        for _ in range(6):
            assert (await gateway.chat()).status_code == 502
        assert (await gateway.http.get("/ready")).status_code == 200

        plain.script = good
        assert (await gateway.chat()).status_code == 200


class Hung(Engine):
    """Says at first that it is well; then it does not say anything, and serves on."""

    def __init__(self, role: Role) -> None:
        super().__init__(role)
        self.hangs = False

    async def serve(self, peer: Peer) -> None:
        if not self.hangs or b"/health" not in peer.request.line:
            await super().serve(peer)
            return
        # uvloop says so when the peer has left already.
        with suppress(RuntimeError):
            await peer.gone()


async def test_looks_without_an_answer_do_not_take_the_last_engine() -> None:
    hung, brief = Hung(Role.PLAIN), HealthSection(interval_seconds=0.01, timeout_seconds=0.2)
    async with gateway_of(hung, health=brief) as gateway:
        assert (await gateway.chat()).status_code == 200
        hung.hangs = True

        async def silent() -> bool:
            return await state(gateway, "plain-0") == "silent"

        await until(silent, "an engine that is silent")

        assert (await gateway.chat()).status_code == 200
        ready = await gateway.http.get("/ready")
        assert (ready.status_code, ready.json()["models"]["m"]["plain"]) == (200, 1)


async def test_an_engine_that_comes_back_is_found_without_waiting_for_the_next_look() -> None:
    plain = Engine(Role.PLAIN)
    well, plain.probes["/health"] = plain.probes["/health"], reply(b"draining", b"503 No")
    async with gateway_of(plain, health=RARE) as gateway:
        assert (await gateway.http.get("/ready")).status_code == 503
        plain.probes["/health"] = well
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await gateway.http.get("/ready")).status_code != 200:
                pass


async def test_why_an_engine_is_not_well_is_told_to_operators(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = Engine(Role.PLAIN)
    plain.probes["/health"] = reply(b'{"status": "draining"}', b"503 No")
    async with gateway_of(plain):
        assert 'GET /health answered 503 \'{"status": "draining"}\'' in caplog.text
