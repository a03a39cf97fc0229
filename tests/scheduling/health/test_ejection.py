"""Who gets calls while engines fail, hang, are drained, and come back."""

import pytest

from pdgate.protocols.errors import (
    EngineBusy,
    EngineFailed,
    EngineRefused,
    EngineRejected,
    GatewayError,
    NoInstance,
)
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.health.breaker import BreakerLimits, BreakerState
from pdgate.scheduling.policies.round_robin import RoundRobin
from pdgate.scheduling.reservation import Reservation
from pdgate.scheduling.scheduler import Scheduler
from tests.support.scripted import D0, D1, P0, P1, chat

LIMITS = BreakerLimits(failures=2, retry_seconds=0.5, slow_start_seconds=4)


class Fleet:
    """Instances with a clock and a die of ours, behind a scheduler."""

    def __init__(self, *records: Instance) -> None:
        self.now = 0.0
        self.drawn = 0.0
        self.endpoints = Endpoints(records, LIMITS, lambda: self.now, lambda: self.drawn)
        self.scheduler = Scheduler(self.endpoints, RoundRobin(), RoundRobin(), RoundRobin())
        self.out: list[str] = []
        self.endpoints.on_out = self.out.append
        for record in records:
            self.seen(record)

    def seen(self, record: Instance) -> None:
        self.endpoints.mark_up(record.id, ["m"])

    def legs(self, at: Instance, *errors: GatewayError | None) -> None:
        for error in errors:
            self.scheduler.report(at, error)

    def reserve(self, role: Role) -> Reservation:
        return self.scheduler.reserve(role, chat())

    def chosen(self, role: Role, times: int = 8) -> set[str]:
        found = set()
        for _ in range(times):
            with self.reserve(role) as reserved:
                found.add(reserved.instance.id)
        return found

    def state(self, record: Instance) -> str:
        endpoint = self.endpoints.get(record.id)
        assert endpoint is not None
        return endpoint.state


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(P0, P1, D0, D1)


FAILED = EngineFailed("no")


def test_calls_that_keep_failing_take_an_engine_out(fleet: Fleet) -> None:
    fleet.legs(D0, FAILED)
    assert fleet.chosen(Role.DECODE) == {"d0", "d1"}

    fleet.legs(D0, FAILED)

    assert fleet.chosen(Role.DECODE) == {"d1"}
    assert (fleet.state(D0), fleet.out) == ("ejected", ["d0"])


@pytest.mark.parametrize("error", [EngineRejected(400, (), b""), EngineBusy("full")])
def test_what_is_not_the_engines_fault_never_does(fleet: Fleet, error: GatewayError) -> None:
    fleet.legs(D0, *[error] * 50)

    assert fleet.chosen(Role.DECODE) == {"d0", "d1"}


def test_failing_calls_never_take_the_last_one_of_a_role(fleet: Fleet) -> None:
    fleet.legs(D0, *[FAILED] * 5)
    fleet.legs(D1, *[FAILED] * 5)

    assert fleet.chosen(Role.DECODE) == {"d0", "d1"}
    assert fleet.endpoints.missing_roles() == []


def test_looks_that_nobody_answers_never_take_the_last_one_of_a_role(fleet: Fleet) -> None:
    """An engine under load is slow to say that it is well."""
    fleet.endpoints.mark_silent("d0")
    assert fleet.chosen(Role.DECODE) == {"d1"}

    fleet.endpoints.mark_silent("d1")

    assert fleet.chosen(Role.DECODE) == {"d0", "d1"}
    assert fleet.state(D0) == "silent"
    fleet.seen(D1)
    assert fleet.chosen(Role.DECODE) == {"d1"}


def test_a_refused_connection_takes_the_last_one_as_nobody_listens() -> None:
    fleet = Fleet(P0, D0)
    fleet.legs(D0, EngineRefused("no"))

    with pytest.raises(NoInstance):
        fleet.reserve(Role.DECODE)
    assert fleet.endpoints.missing_roles() == [("vllm-nixl", "decode")]

    fleet.seen(D0)
    assert fleet.chosen(Role.DECODE) == {"d0"}


def test_a_doubted_engine_is_better_than_one_that_is_down(fleet: Fleet) -> None:
    fleet.legs(D0, FAILED, FAILED)
    fleet.legs(D1, EngineRefused("no"))

    assert fleet.chosen(Role.DECODE) == {"d0"}


def test_whose_only_partner_is_doubted_still_serves() -> None:
    """The fit decode engine speaks another protocol than the fit prefill engine."""
    other = Instance("d9", "http://d9", Role.DECODE, "sglang")
    fleet = Fleet(P0, D0, other)
    fleet.legs(D0, FAILED, FAILED)

    assert fleet.chosen(Role.PREFILL) == {"p0"}
    assert fleet.chosen(Role.DECODE) == {"d0"}


def test_on_trial_it_gets_one_call_at_a_time(fleet: Fleet) -> None:
    fleet.legs(D0, FAILED, FAILED)
    fleet.now = 0.5
    fleet.seen(D0)
    assert fleet.state(D0) == "trial"

    held: list[Reservation] = [fleet.reserve(Role.DECODE) for _ in range(8)]
    assert [r.instance.id for r in held].count("d0") == 1
    # The client of the trial left, which says nothing; another may try.
    for reservation in held:
        reservation.end()
    assert fleet.chosen(Role.DECODE) == {"d0", "d1"}


def test_a_good_call_on_trial_brings_it_back_slowly(fleet: Fleet) -> None:
    fleet.legs(D0, FAILED, FAILED)
    fleet.now = 0.5
    fleet.seen(D0)
    fleet.legs(D0, None)
    assert fleet.state(D0) == "slow_start"

    # A quarter of the calls after a quarter of the time, by the die.
    fleet.now += 1.0
    fleet.drawn = 0.26
    assert fleet.chosen(Role.DECODE) == {"d1"}
    fleet.drawn = 0.24
    assert fleet.chosen(Role.DECODE) == {"d0", "d1"}

    fleet.now += 3.0
    fleet.drawn = 0.99
    assert fleet.chosen(Role.DECODE) == {"d0", "d1"}
    assert fleet.state(D0) == "up"
    assert not fleet.endpoints.eligible("m").careful


def test_who_was_down_comes_back_slowly_and_who_is_new_at_once(fleet: Fleet) -> None:
    assert fleet.state(D0) == "up"

    fleet.endpoints.mark_down("d0")
    fleet.seen(D0)

    assert fleet.state(D0) == "slow_start"
    fleet.drawn = 0.99
    assert fleet.chosen(Role.DECODE) == {"d1"}


def test_nobody_else_means_all_calls_even_while_it_comes_back() -> None:
    fleet = Fleet(P0, D0)
    fleet.drawn = 0.99
    fleet.endpoints.mark_down("d0")
    fleet.seen(D0)

    assert fleet.chosen(Role.DECODE) == {"d0"}


def test_a_drained_instance_gets_no_calls_not_even_as_the_last(fleet: Fleet) -> None:
    with fleet.reserve(Role.DECODE):
        fleet.endpoints.drain({"d0"})
        assert fleet.chosen(Role.DECODE) == {"d1"}
        assert fleet.state(D0) == "drained"

        fleet.endpoints.drain({"d0", "d1"})
        with pytest.raises(NoInstance):
            fleet.reserve(Role.DECODE)

    fleet.endpoints.drain(())
    assert fleet.chosen(Role.DECODE) == {"d0", "d1"}


def test_who_is_drained_before_it_is_known_stays_so() -> None:
    fleet = Fleet(P0, D0, D1)
    fleet.endpoints.remove("d1")
    fleet.endpoints.drain({"d1"})
    fleet.endpoints.put(D1)
    fleet.seen(D1)

    assert fleet.chosen(Role.DECODE) == {"d0"}


def test_a_poison_call_is_taken_back_from_those_that_it_met(fleet: Fleet) -> None:
    fleet.legs(D0, FAILED, FAILED)

    fleet.endpoints.excuse(["d0", "gone"])

    endpoint = fleet.endpoints.get("d0")
    assert endpoint is not None
    assert endpoint.breaker.state is BreakerState.TRIAL
    assert fleet.chosen(Role.DECODE) == {"d0", "d1"}


def test_what_failed_as_an_engine_fell_asleep_is_not_held_against_it() -> None:
    fleet = Fleet(P0, D0, D1)
    fleet.legs(D0, EngineFailed("aborted"), EngineFailed("aborted"))
    assert fleet.state(D0) == "ejected"

    fleet.endpoints.mark_asleep(D0.id)
    assert (fleet.state(D0), fleet.chosen(Role.DECODE)) == ("asleep", {D1.id})
    fleet.seen(D0)
    fleet.now = LIMITS.slow_start_seconds

    assert fleet.chosen(Role.DECODE) == {D0.id, D1.id}
    assert fleet.state(D0) == "up"


def test_an_engine_that_sleeps_is_not_asked_even_if_it_is_the_last() -> None:
    fleet = Fleet(P0, D0)
    fleet.endpoints.mark_asleep(D0.id)

    with pytest.raises(NoInstance):
        fleet.reserve(Role.DECODE)
    fleet.endpoints.mark_down(D0.id)
    assert fleet.state(D0) == "down"
