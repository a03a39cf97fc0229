"""The pair of a call, by the policies that there are by default: balanced, and near each other."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from random import Random

import pytest

from pdgate.protocols.instance import Instance, Role
from pdgate.protocols.place import Place
from pdgate.scheduling.decision_trace import DecisionTrace
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.policy import DEFAULT, load
from pdgate.scheduling.policy_context import PolicyContext
from pdgate.scheduling.prefix.index import PrefixIndex
from pdgate.scheduling.scheduler import Scheduler
from tests.support.fleets import prompt

HOSTS = 4
PLACES = [Place(f"h{n}", f"r{n // 2}", "z") for n in range(HOSTS)]
"""Two racks of two hosts, on each of which there are two engines, one for each side."""

BUSY_TOKENS = 60_000


class Site:
    def __init__(self, places: Sequence[Place] = PLACES) -> None:
        self.endpoints = Endpoints(
            Instance(
                f"{role.value}-{place.host}",
                f"http://{role.value}-{place.host}",
                role,
                "vllm-nixl",
                place=place,
            )
            for role in (Role.PREFILL, Role.DECODE)
            for place in places
        )
        for one in list(self.endpoints):
            self.endpoints.mark_up(one.instance.id, ("m",))
        index, lots = PrefixIndex(), Random(1)
        prefill, decode, plain = (
            load(DEFAULT, PolicyContext(role, index, random=lots))
            for role in (Role.PREFILL, Role.DECODE, Role.PLAIN)
        )
        self.scheduler = Scheduler(self.endpoints, prefill, decode, plain, prefixes=index)

    def pair(self, held: ExitStack, tokens: int = 50) -> tuple[Place, Place]:
        """Of one more call, which goes on until the block ends."""
        call = prompt(tokens)
        prefill = held.enter_context(self.scheduler.reserve(Role.PREFILL, call))
        peer = prefill.instance
        decode = held.enter_context(self.scheduler.reserve(Role.DECODE, call, peer=peer))
        return peer.place, decode.instance.place

    def busy(self, *decodes: int) -> None:
        for number in decodes:
            one = self.endpoints.get(f"decode-h{number}")
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


def test_prefill_is_chosen_with_a_look_at_who_can_answer_beside_it(held: ExitStack) -> None:
    """To move the KV of a long prompt takes longer than to wait for a short one."""
    site = Site()
    site.busy(0, 1, 2)

    pairs = [site.pair(held, tokens=20_000) for _ in range(2)]

    assert pairs[0] == (PLACES[3], PLACES[3])
    # Who reads there next waits for two seconds, so the rack has to do.
    assert pairs[1][0] == PLACES[2]


def test_operators_are_told_what_the_best_partner_was_worth(held: ExitStack) -> None:
    site, told = Site(), list[DecisionTrace]()
    site.busy(0, 1, 2)
    site.scheduler.told = lambda _, choice: told.append(choice)

    site.pair(held, tokens=20_000)

    of = {one.instance: one.why for one in told[0].considered}
    assert "the best decode engine for it is worth 1.05" in of["prefill-h3"]
    assert "worth 1.033" in of["prefill-h2"]


def test_among_very_many_who_is_near_is_not_left_to_the_draw(held: ExitStack) -> None:
    """A hundred hosts, of which each choice looks at fewer."""
    site = Site([Place(f"h{n}") for n in range(100)])

    for _ in range(20):
        prefill, decode = site.pair(held, tokens=1000)
        assert prefill == decode
