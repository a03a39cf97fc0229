"""An InferencePool as a directory, and the InferenceObjectives beside it."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from pdgate.cluster.directory import Joined, Left, Listed, Lost, Resumed
from pdgate.cluster.kubernetes.objectives import InferenceObjectives, priorities_in
from pdgate.cluster.kubernetes.pool import InferencePool, opened
from pdgate.cluster.kubernetes.wire import KubernetesError
from pdgate.protocols.instance import Role
from tests.cluster.kubernetes.services import access
from tests.cluster.watching import following
from tests.support.inference_pool import PoolOfPods, pool_object, pool_pod
from tests.support.kubernetes import ApiServer, api_server
from tests.support.waiting import until

QUICK_SECONDS = 0.01


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as server:
        yield server


def directory(server: ApiServer) -> InferencePool:
    return InferencePool(access(server), "pool", "vllm-nixl", QUICK_SECONDS)


async def test_engines_are_the_pods_that_it_selects_at_each_of_its_ports(server: ApiServer) -> None:
    pods = [
        pool_pod("p", "10.0.0.1", {"llm-d.ai/role": "prefill"}),
        pool_pod("d", "10.0.0.2", {"llm-d.ai/role": "decode", "pdgate.dev/protocol": "lmcache"}),
        pool_pod("both", "10.0.0.3", {"llm-d.ai/role": "prefill-decode"}),
        pool_pod("e", "10.0.0.4", {"pdgate.dev/role": "encode"}),
        pool_pod("plain", "10.0.0.5", {}),
        pool_pod("starting", "10.0.0.6", {}, ready=False),
        pool_pod("pending", "", {}),
        pool_pod("odd", "10.0.0.7", {"llm-d.ai/role": "cook"}),
    ]
    cluster = PoolOfPods(server, pool_object([8000, 8001]), pods)
    async with following(directory(server)) as told:
        listed = await told.next()

        assert isinstance(listed, Listed)
        found = {key: (one.role, one.protocol, one.state) for key, one in listed.members.items()}
        assert len(found) == 12
        assert found["/workers/prefill/10.0.0.1/8000"] == (Role.PREFILL, "vllm-nixl", "ready")
        assert found["/workers/decode/10.0.0.2/8001"] == (Role.DECODE, "lmcache", "ready")
        assert found["/workers/both/10.0.0.3/8000"][0] is Role.BOTH
        assert found["/workers/encode/10.0.0.4/8000"][:2] == (Role.ENCODE, "")
        assert found["/workers/plain/10.0.0.5/8000"][:2] == (Role.PLAIN, "")
        assert found["/workers/plain/10.0.0.6/8000"][2] == "unready"
        assert "no role" in listed.refused["odd"]
        assert cluster.selectors == {"app=vllm,tier=gpu"}


async def test_pods_that_come_and_go_are_told(server: ApiServer) -> None:
    cluster = PoolOfPods(server, pool_object([8000]), [])
    async with following(directory(server)) as told:
        assert await told.next() == Listed({})
        cluster.pods = [pool_pod("one", "10.0.0.1", {})]
        joined = await told.next()
        assert isinstance(joined, Joined)
        assert joined.member.url == "http://10.0.0.1:8000"
        cluster.pods = []
        assert await told.next() == Left("/workers/plain/10.0.0.1/8000")


@pytest.mark.parametrize("what", ["missing", "selects nothing", "no port", "nonsense", "refused"])
async def test_a_pool_that_cannot_be_read_is_a_loss_with_a_sentence(
    what: str, server: ApiServer
) -> None:
    cluster = PoolOfPods(server, pool_object([8000]), [])
    match what:
        case "missing":
            cluster.pool = None
        case "selects nothing":
            cluster.pool = pool_object([8000], labels={})
        case "no port":
            cluster.pool = pool_object([])
        case "nonsense":
            cluster.pool = {"spec": {"targetPorts": "8000"}}
        case "refused":
            server.token = "other"
    async with following(directory(server)) as told:
        lost = await told.next()
        assert isinstance(lost, Lost)
        assert "pool" in lost.why
        cluster.pool, server.token = pool_object([8000]), None
        while not isinstance(event := await told.next(), Listed | Resumed):
            pass
        assert event in (Listed({}), Resumed())


def test_what_is_said_wrong_of_where_it_is_is_a_sentence() -> None:
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"pool": "a b", "url": "http://127.0.0.1:1", "namespace": "x"}, "not a host"),
        ({"pool": "a", "url": "nowhere"}, "nowhere"),
        ({"pool": "a", "token_file": "/x"}, "with a url only"),
    )
    for said, why in wrong:
        with pytest.raises(ValueError, match=why):
            opened(**said)


async def test_objectives_of_the_pool_are_known_and_stay_while_the_cluster_is_away(
    server: ApiServer,
) -> None:
    cluster = PoolOfPods(server, pool_object([8000]), [])
    cluster.objectives = {"chat": (2, "pool"), "rest": (-1, "pool"), "other": (9, "other")}
    objectives = InferenceObjectives(access(server), "pool", QUICK_SECONDS)
    running = asyncio.create_task(objectives.run())
    try:
        await until(lambda: objectives.priority_of("chat") == 2, "objectives that are known")
        assert objectives.priority_of("rest") == -1
        assert objectives.priority_of("other") is objectives.priority_of("never") is None
        server.token = "other"
        before = len(server.asked)
        await until(lambda: len(server.asked) > before + 2, "questions that are refused")
        assert objectives.priority_of("chat") == 2
    finally:
        running.cancel()
        await asyncio.wait([running])


def test_objectives_without_a_priority_are_ordinary_and_nonsense_is_said() -> None:
    said: dict[str, Any] = {
        "items": [{"metadata": {"name": "a"}, "spec": {"poolRef": {"name": "p"}}}]
    }
    assert priorities_in(json.dumps(said).encode(), "p") == {"a": 0}
    with pytest.raises(KubernetesError, match="cannot be read"):
        priorities_in(b'{"items": 3}', "p")
