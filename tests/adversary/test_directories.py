"""Directories: what a stranger who can write to the store can make a gateway do with its time.

20,000 forged entries took 19.8 s of one callback.
"""

import asyncio
import json
import logging
import random
import time
from collections.abc import Mapping

import pytest

from pdgate.cluster.directory import MOST_ENTRIES, Listed, entry, listed
from pdgate.cluster.memory import MemoryDirectory
from pdgate.cluster.polled import Seen, changes
from pdgate.cluster.roster import Roster
from pdgate.gateway.config import Settings
from pdgate.gateway.discovery.adopt import adopter
from pdgate.gateway.discovery.feed import MOST_LINES, Feed
from pdgate.gateway.probe import MOST_AT_ONCE, Prober
from pdgate.gateway.sync.replicas import in_redis
from pdgate.gateway.sync.replicas.prompts import Sent
from pdgate.gateway.sync.replicas.prompts import encode as encode_prompts
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.endpoints import Endpoints
from tests.gateway.sync.replicas.sites import Process, Table, Told
from tests.gateway.sync.replicas.test_far_prompts import Replica
from tests.support.clock import Clock
from tests.support.cpu import CALLBACK_SECONDS, cpu_seconds, longest_step
from tests.support.raw_server import Peer, raw_server, reply
from tests.support.waiting import PATIENCE_SECONDS

FORGED = 20_000


def key(number: int) -> str:
    return f"/workers/decode/10.{number >> 16}.{number >> 8 & 255}.{number & 255}/8000"


def said(**fields: object) -> bytes:
    return json.dumps({"protocol": "vllm-nixl", "model": "m", **fields}).encode()


NO_JSON, LONGEST, DIGITS = b"[" * 4000, b"x" * 70_000, b'{"tp": %b}' % (b"9" * 5000)
"""Made once each: 20,000 of the longest would be 1.4 GB in each process that tests run in."""

FLOODS: Mapping[str, Mapping[str, bytes]] = {
    "engines": {key(n): said() for n in range(FORGED)},
    "models": {key(n): said(model=f"m{n}") for n in range(FORGED)},
    "protocols": {key(n): said(protocol=f"p{n}") for n in range(FORGED)},
    "generations": {key(n): said(protocol="vllm-mooncake", generation=f"g{n}") for n in range(FORGED)},
    "places": {key(n): said(rack=f"r{n}", zone=f"z{n}") for n in range(FORGED)},
    "no keys": {f"{key(n)}x": said() for n in range(FORGED)},
    "no JSON": {key(n): NO_JSON for n in range(FORGED)},
    "long": dict.fromkeys(map(key, range(200)), said(x=[[]] * 15_000)),
    "longest": {key(n): LONGEST for n in range(FORGED)},
    "digits": {key(n): DIGITS for n in range(FORGED)},
}  # fmt: skip


def feed() -> Feed:
    endpoints = Endpoints(())
    return Feed(
        MemoryDirectory(),
        endpoints,
        Prober(endpoints, 600, 2, 0.5),
        adopter(Settings()),
        time.monotonic,
    )


@pytest.mark.parametrize("entries", FLOODS.values(), ids=FLOODS.keys())
def test_reading_what_is_listed(entries: Mapping[str, bytes]) -> None:
    found = listed(entries)

    assert len(found.members) + len(found.refused) <= MOST_ENTRIES + 1
    assert cpu_seconds(lambda: listed(entries)) <= CALLBACK_SECONDS


@pytest.mark.parametrize("entries", FLOODS.values(), ids=FLOODS.keys())
def test_reading_what_has_changed(entries: Mapping[str, bytes]) -> None:
    """Of a directory that is looked at again and again; then all of it is new."""
    roster = Roster()

    def follow() -> None:
        for event in changes(Seen({}), Seen(entries)):
            roster.apply(event, 0.0)

    assert (
        cpu_seconds(follow) <= CALLBACK_SECONDS * 2
    )  # an entry more or less, but never all of them
    assert len(roster.in_use) <= MOST_ENTRIES


@pytest.mark.parametrize("entries", FLOODS.values(), ids=FLOODS.keys())
async def test_putting_what_is_listed_into_use(
    entries: Mapping[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    told = listed(entries)

    async def follows() -> None:
        fed = feed()
        fed.tell(told)
        await fed._put_into_use()

    assert await longest_step(follows) <= CALLBACK_SECONDS
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        await follows()
    assert len(caplog.records) <= 2 * (MOST_LINES + 1)
    assert all(len(record.getMessage()) < 600 for record in caplog.records)


async def test_single_entries_are_as_many() -> None:
    """A store may tell of each as it is written."""
    roster = Roster()
    for number in range(FORGED):
        roster.apply(entry(key(number), said()), 0.0)
        roster.apply(entry(f"{key(number)}x", said()), 0.0)
        if number % 1000 == 0:
            await asyncio.sleep(0)

    assert len(roster.in_use) == MOST_ENTRIES
    assert len(roster.refused) <= MOST_ENTRIES


async def test_engines_that_were_there_first_stay() -> None:
    """Whatever is written behind them."""
    roster = Roster()
    own = {f"/workers/prefill/10.9.0.{n}/8000": said() for n in range(8)}
    roster.apply(listed(own), 0.0)
    roster.apply(listed({**own, **FLOODS["engines"]}), 0.0)

    assert own.keys() <= roster.in_use.keys()


async def test_a_reload_looks_at_all_of_them_again() -> None:
    told: Listed = listed(FLOODS["engines"])
    fed = feed()
    fed.tell(told)
    fed.adopt_by(adopter(Settings()))
    assert await longest_step(fed._put_into_use) <= CALLBACK_SECONDS


def load_of(engines: int) -> bytes:
    load = {f"{engine:x}": [1, 1, 1, 1] for engine in range(engines)}
    entry = {"version": 1, "gateway": "elsewhere", "load": load}
    return json.dumps(entry, separators=(",", ":")).encode()


LONG_ENTRY, SHORT_ENTRY = load_of(15_000), load_of(240)
LONG_ENTRIES = in_redis.MOST_BYTES // in_redis.MOST_ENTRY_BYTES

ENTRIES: Mapping[str, Mapping[str, bytes]] = {
    "long ones": {f"p{n}": LONG_ENTRY for n in range(LONG_ENTRIES)},
    "many": {f"p{n}": SHORT_ENTRY for n in range(in_redis.MOST_PROCESSES)},
    "nested": {f"p{n}": b"[" * in_redis.MOST_ENTRY_BYTES for n in range(LONG_ENTRIES)},
}


@pytest.mark.parametrize("entries", ENTRIES.values(), ids=ENTRIES.keys())
async def test_what_replicas_tell_of_their_load(entries: Mapping[str, bytes]) -> None:
    """As much as is read of a Redis at once."""
    assert all(len(entry) <= in_redis.MOST_ENTRY_BYTES for entry in entries.values())
    assert sum(map(len, entries.values())) >= in_redis.MOST_BYTES * 0.7
    replica = Process(Table(Clock(0.0)), "here")

    async def take_in() -> None:
        replica.load.forget()
        await replica.load.take_in(entries)

    assert await longest_step(take_in) <= CALLBACK_SECONDS


URL = "http://10.0.0.0"
PROMPTS: Mapping[str, list[Sent]] = {
    "of a busy fleet": [Sent(URL, None, bytes(range(256)) * 8)] * 32,
    "short ones": [Sent(URL, None, n.to_bytes(8, "little")) for n in range(14_000)],
    "long ones": [Sent(URL, None, random.Random(n).randbytes(8 * 8192)) for n in range(7)],
    "taken back": [Sent(URL, 0, random.Random(n).randbytes(8 * 8192)) for n in range(7)],
}


@pytest.mark.parametrize("sent", PROMPTS.values(), ids=PROMPTS.keys())
async def test_what_replicas_tell_of_their_prompts(sent: list[Sent]) -> None:
    """A hundred batches held others up for 0.2 s."""
    batch = encode_prompts("elsewhere", sent)
    assert len(batch) <= in_redis.MOST_BATCH_BYTES

    async def take_in() -> None:
        replica = Replica(Told(), "here")
        await replica.prompts._take_in([batch] * 4)

    assert await longest_step(take_in) <= CALLBACK_SECONDS


async def test_engines_that_a_directory_forges_are_not_asked_all_at_once() -> None:
    """2,048 forged entries made 2,048 connections at once."""
    asked, most, all_slots, at_once = 0, 0, asyncio.Event(), 0

    async def answers(peer: Peer) -> None:
        nonlocal asked, most, at_once
        asked, at_once = asked + 1, at_once + 1
        most = max(most, at_once)
        if asked == MOST_AT_ONCE:
            all_slots.set()
        await all_slots.wait()
        at_once -= 1
        await peer.send(reply(b"", b"500 Oh"))
        await peer.close()

    async with raw_server(answers) as server:
        forged = [
            Instance(f"d{n}", server.url, Role.DECODE, "vllm-nixl") for n in range(3 * MOST_AT_ONCE)
        ]
        prober = Prober(Endpoints(forged), 600, PATIENCE_SECONDS, retry_seconds=600)
        looking = asyncio.create_task(prober.run())
        async with asyncio.timeout(PATIENCE_SECONDS):
            await prober.first_round.wait()
        looking.cancel()
        await asyncio.wait({looking})

    assert asked == len(forged)
    assert most == MOST_AT_ONCE
