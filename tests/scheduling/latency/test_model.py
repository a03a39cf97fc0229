"""What is expected of an instance: from what it has shown, or from those who are alike."""

import random
from dataclasses import replace

import pytest

from pdgate.protocols.instance import Role
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.latency.model import ENOUGH, LatencyModel
from pdgate.scheduling.policies.slo import slo
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import PolicyContext
from pdgate.scheduling.reservation import Reservation
from tests.support.fleets import prompt
from tests.support.scripted import D0, P0, P1, fleet

PER_TOKEN = 0.0001


def read(one: Endpoint, tokens: int, seconds: float) -> None:
    with Reservation(one, tokens, reads=True) as reserved:
        reserved.has_read(seconds)


def knows(one: Endpoint, seconds_per_token: float, times: int = 20) -> None:
    for turn in range(times):
        tokens = 500 + 100 * (turn % 10)
        read(one, tokens, tokens * seconds_per_token)


def endpoint(endpoints: Endpoints, instance_id: str) -> Endpoint:
    found = endpoints.get(instance_id)
    assert found is not None
    return found


def test_nothing_is_expected_of_who_is_unknown() -> None:
    predicts = LatencyModel()

    assert predicts.prefill_seconds(1000) is None
    assert predicts.loading_seconds(1000) is None
    assert predicts.step_seconds(8, 10_000) is None


def test_what_waits_there_is_part_of_what_is_learnt() -> None:
    """The second prompt took as long as both."""
    one = Endpoint(P0)
    for tokens in (1000, 2000, 3000, 4000):
        with (
            Reservation(one, tokens, reads=True) as first,
            Reservation(one, 500, reads=True) as second,
        ):
            first.has_read(tokens * PER_TOKEN)
            second.has_read((tokens + 500) * PER_TOKEN)

    assert one.latency.prefill_seconds(2500) == pytest.approx(0.25, rel=0.1)


def test_a_queue_of_short_prompts_is_quicker_than_one_long_prompt() -> None:
    """Where attention shows: twice the time at 50,000 tokens, here."""
    one, draw = Endpoint(P0), random.Random(3)
    for _ in range(200):
        tokens = draw.randrange(1000, 60_000)
        read(one, tokens, PER_TOKEN * tokens * (1 + tokens / 50_000))

    together = one.latency.prefill_seconds(50_000, 50 * 1000.0**2)

    assert one.latency.prefill_seconds(50_000) == pytest.approx(10, rel=0.1)
    assert together == pytest.approx(5.1, rel=0.1)


def test_the_account_of_squares_ends_with_the_calls() -> None:
    one = Endpoint(P0)
    with (
        Reservation(one, 30, reads=True) as first,
        Reservation(one, 10, reads=True),
        Reservation(one, 99, reads=False),
    ):
        assert one.unread_squares == 1000
        first.has_read(1.0)
        assert one.unread_squares == 100
    assert one.unread_squares == 0


def test_one_stuck_call_does_not_change_what_is_expected_much() -> None:
    one = Endpoint(P0)
    knows(one, PER_TOKEN)

    read(one, 1000, 600.0)

    expected = one.latency.prefill_seconds(1000)
    assert expected is not None
    assert expected < 3 * 1000 * PER_TOKEN


def test_an_engine_that_has_become_slow_is_believed_after_a_few_calls() -> None:
    one = Endpoint(P0)
    knows(one, PER_TOKEN)

    knows(one, 50 * PER_TOKEN, times=25)

    assert one.latency.prefill_seconds(1000) == pytest.approx(5.0, rel=0.2)


def test_how_right_it_was_is_kept() -> None:
    one = Endpoint(P0)
    knows(one, PER_TOKEN, times=50)
    accuracy = one.latency.prefill_accuracy

    assert accuracy.compared == 50 - ENOUGH
    assert accuracy.error < 0.05

    knows(one, PER_TOKEN / 2, times=1)

    assert accuracy.bias > 0


def test_who_knows_nothing_is_taken_to_be_like_the_middle_one_of_its_kind() -> None:
    endpoints = fleet(*(replace(P0, id=f"p{n}") for n in range(4)))
    for n, per_token in enumerate((1, 3, 100)):
        knows(endpoint(endpoints, f"p{n}"), per_token * PER_TOKEN)

    assert endpoint(endpoints, "p3").latency.prefill_seconds(1000) == pytest.approx(0.3, rel=0.1)


def test_its_own_times_count_as_soon_as_there_are_enough() -> None:
    endpoints = fleet(P0, P1)
    knows(endpoint(endpoints, "p0"), PER_TOKEN)
    new = endpoint(endpoints, "p1")
    assert new.latency.prefill_seconds(1000) == pytest.approx(0.1, rel=0.1)

    knows(new, 9 * PER_TOKEN, times=ENOUGH)

    assert new.latency.prefill_seconds(1000) == pytest.approx(0.9, rel=0.1)


def test_another_role_is_another_kind() -> None:
    """Decode reads prompts while it makes tokens."""
    endpoints = fleet(P0, D0)

    knows(endpoint(endpoints, "p0"), PER_TOKEN)

    assert endpoint(endpoints, "d0").latency.prefill_seconds(1000) is None


def test_another_model_is_another_kind() -> None:
    endpoints = fleet(P0, P1)
    knows(endpoint(endpoints, "p0"), PER_TOKEN)

    endpoints.mark_up("p1", ["another"])

    assert endpoint(endpoints, "p1").latency.prefill_seconds(1000) is None


def test_who_is_gone_is_nobody_s_example() -> None:
    endpoints = fleet(P0, P1)
    knows(endpoint(endpoints, "p0"), PER_TOKEN)

    endpoints.remove("p0")

    assert endpoint(endpoints, "p1").latency.prefill_seconds(1000) is None


def test_steps_of_an_unknown_engine_are_as_those_of_its_kind() -> None:
    endpoints = fleet(D0, replace(D0, id="d1"))
    pace = endpoint(endpoints, "d0").latency.step_time
    for batch in (1, 4, 16) * 10:
        pace.learn(8, 0, 8 * (0.01 + 0.001 * batch), batch, 100 * batch)

    new = endpoint(endpoints, "d1").latency

    assert new.step_seconds(16, 1600) == pytest.approx(0.026, rel=0.1)


def test_an_idle_engine_that_was_slow_once_is_tried_again() -> None:
    """As when it had just started: nothing but a call shows that it is quick by now."""
    endpoints, policy = fleet(P0, P1, D0), slo(PolicyContext(Role.PREFILL, random=random.Random(7)))
    quick, slow = endpoint(endpoints, P0.id), endpoint(endpoints, P1.id)
    knows(quick, PER_TOKEN)
    knows(slow, 100 * PER_TOKEN)

    chosen = serve(policy, [quick, slow], {P0.id: PER_TOKEN, P1.id: PER_TOKEN}, 200)

    assert chosen.count(P1.id) > 50


def test_one_that_is_slow_indeed_is_tried_ever_less() -> None:
    endpoints, policy = fleet(P0, P1, D0), slo(PolicyContext(Role.PREFILL, random=random.Random(7)))
    quick, slow = endpoint(endpoints, P0.id), endpoint(endpoints, P1.id)
    knows(quick, PER_TOKEN)
    knows(slow, 100 * PER_TOKEN)

    chosen = serve(policy, [quick, slow], {P0.id: PER_TOKEN, P1.id: 100 * PER_TOKEN}, 2000)

    assert 2 <= chosen.count(P1.id) <= 8
    assert chosen[1000:].count(P1.id) <= 1


def serve(
    policy: Policy, engines: list[Endpoint], per_token: dict[str, float], calls: int
) -> list[str]:
    """One call after the other, so that all are idle."""
    chosen = []
    for number in range(calls):
        one = policy.choose(prompt(1000), engines)
        read(one, 1000 + number % 100, 1000 * per_token[one.instance.id])
        chosen.append(one.instance.id)
    return chosen
