"""Reservations count, end with their block, and pair what can work together."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import pytest

from pdgate.gateway.verification.window import Given
from pdgate.protocols.call import Call
from pdgate.protocols.errors import (
    EngineFailed,
    EngineRefused,
    GenerationsDiffer,
    NoInstance,
    UnknownModel,
)
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.disaggregation import Decision, SplitRule, Taken
from pdgate.scheduling.disaggregation.decision import LONG_PROMPT
from pdgate.scheduling.disaggregation.rules import NOTHING_CACHED
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.health.breaker import BreakerLimits
from pdgate.scheduling.latency.model import ENOUGH, OVERLOOKED, TOKENS_PER_SECOND
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.scheduler import Scheduler
from tests.support.scripted import D0, D1, P0, P1, chat, fleet, scheduler

CALL = chat()
PLAIN = Instance("s0", "http://s0", Role.PLAIN, "plain")
SGLANG = [replace(one, id=f"{one.id}-sglang", protocol="sglang") for one in (P0, D0)]


class Asked(SplitRule):
    """Splits every call, and notes how the prefill engine looks to a rule."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int, int, int]] = []

    def decide(
        self,
        call: Call,
        prefill: Endpoint,
        decodes: Sequence[Endpoint],
        cached: Mapping[str, int] = NOTHING_CACHED,
        may_keep: bool = True,
    ) -> Decision:
        its, overlooked = prefill, prefill.latency.overlooked
        self.seen.append(
            (its.calls, its.tokens, its.unread_tokens, its.own_unread_squares, overlooked)
        )
        return Decision(Taken.SPLIT, LONG_PROMPT)


def account(endpoints: Endpoints, instance_id: str) -> tuple[int, int]:
    endpoint = endpoints.get(instance_id)
    assert endpoint is not None
    return endpoint.calls, endpoint.tokens


def test_a_reserved_instance_counts_until_the_block_ends() -> None:
    endpoints = fleet(P0, D0)

    with scheduler(endpoints).reserve(Role.PREFILL, CALL) as prefill:
        assert prefill.instance is P0
        assert account(endpoints, "p0") == (1, CALL.prompt_tokens)

    assert account(endpoints, "p0") == (0, 0)


def test_it_may_end_before_its_block_and_counts_once() -> None:
    endpoints = fleet(P0, D0)

    with scheduler(endpoints).reserve(Role.PREFILL, CALL) as prefill:
        prefill.end()
        assert account(endpoints, "p0") == (0, 0)

    assert account(endpoints, "p0") == (0, 0)


def test_an_error_ends_it_too() -> None:
    endpoints = fleet(P0, D0)

    with pytest.raises(RuntimeError), scheduler(endpoints).reserve(Role.DECODE, CALL):
        raise RuntimeError

    assert account(endpoints, "d0") == (0, 0)


def test_an_instance_that_comes_back_is_not_charged_for_what_it_left() -> None:
    endpoints = fleet(P0, D0)

    with scheduler(endpoints).reserve(Role.PREFILL, CALL):
        endpoints.remove("p0")
        endpoints.put(P0)

    assert account(endpoints, "p0") == (0, 0)


class First(Policy):
    """A session's engine, whatever it has."""

    def choose(self, call: Call, endpoints: Sequence[Endpoint]) -> Endpoint:
        return endpoints[0]


@pytest.mark.parametrize("both", [False, True])
def test_an_engine_has_as_many_calls_as_it_may_whatever_the_policy(both: bool) -> None:
    """Where another one has a place; who is let in without one, as for a second attempt, is served all the same."""
    engines = [replace(one, role=Role.BOTH) if both else one for one in (P0, P1, D0, D1)]
    endpoints, first = fleet(*engines), First()
    chooses = Scheduler(endpoints, first, first, first)
    chooses.places = (2, 2)
    count = 4 if both else 2
    with ExitStack() as stack:

        def reserve(role: Role) -> str:
            return stack.enter_context(chooses.reserve(role, CALL)).instance.id

        for role in (Role.PREFILL, Role.DECODE):
            found = [reserve(role) for _ in range(2 * count + 1)]
            assert {name: found[:-1].count(name) for name in found} == dict.fromkeys(found, 2)
            assert found[-1] == found[0]


def test_avoided_instances_are_left_out() -> None:
    chosen = scheduler(fleet(P0, P1, D0)).reserve(Role.PREFILL, CALL, avoid={"p1"})

    assert chosen.instance is P0


def test_nobody_left_is_said_with_the_role() -> None:
    with pytest.raises(NoInstance, match="no decode engine is available") as caught:
        scheduler(fleet(P0, D0)).reserve(Role.DECODE, CALL, avoid={"d0"})

    assert caught.value.retry_after_seconds


@pytest.mark.parametrize(
    ("records", "complaint"),
    [
        ([P0], "no decode engine is"),
        ([D0], "no prefill engine is"),
        ([P0, SGLANG[1]], "no prefill and decode engines that work together are"),
        ([replace(P0, role=Role.BOTH)], "no prefill and decode engines that work together are"),
    ],
)
def test_without_a_pair_not_even_prefill_is_reserved(
    records: Sequence[Instance], complaint: str
) -> None:
    """It would read the prompt, and keep the blocks, for nobody."""
    with pytest.raises(NoInstance, match=f"{complaint} available"):
        scheduler(fleet(*records)).reserve(Role.PREFILL, CALL)


def neuron(one: Instance, generation: str) -> Instance:
    return replace(one, id=f"{one.id}-{generation}", protocol="neuron", generation=generation)


def test_engines_of_different_generations_are_refused_by_name() -> None:
    """On the wire they would wait for each other until a timeout."""
    with pytest.raises(GenerationsDiffer, match=r"neuron \(zmq\).*neuron \(nixl\)"):
        scheduler(fleet(neuron(P0, "zmq"), neuron(D0, "nixl"))).reserve(Role.PREFILL, CALL)


def test_each_generation_keeps_to_its_own_where_there_are_several() -> None:
    both = [neuron(one, name) for one in (P0, D0) for name in ("zmq", "nixl")]
    chooses = scheduler(fleet(*both, neuron(D1, "static")))
    for _ in range(4):
        with chooses.reserve(Role.PREFILL, CALL) as prefill:
            decode = chooses.reserve(Role.DECODE, CALL, peer=prefill.instance).instance
            assert decode == neuron(D0, prefill.instance.generation)


def test_halves_of_a_pair_meet_each_other_only() -> None:
    records = [
        replace(one, pair=pair) for one, pair in ((P0, "a"), (P1, "b"), (D0, "a"), (D1, "b"))
    ]
    chooses = scheduler(fleet(*records))

    for avoid, met in (((), {("p0", "d0"), ("p1", "d1")}), (("d0",), {("p1", "d1")})):
        pairs = set()
        for _ in range(4):
            with chooses.reserve(Role.PREFILL, CALL, avoid=avoid) as prefill:
                decode = chooses.reserve(Role.DECODE, CALL, avoid=avoid, peer=prefill.instance)
                pairs.add((prefill.instance.id, decode.instance.id))
                decode.end()
        assert pairs == met


def test_halves_of_different_pairs_are_no_pair() -> None:
    halves = [replace(neuron(one, "static"), pair=pair) for one, pair in ((P0, "a"), (D0, "b"))]

    with pytest.raises(NoInstance, match="no prefill and decode engines that work together"):
        scheduler(fleet(*halves)).reserve(Role.PREFILL, CALL)


def test_an_unknown_model_is_passed_on() -> None:
    engines = scheduler(fleet(P0, D0))
    call = chat(model="other")

    with pytest.raises(UnknownModel):
        engines.disaggregates(call)
    with pytest.raises(UnknownModel):
        engines.reserve(Role.PREFILL, call)


@pytest.mark.parametrize(
    ("records", "expected"),
    [([P0, D0], True), ([P0, D0, PLAIN], True), ([P0, PLAIN], False), ([P0], True)],
)
def test_plain_engines_serve_where_there_is_no_pair(
    records: Sequence[Instance], expected: bool
) -> None:
    assert scheduler(fleet(*records)).disaggregates(CALL) is expected


@pytest.mark.parametrize("peer", [P0, SGLANG[0]])
def test_decode_speaks_the_protocol_of_its_peer(peer: Instance) -> None:
    engines = scheduler(fleet(P0, D0, *SGLANG))

    chosen = {engines.reserve(Role.DECODE, CALL, peer=peer).instance.protocol for _ in range(4)}

    assert chosen == {peer.protocol}


def test_an_engine_of_both_roles_never_pairs_with_itself() -> None:
    both = [replace(P0, id=f"b{n}", role=Role.BOTH) for n in range(2)]
    engines = scheduler(fleet(*both))

    for _ in range(4):
        prefill = engines.reserve(Role.PREFILL, CALL).instance
        assert engines.reserve(Role.DECODE, CALL, peer=prefill).instance is not prefill


def test_a_prefill_that_becomes_decode_meanwhile_is_not_paired_with_itself() -> None:
    """Staged, decode is chosen when prefill is done, which may have another role by then."""
    endpoints = fleet(P0, P1, D0)
    with scheduler(endpoints).reserve(Role.PREFILL, CALL) as prefill:
        endpoints.put(replace(prefill.instance, role=Role.DECODE))

        for _ in range(3):
            with scheduler(endpoints).reserve(Role.DECODE, CALL, peer=prefill.instance) as decode:
                assert decode.instance == D0


def test_the_account_of_an_engine_goes_on_in_another_role() -> None:
    endpoints = fleet(P0, P1, D0)
    with scheduler(endpoints).reserve(Role.PREFILL, CALL) as prefill:
        endpoints.put(replace(prefill.instance, role=Role.DECODE))
        assert account(endpoints, prefill.instance.id) == (1, CALL.prompt_tokens)

    assert account(endpoints, prefill.instance.id) == (0, 0)


def test_another_protocol_is_preferred_to_a_decode_that_failed() -> None:
    """Prefill is chosen first, and must not lead back to the engine to avoid."""
    engines = scheduler(fleet(P0, D0, *SGLANG))

    chosen = {engines.reserve(Role.PREFILL, CALL, avoid={"d0"}).instance.id for _ in range(4)}

    assert chosen == {"p0-sglang"}


def test_the_only_pair_stays_possible_after_a_failure() -> None:
    """Whether decode gets a second chance is not for prefill's choice to say."""
    engines = scheduler(fleet(P0, D0))

    assert engines.reserve(Role.PREFILL, CALL, avoid={"d0"}).instance is P0


def test_whoever_asked_before_gets_the_engines_of_now() -> None:
    endpoints = fleet(P0, P1, D0)
    engines = scheduler(endpoints)
    assert engines.disaggregates(CALL)

    endpoints.mark_down("d0")
    with pytest.raises(NoInstance):
        engines.reserve(Role.PREFILL, CALL)

    endpoints.mark_up("d0", ["m"])
    endpoints.mark_down("p0")
    assert engines.reserve(Role.PREFILL, CALL).instance is P1


def test_a_leg_that_worked_ends_a_trial_also_where_no_failure_is_left() -> None:
    """The only one was the call's fault, so it was forgotten."""
    endpoints = fleet(P0, P1, D0)
    endpoints.limits = BreakerLimits(failures=1)
    engines = scheduler(endpoints)
    engines.report(P0, EngineFailed("500"))
    engines.excuse(["p0"])
    endpoint = endpoints.get("p0")
    assert endpoint is not None
    assert endpoint.state == "trial"

    engines.report(P0, None)

    assert endpoint.state == "slow_start"


def test_a_leg_that_worked_ends_a_row_of_failures() -> None:
    endpoints = fleet(P0, P1, D0)
    endpoints.limits = BreakerLimits(failures=2)
    engines = scheduler(endpoints)

    for error in (EngineFailed("500"), None, EngineFailed("500"), None):
        engines.report(P0, error)

    endpoint = endpoints.get("p0")
    assert endpoint is not None
    assert endpoint.state == "up"


def test_refusing_engines_go_down_and_failing_ones_stay() -> None:
    """One that fails calls may still serve others; the probe decides on it."""
    endpoints = fleet(P0, D0, D1)
    engines = scheduler(endpoints)

    engines.report(D0, EngineRefused("down"))
    engines.report(D1, EngineFailed("500"))
    engines.report(P0, None)

    assert [c.instance.id for c in endpoints if c.up] == ["p0", "d1"]


class Fixed(Policy):
    def __init__(self) -> None:
        self.asked: list[Call] = []

    def choose(self, call: Call, endpoints: Sequence[Endpoint]) -> Endpoint:
        self.asked.append(call)
        return endpoints[-1]


def test_each_role_has_a_policy_of_its_own() -> None:
    prefill, decode, plain = Fixed(), Fixed(), Fixed()
    engines = Scheduler(fleet(P0, P1, D0, PLAIN), prefill, decode, plain)

    assert engines.reserve(Role.PREFILL, CALL).instance is P1
    assert (prefill.asked, decode.asked, plain.asked) == ([CALL], [], [])


def test_a_prompt_that_is_presumed_read_counts_as_that_and_teaches_nothing() -> None:
    """Verification of what decode computes still knows that it may be unread."""
    endpoints = fleet(PLAIN)
    endpoint = endpoints.get("s0")
    assert endpoint is not None
    freed: list[int] = []
    engines = scheduler(endpoints)
    engines.freed = lambda: freed.append(endpoint.unread_tokens)

    with engines.reserve(Role.PLAIN, CALL) as reserved:
        assert reserved.reading_seconds == CALL.prompt_tokens / TOKENS_PER_SECOND
        reserved.presume_read()
        reserved.presume_read()

        assert (endpoint.unread_tokens, endpoint.answering, freed) == (0, 1, [0])
        assert endpoint.latency.prefill_rate.seen == 0
        assert Given.to(endpoint).reads

    assert (endpoint.calls, endpoint.answering, freed) == (0, 0, [0])
    assert not Given.to(endpoint).reads


def test_a_call_that_is_over_cannot_be_presumed_read() -> None:
    endpoints = fleet(PLAIN)
    endpoint = endpoints.get("s0")
    assert endpoint is not None

    with scheduler(endpoints).reserve(Role.PLAIN, CALL) as reserved:
        pass
    reserved.presume_read()

    assert (endpoint.calls, endpoint.answering, endpoint.unread_tokens) == (0, 0, 0)


def test_asking_whether_a_call_stays_leaves_no_trace_on_the_engine() -> None:
    """Nothing was sent there, so nothing shows that it works, or how fast it is."""
    endpoints = fleet(P0, D0)
    endpoint = endpoints.get("p0")
    assert endpoint is not None
    latency = endpoint.latency
    for _ in range(ENOUGH):
        latency.prefill_rate.learn(CALL.prompt_tokens, 0.1)
    latency.overlooked = 2 * OVERLOOKED
    rule = Asked()

    for _ in range(2):
        assert not Scheduler(endpoints, Fixed(), Fixed(), Fixed(), rule).stays(CALL, endpoint)

    tokens = CALL.prompt_tokens
    assert rule.seen == [(1, tokens, tokens, tokens * tokens, 0)] * 2
    assert account(endpoints, "p0") == (0, 0)
    assert (endpoint.unread_tokens, endpoint.own_unread_squares) == (0, 0)
    assert (endpoint.whole_calls, endpoint.read_tokens) == (0, 0)
    assert latency.overlooked == 2 * OVERLOOKED
    latency.prefill_rate.learn(tokens, 0.2)
    assert (latency.prefill_seconds(tokens) or 1.0) < 0.15
