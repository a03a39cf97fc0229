"""What names resolve to becomes engines, and a resolver that fails takes none away."""

import asyncio
import socket
from typing import Any

import pytest

from pdgate.cluster.directory import Listed, Lost, Resumed
from pdgate.cluster.dns import Dns, addresses
from pdgate.cluster.member import Member
from pdgate.cluster.polled import Unseen
from pdgate.protocols.instance import Role
from tests.cluster.watching import following

SECONDS = 0.01
ONE = Member(Role.BOTH, "10.0.0.1", 8000, protocol="vllm-nixl", model="m", kv="10.0.0.1:5600")


async def test_all_addresses_of_a_name_are_engines_that_are_alike() -> None:
    async def resolve(name: str, port: int) -> list[str]:
        return {"a.test": ["10.0.0.1"], "b.test": ["fd00::1"]}[name]

    dns = Dns(
        resolve, both="a.test:8000, b.test:8001", protocol="vllm-nixl", model="m", kv_port=5600
    )
    other = Member(Role.BOTH, "fd00::1", 8001, protocol="vllm-nixl", model="m", kv="[fd00::1]:5600")

    async with following(dns) as told:
        assert await told.next() == Listed({ONE.key: ONE, other.key: other})


async def test_a_resolver_that_fails_takes_nobody_away() -> None:
    answers: list[list[str] | Unseen] = [["10.0.0.1"], Unseen("no"), Unseen("no"), ["10.0.0.1"]]

    async def resolve(name: str, port: int) -> list[str]:
        if not answers:
            return ["10.0.0.1"]
        if isinstance(answer := answers.pop(0), Unseen):
            raise answer
        return answer

    async with following(Dns(resolve, plain="a.test:80", every_seconds=SECONDS)) as told:
        assert isinstance(await told.next(), Listed)
        assert await told.next() == Lost("no")
        assert await told.next() == Resumed()


async def test_the_system_is_asked_once_per_name() -> None:
    assert "127.0.0.1" in await addresses("localhost", 80)


@pytest.mark.parametrize("number", [socket.EAI_NONAME, socket.EAI_NODATA])
async def test_a_name_that_does_not_exist_has_nobody(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _answer(monkeypatch, socket.gaierror(number, "no address"))

    assert await addresses("gone.test", 80) == []


@pytest.mark.parametrize(
    "error", [socket.gaierror(socket.EAI_AGAIN, "try again"), OSError("the network is down")]
)
async def test_an_answer_that_never_came_is_no_answer(
    error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    _answer(monkeypatch, error)

    with pytest.raises(Unseen, match=r"away\.test"):
        await addresses("away.test", 80)


async def test_addresses_have_an_order_and_mean_the_same_on_every_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = ["10.0.0.2", "10.0.0.1", "10.0.0.2", "fe80::1%eth0"]
    _answer(monkeypatch, [(0, 0, 0, "", (host, 80)) for host in found])

    assert await addresses("a.test", 80) == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prefill": "a.test"},
        {"prefill": "http://a.test:80"},
        {"prefill": "a.test:80", "kv_port": 1 << 20},
        {"prefill": "a.test:80", "every_seconds": 0.0},
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_refused_at_the_start(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is|must"):
        Dns(**options)


def _answer(monkeypatch: pytest.MonkeyPatch, answer: OSError | list[Any]) -> None:
    async def getaddrinfo(*_: object, **__: object) -> list[Any]:
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
