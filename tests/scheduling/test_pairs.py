"""The pair of a call, by the policies that there are by default: balanced, and near each other."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from pdgate.protocols.instance import Instance, Role
from pdgate.protocols.place import Place
from pdgate.scheduling.instances import Instances
from pdgate.scheduling.policy import DEFAULT, load
from pdgate.scheduling.prefix.index import PrefixIndex
from pdgate.scheduling.scheduler import Scheduler
from pdgate.scheduling.surroundings import Surroundings
from tests.support.fleets import prompt

HOSTS = 4
PLACES = [Place(f"h{n}", f"r{n // 2}", "z") for n in range(HOSTS)]
"""Two racks of two hosts, on each of which there are two engines, one for each side."""

BUSY_TOKENS = 60_000


class Site:
    def __init__(self) -> None:
        self.instances = Instances(
            Instance(
                f"{role.value}-{place.host}",
                f"http://{role.value}-{place.host}",
                role,
                "vllm-nixl",
                place=place,
            )
            for role in (Role.PREFILL, Role.DECODE)
            for place in PLACES
        )
        for one in list(self.instances):
            self.instances.mark_up(one.instance.id, ("m",))
        index = PrefixIndex()
        prefill, decode, plain = (
            load(DEFAULT, Surroundings(role, index))
            for role in (Role.PREFILL, Role.DECODE, Role.PLAIN)
        )
        self.scheduler = Scheduler(self.instances, prefill, decode, plain, prefixes=index)

    def pair(self, held: ExitStack) -> tuple[Place, Place]:
        """Of one more call, which goes on until the block ends."""
        call = prompt(50)
        prefill = held.enter_context(self.scheduler.reserve(Role.PREFILL, call))
        peer = prefill.instance
        decode = held.enter_context(self.scheduler.reserve(Role.DECODE, call, peer=peer))
        return peer.place, decode.instance.place

    def busy(self, *decodes: int) -> None:
        for number in decodes:
            one = self.instances.get(f"decode-h{number}")
            assert one is not None
            one.tokens += BUSY_TOKENS


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_pair_is_on_one_host_and_all_hosts_get_as_many(held: ExitStack) -> None:
    site = Site()
    pairs = [site.pair(held) for _ in range(40)]

    assert all(prefill == decode for prefill, decode in pairs)
    assert set(Counter(prefill.host for prefill, _ in pairs).values()) == {10}


def test_where_that_host_is_busy_the_rack_comes_next_and_then_whoever_is_idle(
    held: ExitStack,
) -> None:
    site = Site()
    site.busy(0, 2)
    pairs = [site.pair(held) for _ in range(8)]
    assert {(prefill.host, decode.host) for prefill, decode in pairs} == {
        ("h0", "h1"),
        ("h1", "h1"),
        ("h2", "h3"),
        ("h3", "h3"),
    }

    site.busy(1)
    pairs = [site.pair(held) for _ in range(8)]
    assert {decode.host for _, decode in pairs} == {"h3"}
