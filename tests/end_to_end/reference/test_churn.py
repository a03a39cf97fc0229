"""Engines join and leave every second under load, and no call fails.

PDGATE_CHURN_CHANGES says how many do; 120 last two minutes where engines start within a second.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.reference.callers import Callers
from tests.end_to_end.reference.churn import EACH, ROLES, Churn
from tests.end_to_end.reference.fleet import Fleet
from tests.support.etcd import EtcdServer
from tests.support.redis import redis_server

pytestmark = pytest.mark.slow

CALLERS = 20
CHANGES = int(os.environ.get("PDGATE_CHURN_CHANGES", "4"))
PROMPTS = tuple(f"{number} bottles of beer on the wall" for number in range(8))


# vllm-nixl's engines join and leave in test_directory.py.
@pytest.fixture(
    params=[pytest.param("vllm-nixl", marks=pytest.mark.matrix), "vllm-kvt", "decode-first"]
)
def hand_over(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """The protocol, and what else its engines are told."""
    if request.param != "decode-first":
        yield (request.param, "tcp")
        return
    with redis_server(tmp_path) as redis:
        yield (request.param, "tcp", "--queue", redis.url)


def test_no_call_fails_while_engines_come_and_go(
    own_fleet: Fleet, etcd: EtcdServer, hand_over: tuple[str, ...]
) -> None:
    protocol, transfer, *more = hand_over
    churn = Churn(own_fleet, etcd, protocol, transfer, *more)
    flags = ("--etcd", etcd.endpoints[0], "--pdd-protocol", protocol)
    with (
        own_fleet.serve(*flags) as gateway,
        Callers(gateway, CALLERS, prompts=PROMPTS, tokens=16).asking() as callers,
    ):
        callers.wait_for(CALLERS)
        churn.run(CHANGES)
        callers.wait_for(CALLERS)

    assert (churn.joined, churn.left) == (CHANGES // 2, CHANGES // 2)
    assert len(etcd.keys()) == EACH * len(ROLES)
