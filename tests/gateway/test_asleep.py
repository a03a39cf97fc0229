"""Engines that sleep or are paused: not now is no failure."""

import asyncio
from collections import Counter

import pytest

from pdgate.gateway.config.sections import HealthSection
from pdgate.gateway.sleep_mode import SleepModes
from pdgate.gateway.upstream.one_shot import OneShotClient
from pdgate.gateway.upstream.pool import UrlTarget
from pdgate.protocols.instance import Role
from tests.gateway.test_health import RARE, state
from tests.support.fleet import PATIENCE_SECONDS, Engine, Gateway, as_json, gateway_of
from tests.support.raw_server import Peer, raw_server, reply
from tests.support.waiting import until

SLEEPS = "/is_sleeping"
ASLEEP = as_json({"is_sleeping": True})
AWAKE = as_json({"is_sleeping": False})


class Watched(Engine):
    """
    Attributes:
        looks: Path -> how often it was asked for.
        holds: Questions whether it sleeps get no answer.
    """

    def __init__(self) -> None:
        super().__init__(Role.PLAIN)
        self.looks: Counter[str] = Counter()
        self.holds = False

    async def serve(self, peer: Peer) -> None:
        path = peer.request.line.decode().split(" ")[1]
        self.looks[path] += 1
        if self.holds and path == SLEEPS:
            await peer.gone()
            return
        await super().serve(peer)

    async def more_looks(self) -> None:
        seen = self.looks["/health"]
        await until(lambda: self.looks["/health"] > seen + 3, "looks")


async def becomes(gateway: Gateway, instance: str, *wanted: str) -> None:
    async def found() -> bool:
        return await state(gateway, instance) in wanted

    await until(found, f"{instance} to be {wanted}")


async def test_an_engine_that_sleeps_gets_no_calls_until_it_wakes() -> None:
    """vLLM's /health answers 200 all the while, and calls would wait there."""
    sleeper, other = Engine(Role.PLAIN), Engine(Role.PLAIN)
    sleeper.probes[SLEEPS] = other.probes[SLEEPS] = AWAKE
    async with gateway_of(sleeper, other) as gateway:
        await becomes(gateway, "plain-0", "up")
        sleeper.probes[SLEEPS] = ASLEEP
        await becomes(gateway, "plain-0", "asleep")
        for _ in range(4):
            assert (await gateway.chat()).status_code == 200
        assert not sleeper.calls

        other.probes[SLEEPS] = ASLEEP
        await becomes(gateway, "plain-1", "asleep")
        answer = await gateway.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_instance")
        assert answer.headers["retry-after"]

        sleeper.probes[SLEEPS] = AWAKE
        await becomes(gateway, "plain-0", "up", "slow_start")
        assert (await gateway.chat()).status_code == 200
        assert sleeper.calls
        ejections = [
            value
            for key, value in (await gateway.metrics()).items()
            if key[0] == "pdgate_instance_ejections_total"
        ]
        assert not any(ejections)


async def test_an_engine_that_wakes_does_not_wait_for_a_regular_look() -> None:
    engine = Engine(Role.PLAIN)
    engine.probes[SLEEPS] = ASLEEP
    async with gateway_of(engine, health=RARE) as gateway:
        await becomes(gateway, "plain-0", "asleep")
        engine.probes[SLEEPS] = AWAKE
        await becomes(gateway, "plain-0", "up")


@pytest.mark.parametrize(
    "said",
    [
        reply(b"", b"404 Not Found"),
        reply(b"", b"401 Unauthorized"),
        reply(b"yes"),
        as_json({"is_sleeping": "so"}),
        as_json([]),
        reply(b"[" * 10_000),
    ],
    ids=["404", "401", "no JSON", "no boolean", "no object", "deep"],
)
async def test_an_engine_without_sleep_mode_is_asked_once_in_its_life(said: bytes) -> None:
    """It would log each of the questions."""
    engine = Watched()
    engine.probes[SLEEPS] = said
    async with gateway_of(engine) as gateway:
        await becomes(gateway, "plain-0", "up")
        await engine.more_looks()
        assert engine.looks[SLEEPS] == 1

        well, engine.probes["/health"] = engine.probes["/health"], reply(b"", b"503 No")
        await becomes(gateway, "plain-0", "down")
        engine.probes["/health"] = well
        await until(lambda: engine.looks[SLEEPS] == 2, "the question, of the next one there")
        await engine.more_looks()
        assert engine.looks[SLEEPS] == 2


async def test_one_that_calls_found_to_be_gone_is_asked_anew() -> None:
    """Between two looks it may have been started again, with a sleep mode."""
    engine = Watched()
    async with gateway_of(engine, health=RARE, max_attempts=1) as gateway:
        await becomes(gateway, "plain-0", "up")
        engine.probes[SLEEPS] = AWAKE

        async def breaks(peer: Peer) -> None:
            await peer.close()

        engine.script = breaks
        async with asyncio.timeout(PATIENCE_SECONDS):
            while engine.looks[SLEEPS] < 2:
                await gateway.chat()


async def test_an_engine_that_is_late_with_its_answer_is_awake_and_not_silent() -> None:
    """vLLM answers between two steps of its core, which may be long."""
    engine = Watched()
    engine.holds = True
    brief = HealthSection(interval_seconds=0.05, timeout_seconds=2)
    async with gateway_of(engine, health=brief) as gateway:
        await becomes(gateway, "plain-0", "up")
        assert (await gateway.chat()).status_code == 200


@pytest.mark.parametrize("asleep", [True, False])
async def test_without_an_answer_it_is_as_it_was(asleep: bool) -> None:
    engine, modes = Watched(), SleepModes()
    engine.probes[SLEEPS] = as_json({"is_sleeping": asleep})
    async with raw_server(engine.serve) as server:
        with OneShotClient(UrlTarget(server.url), None, "") as client:
            assert await modes.asleep(client, "e", PATIENCE_SECONDS) is asleep
            engine.probes[SLEEPS] = reply(b"", b"500 Oh")
            assert await modes.asleep(client, "e", PATIENCE_SECONDS) is asleep
            engine.holds = True
            assert await modes.asleep(client, "e", 0.01) is asleep

        engine.holds = False
        modes.forget("e")
        with OneShotClient(UrlTarget(server.url), None, "") as client:
            assert await modes.asleep(client, "e", PATIENCE_SECONDS) is False
