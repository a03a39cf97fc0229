"""Why this engine: what is told of a choice, and that telling changes nothing."""

import json
from collections import Counter
from dataclasses import replace
from math import inf
from random import Random as Lots
from typing import Any

import msgspec
import pytest

from pdgate.protocols.call import Call
from pdgate.protocols.errors import NoInstance
from pdgate.protocols.instance import Instance, Role
from pdgate.protocols.place import Place
from pdgate.scheduling import policy
from pdgate.scheduling.decision_trace import (
    CHOSEN_BEFORE,
    MOST_SHOWN,
    ONLY_ONE,
    DecisionTrace,
    Step,
    Weighed,
    narrowed,
)
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.health.cause import Cause
from pdgate.scheduling.latency.model import OVERLOOKED
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import PolicyContext
from pdgate.scheduling.scheduler import Scheduler
from pdgate.scheduling.status import Beyond
from tests.support.fleets import Known
from tests.support.scripted import D0, D1, P0, P1, chat, fleet

CALL = chat()
P2 = replace(P0, id="p2", url="http://10.0.0.3:8100")
D2 = replace(D0, id="d2", url="http://10.0.0.3:8200")
BUILT_IN = (
    "least_latency", "least_loaded", "lmetric", "prefix_then_load", "projected_kv", "random_two",
    "round_robin", "slo", "sticky_session",
)  # fmt: skip


def telling(
    endpoints: Endpoints, chooses: Policy | None = None
) -> tuple[Scheduler, list[DecisionTrace]]:
    some = chooses or policy.load("least_loaded", PolicyContext(Role.PREFILL))
    scheduler, told = Scheduler(endpoints, some, some, some), list[DecisionTrace]()
    scheduler.told = lambda _, choice: told.append(choice)
    return scheduler, told


def why_not(choice: DecisionTrace) -> dict[str, str]:
    return {one.instance: one.why for one in choice.left_out}


def test_who_was_considered_and_by_what() -> None:
    scheduler, told = telling(fleet(P0, P1, D0))

    with scheduler.reserve(Role.PREFILL, CALL) as first, scheduler.reserve(Role.PREFILL, CALL):
        pass

    busy = first.instance.id
    assert [choice.policy for choice in told] == ["least_loaded"] * 2
    assert {one.score for one in told[0].considered} == {0}
    scores = {one.instance: one.score for one in told[1].considered}
    assert scores == {busy: -(CALL.prompt_tokens + 256), told[1].chosen: 0}
    assert not told[1].left_out


def test_the_only_one_needs_no_policy() -> None:
    scheduler, told = telling(fleet(P0, D0))

    scheduler.reserve(Role.DECODE, CALL).end()

    assert told == [DecisionTrace(Role.DECODE, "", "d0", [Weighed("d0", why=ONLY_ONE)], [])]


def test_one_that_was_named_for_the_call_is_said_to_be() -> None:
    """As an engine of both roles is that keeps what it was chosen to read."""
    both = [replace(P0, id=f"b{n}", role=Role.BOTH) for n in range(2)]
    scheduler, told = telling(fleet(*both))

    scheduler.reserve(Role.DECODE, CALL, reads=True, among=("b1",)).end()

    assert told[0].considered == [Weighed("b1", why=CHOSEN_BEFORE)]
    assert why_not(told[0]) == {
        "b0": "the call is not split, and stays with those that were named for that"
    }


def test_one_that_came_instead_is_not_said_to_be_named() -> None:
    endpoints = fleet(P0, D0, D1)
    endpoints.drain(["d1"])
    scheduler, told = telling(endpoints)

    scheduler.reserve(Role.DECODE, CALL, reads=True, among=("d1",)).end()

    assert told[0].considered == [Weighed("d0", why=ONLY_ONE)]


@pytest.mark.parametrize(
    ("keep_out", "words"),
    [
        (lambda them: them.mark_down("p0"), "down"),
        (lambda them: them.mark_silent("p0"), "health checks"),
        (lambda them: them.drain(["p0"]), "drained"),
        (lambda them: [them.failed("p0", Cause.ENGINE) for _ in range(3)], "keep failing"),
        (lambda them: them.mark_up("p0", ["another"]), "it serves another"),
        (lambda them: them.put(replace(P0, protocol="sglang")), "speaks sglang"),
        (lambda them: them.assign("p0", frozenset({Role.DECODE})), "other side"),
    ],
)  # fmt: skip
def test_who_was_left_out_and_why(keep_out: object, words: str) -> None:
    endpoints = fleet(replace(P0, role=Role.BOTH), P1, D0)
    scheduler, told = telling(endpoints)
    assert callable(keep_out)
    keep_out(endpoints)

    scheduler.reserve(Role.PREFILL, CALL).end()

    assert told[0].chosen == "p1"
    assert words in why_not(told[0])["p0"]


def test_who_has_as_many_calls_as_it_may_is_left_out() -> None:
    endpoints = fleet(P0, P1, D0)
    scheduler, told = telling(endpoints)
    scheduler.places = (1, inf)

    with scheduler.reserve(Role.PREFILL, CALL) as first:
        scheduler.reserve(Role.PREFILL, CALL).end()

    (why,) = why_not(told[1]).items()
    assert why == (first.instance.id, "it has as many calls as it may (1)")


def test_who_failed_the_call_is_left_out_and_so_is_who_speaks_otherwise() -> None:
    sglang = [replace(one, id=f"{one.id}-sglang", protocol="sglang") for one in (P0, D0)]
    scheduler, told = telling(fleet(P0, P1, D0, D1, *sglang))

    scheduler.reserve(Role.PREFILL, CALL, avoid={"p0"}).end()
    scheduler.reserve(Role.DECODE, CALL, peer=P0).end()

    assert "failed this call" in why_not(told[0])["p0"]
    assert "it speaks sglang" in why_not(told[1])["d0-sglang"]


def test_that_there_is_nobody_is_told_too() -> None:
    endpoints = fleet(P0, D0)
    endpoints.mark_down("d0")
    scheduler, told = telling(endpoints)

    with pytest.raises(NoInstance):
        scheduler.reserve(Role.DECODE, CALL)

    assert told[0].as_json() == {
        "role": "decode",
        "policy": "",
        "chosen": None,
        "rule": [],
        "decided_by": "",
        "considered": [],
        "left_out": [{"instance": "d0", "why": "it is down"}],
        "more": 0,
    }


def test_of_very_many_the_chosen_one_and_some_are_shown() -> None:
    many = [replace(P0, id=f"p{n}", url=f"http://p{n}") for n in range(200)]
    scheduler, told = telling(fleet(*many, D0))

    chosen = scheduler.reserve(Role.PREFILL, CALL).instance.id

    assert len(told[0].considered) == MOST_SHOWN
    assert told[0].more == 200 - MOST_SHOWN
    assert chosen in {one.instance for one in told[0].considered}


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE, Role.PLAIN])
def test_explaining_does_not_change_what_is_chosen(name: str, role: Role) -> None:
    """With the same lots, who explains each choice chooses as one who never does."""
    asked, silent = (policy.load(name, PolicyContext(role, random=Lots(7))) for _ in "ab")
    # Equals, so that turns and lots decide.
    endpoints = [busy(one, 1) for one in (P0, P1, P2)]

    for number in range(20):
        call = chat(user=f"u{number}")
        chosen = asked.choose_beside(call, endpoints, D0)
        weighed = asked.explain(call, endpoints, D0)

        assert silent.choose_beside(call, endpoints, D0) is chosen
        assert [one.instance for one in weighed] == ["p0", "p1", "p2"]
        assert all(one.why for one in weighed)


@pytest.mark.parametrize("name", ["least_latency", "least_loaded", "projected_kv", "slo"])
def test_the_best_score_is_that_of_the_chosen_one(name: str) -> None:
    chooses = policy.load(name, PolicyContext(Role.PREFILL, random=Lots(7)))
    endpoints = [busy(P0, 9), busy(P1, 2), busy(P2, 5)]

    scores = {one.instance: one.score or 0 for one in chooses.explain(CALL, endpoints)}

    assert chooses.choose(CALL, endpoints).instance.id == "p1"
    assert max(scores, key=lambda one: scores[one]) == "p1"


def test_a_policy_that_explains_nothing_is_told_of_all_the_same() -> None:
    class Last(Policy):
        def choose(self, call: Call, endpoints: object) -> Endpoint:
            assert isinstance(endpoints, list)
            found = endpoints[-1]
            assert isinstance(found, Endpoint)
            return found

    scheduler, told = telling(fleet(P0, P1, D0), Last())

    scheduler.reserve(Role.PREFILL, CALL).end()

    assert told[0].policy == "Last"
    assert [(one.instance, one.score) for one in told[0].considered] == [("p0", None), ("p1", None)]


def busy(instance: Instance, calls: int) -> Endpoint:
    tokens = 1000 * calls
    return Endpoint(instance, up=True, calls=calls, tokens=tokens, unread_tokens=tokens)


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE, Role.PLAIN])
@pytest.mark.parametrize("known", [{}, {"p0": 6000, "p1": 6000}], ids=["nothing cached", "cached"])
def test_a_choice_can_be_computed_again_from_what_is_shown(
    name: str, role: Role, known: dict[str, int]
) -> None:
    """By a reader of the JSON: whatever decides, load, caches, lateness, turns, lots or nothing."""
    draw = Lots(f"{name} {role}")
    chooses = policy.load(name, PolicyContext(role, Known(known), random=Lots(7)))
    alone = 0
    for _ in range(60):
        # Some alike, some idle, some with far more than can be read in time.
        loads = draw.choice(
            [(0, 0, 0), (1, 1, 5), (2, 2, 2), (9, 3, 3), (90, 80, 95), (70, 70, 70)]
        )
        endpoints = [busy(one, load) for one, load in zip((P0, P1, P2), loads, strict=True)]
        for endpoint in endpoints:
            # By milliseconds, which is as good as nothing.
            endpoint.unread_tokens += draw.choice([0, 20, 70])
        call = replace_tokens(draw.choice([100, 7000, 70_000]), draw.choice(["", "u1", "u2"]))

        chosen = chooses.choose(call, endpoints)
        said = chooses.explain(call, endpoints)
        trace = DecisionTrace(
            role, name, chosen.instance.id, said, (), rule=chooses.rule(call, endpoints)
        )

        left = computed(json.loads(json.dumps(trace.as_json())))
        assert chosen.instance.id in left
        assert trace.decided_by
        assert ("equals" in trace.decided_by) == (len(left) > 1)
        alone += len(left) == 1
    assert alone > 3


def test_an_idle_engine_is_explained_by_the_rate_that_it_was_chosen_by() -> None:
    """Also in the choice in which it has been overlooked so long that it is taken to be as fast as the quickest."""
    slow, busy_one = Endpoint(P0, up=True), busy(P1, 2)
    both = (slow.latency, busy_one.latency)
    family = both[0].family
    for latency, speed in zip(both, (1_000, 10_000), strict=True):
        latency.belongs_to(family)
        for tokens in (1_000, 2_000, 4_000, 8_000):
            latency.prefill_rate.learn(tokens, tokens / speed)
    chooses = policy.load("slo", PolicyContext(Role.PREFILL, random=Lots(7)))
    call, among = replace_tokens(1_000, ""), [slow, busy_one]

    for number in range(2 * OVERLOOKED):
        chosen = chooses.choose(call, among)
        left, _ = narrowed(chooses.explain(call, among), chooses.rule(call, among))
        assert [one.instance for one in left] == [chosen.instance.id], number
        if chosen is slow:
            break
    assert number == OVERLOOKED


def computed(choice: dict[str, Any]) -> list[str]:
    """Which engines the rule leaves, by nothing but the JSON."""

    def value(one: dict[str, Any], by: str) -> float | None:
        found = one["score"] if by == "score" else one.get("values", {}).get(by)
        return None if found is None else float(found)

    left = choice["considered"]
    for step in choice["rule"]:
        sign = 1 if step["best"] == "most" else -1
        have = [(found, one) for one in left if (found := value(one, step["by"])) is not None]
        if "at_most" in step:
            left = [one for found, one in have if found <= step["at_most"]] or left
        elif "count" in step:
            have.sort(key=lambda pair: -sign * pair[0])
            left = [one for _, one in have[: step["count"]]]
        elif have:
            best = max(sign * found for found, _ in have)
            left = [one for found, one in have if sign * found >= best - step.get("within", 0)]
    return [one["instance"] for one in left]


def replace_tokens(tokens: int, user: str) -> Call:
    call = chat(user=user) if user else chat()
    return msgspec.structs.replace(call, prompt_tokens=tokens, id=f"{tokens}")


def test_what_decided_is_said_in_words_with_its_values() -> None:
    """The better score did not win: both were close, and the one with fewer calls in flight did."""
    chooses = policy.load("slo", PolicyContext(Role.PREFILL, random=Lots(7)))
    scheduler, told = telling(fleet(P0, P1, D0), chooses)
    for endpoint in scheduler._endpoints:
        if endpoint.instance.id == "p1":
            endpoint.tokens = 900

    scheduler.reserve(Role.PREFILL, CALL).end()

    assert told[0].chosen == "p0"
    assert told[0].decided_by == "lowest in_flight_tokens (0, then 900)"
    values = {one.instance: one.values["in_flight_tokens"] for one in told[0].considered}
    assert values == {"p0": 0, "p1": 900}
    assert (
        json.loads(json.dumps(told[0].as_json()))["rule"][3]["words"] == "lowest in_flight_tokens"
    )


def test_tokens_are_shown_to_their_last_digit() -> None:
    """A million of them, too: who has one less was chosen."""
    some = [Weighed(name, values={"tokens": n}) for name, n in (("a", 1_234_568), ("b", 1_234_567))]

    left, decided = narrowed(some, [Step("tokens")])

    assert [one.instance for one in left] == ["b"]
    assert decided == "lowest tokens (1234567, then 1234568)"
    assert str(Step("tokens", at_most=2_000_001)) == "tokens at most 2000001"


HERE, THERE = Place(host="h1", rack="r1", zone="z"), Place(host="h2", rack="r2", zone="z")


@pytest.mark.parametrize("name", BUILT_IN)
def test_both_choices_of_a_pair_can_be_computed_again(name: str) -> None:
    """Near engines, full ones, equals: the other half of the call and a filter decide as well."""
    draw = Lots(name)
    places = dict(zip(("p0", "p1", "p2", "d0", "d1", "d2"), (HERE, THERE, THERE) * 2, strict=True))
    some = [replace(one, place=places[one.id]) for one in (P0, P1, P2, D0, D1, D2)]
    endpoints = fleet(*some)
    known = Known({})
    of_role = {
        role: policy.load(name, PolicyContext(role, known, random=Lots(7)))
        for role in (Role.PREFILL, Role.DECODE, Role.PLAIN)
    }
    told = list[DecisionTrace]()
    scheduler = Scheduler(
        endpoints, of_role[Role.PREFILL], of_role[Role.DECODE], of_role[Role.PLAIN]
    )
    scheduler.told = lambda _, choice: told.append(choice)
    deciding = Counter[str]()
    for number in range(40):
        for endpoint in endpoints:
            reads = endpoint.instance.role is Role.PREFILL
            loads = [0, 0, 0, 3000] if reads else [0, 40_000, 300_000]
            endpoint.tokens = endpoint.unread_tokens = draw.choice(loads)
            full = draw.choice([False, False, True])
            endpoint.beyond = Beyond(kv_capacity=500_000, kv_tokens=499_000 if full else 0)
        call = replace_tokens(draw.choice([100, 7000, 70_000]), f"u{number}")
        known.tokens = draw.choice([{}, {}, {"p1": call.prompt_tokens // 2}])

        with (
            scheduler.reserve(Role.PREFILL, call) as prefill,
            scheduler.reserve(Role.DECODE, call, peer=prefill.instance),
        ):
            pass
        for trace in told[-2:]:
            left = computed(json.loads(json.dumps(trace.as_json())))
            assert trace.chosen in left
            assert trace.decided_by
            deciding[trace.decided_by.partition(" (")[0]] += 1
    assert len(told) == 80
    # It was no rule that says nothing.
    assert len(deciding) > 1 or name == "round_robin", deciding


def test_a_reader_whose_partners_have_failed_the_call_is_said_to_be_one() -> None:
    of_another = [replace(one, protocol="sglang") for one in (P2, D2)]
    scheduler, told = telling(fleet(P0, D0, *of_another))

    scheduler.reserve(Role.PREFILL, CALL, avoid={"d2"}).end()

    assert why_not(told[0]) == {
        "p2": "those that could answer after it have failed this call before"
    }
