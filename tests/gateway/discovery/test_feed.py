"""Engines that announce themselves get calls, and those that leave get none."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest

from pdgate.cluster.directory import Event, Joined, Left, Listed, Lost, Resumed
from pdgate.cluster.jobs import Jobs
from pdgate.cluster.member import Member
from pdgate.cluster.memory import MemoryDirectory
from pdgate.cluster.roster import Roster
from pdgate.gateway.config import Settings
from pdgate.gateway.config.sections import HealthSection
from pdgate.gateway.discovery.adopt import adopter
from pdgate.gateway.discovery.feed import Feed
from pdgate.gateway.probe import Prober
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.endpoints import Endpoints
from tests.support.fleet import (
    ANSWER,
    PATIENCE_SECONDS,
    PREFILLED,
    Engine,
    Gateway,
    Held,
    as_json,
    gateway_of,
)
from tests.support.raw_server import Peer, raw_server
from tests.support.waiting import until

RARELY = HealthSection(interval_seconds=600, timeout_seconds=10)
"""So that nothing here waits for the next round of probes."""


class Told(MemoryDirectory):
    """A directory that also tells what a test says."""

    def say(self, event: Event) -> None:
        self._tell(event)


class Announced:
    """Engines that run, and are announced or not as the test likes."""

    def __init__(self, directory: Told) -> None:
        self.directory = directory
        self._servers = AsyncExitStack()

    async def start(self, engine: Engine, **fields: Any) -> Member:
        """The member to announce."""
        server = await self._servers.enter_async_context(raw_server(engine.serve))
        return Member(engine.role, *place(server.url), epoch="one", **fields)

    async def join(self, engine: Engine, **fields: Any) -> Member:
        member = await self.start(engine, **fields)
        self.put(member)
        return member

    def put(self, member: Member) -> None:
        self.directory.put(member.key, member.value())

    async def close(self) -> None:
        await self._servers.aclose()


def place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    return parts.hostname, parts.port


@pytest.fixture
async def announced() -> AsyncIterator[Announced]:
    made = Announced(Told())
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def gateway(
    announced: Announced, *engines: Engine, **settings: Any
) -> AsyncIterator[Gateway]:
    settings = {"health": RARELY, **settings}
    async with gateway_of(*engines, directory=announced.directory, **settings) as running:
        yield running


async def ready(gateway: Gateway, state: str, endpoints: int) -> None:
    """Waits until /ready says that all roles are there, and this of the directory."""

    async def said() -> bool:
        answer: dict[str, Any] = (await gateway.http.get("/ready")).json()
        wanted = {"state": state, "instances": endpoints}
        return bool(answer["ready"] and answer["directory"] == wanted)

    await until(said, f"{endpoints} endpoints, {state}")


async def test_announced_engines_serve_calls_with_nothing_configured(announced: Announced) -> None:
    prefill, decode = Engine(Role.PREFILL), Engine(Role.DECODE)
    await announced.join(prefill)
    await announced.join(decode)
    async with gateway(announced) as running:
        assert (await running.chat()).status_code == 200

    assert (len(prefill.calls), len(decode.calls)) == (1, 1)


async def test_who_joins_gets_calls_without_waiting_for_the_next_round_of_probes(
    announced: Announced,
) -> None:
    async with gateway(announced) as running:
        assert (await running.http.get("/ready")).json() == {
            "ready": False,
            "missing": [],
            "models": {},
            "directory": {"state": "current", "instances": 0},
        }
        await announced.join(Engine(Role.PLAIN))
        await ready(running, "current", 1)

        assert (await running.chat()).status_code == 200


async def test_a_joiner_shares_the_calls_with_those_that_are_configured(
    announced: Announced,
) -> None:
    configured, joiner = Engine(Role.PLAIN), Engine(Role.PLAIN)
    async with gateway(announced, configured, plain_policy="round_robin") as running:
        await announced.join(joiner)
        key = "pdgate_instance_up", "127.0.0.1:", "plain"

        async def is_up() -> bool:
            found = await running.metrics()
            return any(k[0] == key[0] and k[1].startswith(key[1]) and v for k, v in found.items())

        await until(is_up, "an engine that is up")
        for _ in range(4):
            await running.chat()

    assert (len(configured.calls), len(joiner.calls)) == (2, 2)


async def test_who_leaves_finishes_its_calls_and_gets_no_more(announced: Announced) -> None:
    leaver, other = Engine(Role.PLAIN, held := Held()), Engine(Role.PLAIN)
    member = await announced.join(leaver)
    async with gateway(announced) as running:
        await ready(running, "current", 1)
        asking = asyncio.create_task(running.chat())
        call = await held.next()
        await announced.join(other)
        announced.directory.delete(member.key)
        await ready(running, "current", 1)

        for _ in range(4):
            assert (await running.chat()).status_code == 200
        await call.peer.send(as_json({"choices": [{"finish_reason": "stop"}]}))
        assert (await asking).status_code == 200

    assert (len(leaver.calls), len(other.calls)) == (1, 4)


async def test_who_drains_gets_no_more_calls_though_it_is_listed(announced: Announced) -> None:
    member = await announced.join(Engine(Role.PLAIN))
    async with gateway(announced) as running:
        await ready(running, "current", 1)
        announced.put(member.draining())

        assert (await running.chat()).status_code == 503


async def test_a_restart_at_the_same_address_is_looked_at_anew(announced: Announced) -> None:
    engine = Engine(Role.PLAIN)
    member = await announced.join(engine)
    async with gateway(announced) as running:
        await ready(running, "current", 1)
        engine.probes["/v1/models"] = as_json({"data": [{"id": "other"}]})
        announced.put(replace(member, epoch="two"))
        await ready(running, "current", 1)

        assert (await running.chat(model="other")).status_code == 200
        assert (await running.chat(model="m")).status_code == 404


async def test_calls_go_on_while_the_directory_is_away(announced: Announced) -> None:
    member = await announced.join(Engine(Role.PLAIN))
    async with gateway(announced) as running:
        await ready(running, "current", 1)
        announced.directory.say(Lost("away"))
        await ready(running, "degraded", 1)
        assert (await running.metrics())["pdgate_directory_degraded",] == 1
        assert (await running.chat()).status_code == 200

        # Its lease ended while nobody could renew it.
        announced.directory.say(Resumed())
        announced.directory.say(Left(member.key))
        await ready(running, "current", 1)

        assert (await running.chat()).status_code == 200
        found = await running.metrics()
        assert found["pdgate_directory_degraded",] == 0
        assert found["pdgate_directory_losses_total",] == 1


async def test_a_gateway_that_starts_while_the_directory_is_away_says_that_it_waits() -> None:
    class Silent(MemoryDirectory):
        async def follow(self, tell: Callable[[Event], None]) -> None:
            tell(Lost("away"))
            await asyncio.Event().wait()

    async with gateway_of(Engine(Role.PLAIN), directory=Silent(), health=RARELY) as running:
        said = (await running.http.get("/ready")).json()

        assert (said["ready"], said["directory"]["state"]) == (True, "waiting")


@pytest.mark.parametrize(
    ("role", "fields"),
    [
        (Role.PREFILL, {"protocol": "nobody-speaks-this"}),
        (Role.PREFILL, {"protocol": "plain"}),
        (Role.PLAIN, {"protocol": "vllm-nixl"}),
        (Role.PREFILL, {"protocol": "vllm-mooncake", "generation": "z"}),
    ],
    ids=["protocol", "role", "plain", "generation"],
)
async def test_who_cannot_be_spoken_to_is_counted_and_harms_nobody(
    announced: Announced, role: Role, fields: dict[str, str]
) -> None:
    stranger = Engine(role)
    await announced.join(stranger, **fields)
    announced.directory.put("/workers/plain/host/port", b"")
    async with gateway(announced, Engine(Role.PLAIN)) as running:
        assert (await running.chat()).status_code == 200
        found = await running.metrics()
        ready = (await running.http.get("/ready")).json()

    assert (found["pdgate_directory_unusable",], found["pdgate_directory_instances",]) == (2, 0)
    assert ready["directory"] == {"state": "current", "instances": 0, "unusable": 2}
    assert not stranger.calls


async def test_what_is_configured_is_not_replaced_by_what_is_announced(
    announced: Announced,
) -> None:
    engine = Engine(Role.PLAIN)
    async with gateway(announced, engine) as running:
        member = Member(Role.PLAIN, *place(engine.url), model="another")
        announced.put(member)
        announced.directory.delete(member.key)

        assert (await running.chat()).status_code == 200


class Slow(Engine):
    """Answers probes when it is told to."""

    def __init__(self, role: Role) -> None:
        super().__init__(role)
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def serve(self, peer: Peer) -> None:
        self.asked.set()
        if peer.request.line.startswith(b"GET"):
            await self.go_on.wait()
        await super().serve(peer)


async def test_who_leaves_while_it_is_looked_at_does_not_come_back(announced: Announced) -> None:
    """The look ends well, and says nothing of who is there now."""
    slow = Slow(Role.PLAIN)
    async with gateway(announced, Engine(Role.PLAIN)) as running:
        member = await announced.join(slow)
        await slow.asked.wait()
        announced.directory.delete(member.key)
        slow.go_on.set()
        # The next newcomer is looked at after the slow one's look is over.
        await announced.join(Engine(Role.PLAIN))
        await ready(running, "current", 1)

        found = await running.metrics()
    assert not [key for key in found if member.instance().id in key]


@asynccontextmanager
async def following(feed: Feed) -> AsyncIterator[None]:
    async with Jobs() as jobs:
        jobs.add_all(feed.jobs)
        jobs.start()
        yield


async def test_the_doubted_are_dropped_when_their_time_has_come() -> None:
    endpoints = Endpoints()
    prober = Prober(endpoints, interval_seconds=1, timeout_seconds=1, retry_seconds=0.5)
    clock = asyncio.get_running_loop().time
    feed = Feed(MemoryDirectory(), endpoints, prober, adopter(Settings()), clock)
    feed.roster = Roster(grace_seconds=0.05)
    member = Member(Role.PLAIN, "10.0.0.1", 80)
    async with asyncio.timeout(PATIENCE_SECONDS), following(feed):
        await feed.listed.wait()
        for event in (Listed({member.key: member}), Lost("away"), Listed({})):
            feed.tell(event)
        # What is told together is put into use in the next turn of the loop.
        while not list(endpoints):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await until(lambda: not list(endpoints), "an end of what is doubted")


async def test_events_that_come_together_are_put_into_use_together() -> None:
    """Each takes a look at all members, and a fleet that starts is many events."""
    looks = 0

    def adopt(member: Member) -> Instance:
        nonlocal looks
        looks += 1
        return member.instance()

    endpoints = Endpoints()
    prober = Prober(endpoints, interval_seconds=600, timeout_seconds=1, retry_seconds=0.5)
    feed = Feed(MemoryDirectory(), endpoints, prober, adopt, asyncio.get_running_loop().time)
    async with asyncio.timeout(PATIENCE_SECONDS), following(feed):
        await feed.listed.wait()
        for number in range(100):
            member = Member(Role.PLAIN, "10.0.0.1", 8000 + number)
            feed.tell(Joined(member.key, member))
        while len(list(endpoints)) < 100:  # noqa: ASYNC110
            await asyncio.sleep(0)

    assert looks == 100


async def either(peer: Peer) -> None:
    """What an engine of both roles does."""
    asks = json.loads(peer.request.body).get("kv_transfer_params", {}).get("do_remote_decode")
    await peer.send(as_json(PREFILLED if asks else ANSWER))


async def in_role(gateway: Gateway, member: Member, role: Role) -> bool:
    return bool((await gateway.metrics()).get(("pdgate_instance_up", member.instance().id, role)))


class Changing(Announced):
    def turn(self, member: Member, role: Role) -> Member:
        """The same process in another role."""
        now = replace(member, role=role)
        self.put(now)
        self.directory.delete(member.key)
        return now


@pytest.fixture
async def changing() -> AsyncIterator[Changing]:
    made = Changing(Told())
    try:
        yield made
    finally:
        await made.close()


async def test_calls_of_an_engine_that_changes_its_role_end_well(changing: Changing) -> None:
    """Prefill is done with a call when it is decode already; another one decodes."""
    turning, decode = Engine(Role.PREFILL, held := Held()), Engine(Role.DECODE)
    member = await changing.join(turning)
    await changing.join(decode)
    async with gateway(changing) as running:
        await ready(running, "current", 2)
        asking = asyncio.create_task(running.chat())
        call = await held.next()
        await changing.join(Engine(Role.PREFILL))

        member = changing.turn(member, Role.DECODE)
        await until(lambda: in_role(running, member, Role.DECODE), "decode")
        # A script that holds a call holds its connection.
        await call.peer.send(as_json(PREFILLED, b"200 OK", b"connection: close"))

        assert (await asking).status_code == 200
        turning.script = either
        for _ in range(4):
            assert (await running.chat()).status_code == 200
    assert not any(body["kv_transfer_params"]["do_remote_decode"] for body in turning.bodies[1:])
    assert (len(turning.calls) - 1) + len(decode.calls) == 5


async def test_who_becomes_both_and_back_is_never_missing(changing: Changing) -> None:
    """Of the only pair one is looked at anew, and answers the look late."""
    slow, decode = Slow(Role.PREFILL), Engine(Role.DECODE, either)
    slow.script = either
    slow.go_on.set()
    member = await changing.join(slow)
    await changing.join(decode)
    async with gateway(changing) as running:
        await ready(running, "current", 2)
        for role in (Role.BOTH, Role.PREFILL):
            slow.go_on.clear()
            member = changing.turn(member, role)
            assert (await running.chat()).status_code == 200
            slow.go_on.set()
            await until(partial(in_role, running, member, role), role)
            assert (await running.chat()).status_code == 200
        found = await running.metrics()

    assert len([key for key in found if key[0] == "pdgate_instance_up"]) == 2
