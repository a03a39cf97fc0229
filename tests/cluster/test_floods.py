"""Stores that strangers have filled: of each no more is read than is used, and who was there first is used."""

from dataclasses import replace

import pytest

from pdgate.cluster.directory import (
    MOST_BYTES,
    MOST_ENTRIES,
    TOO_MANY,
    Joined,
    Left,
    Listed,
    Lost,
    Refused,
)
from pdgate.cluster.etcd import http, wire
from pdgate.cluster.etcd.directory import Etcd
from pdgate.cluster.kubernetes import slices
from pdgate.cluster.kubernetes.fleet import MOST_ENDPOINTS, SliceFleet
from pdgate.cluster.kubernetes.slices import Slice, SliceEndpoint
from pdgate.cluster.member import MAX_VALUE_BYTES
from pdgate.cluster.redis_store import scripts
from pdgate.cluster.redis_store.access import Script, connected
from pdgate.cluster.redis_store.directory import RedisDirectory
from tests.cluster.in_redis import InRedis
from tests.cluster.watching import D, P, following
from tests.support.etcd import EtcdServer
from tests.support.redis import RedisServer

FORGED = [f"/workers/decode/10.1.{n >> 8}.{n & 255}/8000" for n in range(MOST_ENTRIES + 500)]
AT_ONCE = 120
"""Writes in one request; etcd takes 128."""


async def test_of_a_redis_that_strangers_filled_no_more_is_read_than_is_used(
    redis: RedisServer,
) -> None:
    InRedis(redis).put(P.key, P.value())
    with redis.client() as client:
        client.hset(scripts.VALUES, mapping=dict.fromkeys(FORGED, "{}"))
        client.hset(scripts.VALUES, mapping={"k" * 100_000: "{}", "huge": "x" * (32 << 20)})
        client.zadd(scripts.LEASES, dict.fromkeys(FORGED, 1e18))
    async with connected(redis.url) as client:
        bounds = (MOST_ENTRIES, MOST_BYTES, MAX_VALUE_BYTES + 1)
        _, _, packed = await Script(client, scripts.LOOK)("an id", "", "", *bounds)
    async with following(RedisDirectory(url=redis.url)) as told:
        listed = await told.next()

    assert len(packed) < 2 * MOST_BYTES
    assert isinstance(listed, Listed)
    assert listed.members == {P.key: P}
    assert len(listed.refused) == MOST_ENTRIES
    assert TOO_MANY in listed.refused.values()


def fill(etcd: EtcdServer) -> None:
    for start in range(0, len(FORGED), AT_ONCE):
        keys = FORGED[start : start + AT_ONCE]
        puts = [{"request_put": wire.put(key, D.value(), "0")} for key in keys]
        etcd.ask("/v3/kv/txn", {"success": puts})


async def test_of_an_etcd_that_strangers_filled_no_more_is_read_than_is_used(
    own_etcd: EtcdServer,
) -> None:
    own_etcd.put(P.key, P.value())
    fill(own_etcd)
    async with following(Etcd(own_etcd.endpoints)) as told:
        listed = await told.next()

    assert isinstance(listed, Listed)
    assert listed.members[P.key] == P
    assert len(listed.members) == MOST_ENTRIES
    assert list(listed.refused.values()) == [TOO_MANY]


async def test_an_etcd_whose_answer_is_too_long_is_away(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "LONGEST_ANSWER", 10_000)
    etcd.put(P.key, P.value())
    async with following(Etcd(etcd.endpoints)) as told:
        assert await told.next() == Listed({P.key: P})
        etcd.put("/workers/decode/10.0.0.9/8000", b"x" * 20_000)
        lost = await told.first(Lost)
        assert "more than 10000 bytes" in lost.why

        etcd.delete("/workers/decode/10.0.0.9/8000")
        assert (await told.first(Listed)).members == {P.key: P}


def test_slices_beyond_what_is_used_are_refused_by_name() -> None:
    many = [replace(D, port=1 + n) for n in range(MOST_ENDPOINTS)]
    fleet = SliceFleet()

    def of(name: str, first: int, count: int) -> Slice:
        endpoints = [SliceEndpoint(each) for each in many[first : first + count]]
        return Slice(name, tuple(endpoints))

    own = Slice("own", (SliceEndpoint(P),))
    listed = fleet.list([own, of("forged", 0, MOST_ENDPOINTS - 1)])
    assert (len(listed.members), listed.refused) == (MOST_ENDPOINTS, {})

    assert fleet.put(of("more", MOST_ENDPOINTS - 1, 1)) == [Refused("more", TOO_MANY)]
    fleet.drop("forged")
    joined, left = fleet.put(of("more", MOST_ENDPOINTS - 1, 1))
    assert (joined, left) == (Joined(many[-1].key, many[-1]), Left("more"))


def test_a_slice_of_more_endpoints_than_kubernetes_takes_is_refused() -> None:
    endpoints = [{"addresses": ["10.0.0.1"]}] * (slices.MOST_ENDPOINTS + 1)
    said = {
        "metadata": {"name": "a", "namespace": "b", "labels": {slices.ROLE: "decode"}},
        "ports": [{"name": "http", "port": 80}],
        "endpoints": endpoints,
    }

    assert slices.read(said).refused == {"b/a": "it has more than 1000 endpoints"}
    assert len(slices.read({**said, "endpoints": endpoints[1:]}).endpoints) == 1000
