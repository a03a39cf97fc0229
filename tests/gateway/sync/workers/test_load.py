"""Several workers in one process: each has its own instances, and all of them the same accounts."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdgate.gateway.sync.workers import table
from pdgate.gateway.sync.workers.load import SharedLoad
from pdgate.gateway.sync.workers.policy import LooksAround
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.policies.least_loaded import LeastLoaded
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import PolicyContext
from pdgate.scheduling.reservation import Reservation
from pdgate.scheduling.scheduler import Scheduler
from tests.support.scripted import chat

ENGINES = [Instance(f"e{n}", f"http://10.0.0.{n}", Role.PLAIN, "plain") for n in range(6)]
CALL = chat()


class Worker:
    """With what a gateway's process has of scheduling; `folder` is None for one that is alone."""

    def __init__(self, folder: Path | None, seed: int = 0) -> None:
        self.endpoints = Endpoints(ENGINES)
        for engine in ENGINES:
            self.endpoints.mark_up(engine.id, ["m"])
        self.load = None if folder is None else SharedLoad(folder, self.endpoints, Clock())
        policy: Policy = LeastLoaded(Random(seed))
        if self.load is not None:
            policy = LooksAround(policy, self.load.take_in)
        self.scheduler = Scheduler(self.endpoints, policy, policy, policy)

    def reserve(self) -> Reservation:
        return self.scheduler.reserve(Role.PLAIN, CALL)

    def account(self, engine: int) -> tuple[int, int, int, int]:
        endpoint = self.endpoint(engine)
        return (
            endpoint.calls,
            endpoint.tokens,
            endpoint.unread_tokens,
            endpoint.answering,
        )

    def endpoint(self, engine: int) -> Endpoint:
        endpoint = self.endpoints.get(f"e{engine}")
        assert endpoint is not None
        return endpoint


class Clock:
    """Always late enough to take in again."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@contextmanager
def workers(folder: Path, count: int) -> Iterator[list[Worker]]:
    several = [Worker(folder, seed) for seed in range(count)]
    loads = [worker.load for worker in several if worker.load is not None]
    for load in loads:
        load.look()
    try:
        yield several
    finally:
        for load in loads:
            load.close()


def in_flight(reservations: list[Reservation]) -> list[int]:
    """Calls at each engine."""
    at = [reservation.instance.id for reservation in reservations]
    return [at.count(engine.id) for engine in ENGINES]


def test_calls_through_any_worker_go_to_the_engine_that_has_least_of_all(tmp_path: Path) -> None:
    with workers(tmp_path, 4) as several:
        reservations = [several[number % 4].reserve() for number in range(18)]

        assert in_flight(reservations) == [3] * len(ENGINES)


def test_workers_that_do_not_share_load_engines_unevenly() -> None:
    """What the sharing is for, and that the test above can fail."""
    alone = [Worker(None, seed) for seed in range(4)]

    found = in_flight([alone[number % 4].reserve() for number in range(18)])

    assert max(found) - min(found) >= 2


def test_what_has_been_read_and_what_is_answered_is_shared_too(tmp_path: Path) -> None:
    with workers(tmp_path, 2) as (one, other), one.reserve() as reservation:
        engine = int(reservation.instance.id[1:])
        assert other.load is not None
        other.load.take_in()
        assert other.account(engine) == (1, 10, 10, 0)

        reservation.has_read(0.1)
        other.load.take_in()
        assert other.account(engine) == (1, 10, 0, 1)
        assert other.endpoint(engine).own_calls == 0

        reservation.end()
        other.load.take_in()
        assert other.account(engine) == (0, 0, 0, 0)


def test_who_has_left_leaves_nothing_behind(tmp_path: Path) -> None:
    with workers(tmp_path, 2) as (one, other), ExitStack() as calls:
        for _ in ENGINES:
            calls.enter_context(one.reserve())
        assert one.load is not None
        assert other.load is not None
        other.load.take_in()
        assert other.account(0)[0] == 1

        one.load.close()
        other.load.look()

        assert other.account(0) == (0, 0, 0, 0)
        assert one.account(0)[0] == 1, "its own stay"
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_comes_later_begins_with_what_is_there(tmp_path: Path) -> None:
    with (
        workers(tmp_path, 1) as (first,),
        first.reserve() as reservation,
        workers(tmp_path, 1) as (second,),
    ):
        assert second.account(int(reservation.instance.id[1:]))[0] == 1
        # Until it has looked, who was there before does not know of it.
        assert first.load is not None
        first.load.look()
        with second.reserve() as another:
            first.load.take_in()
            assert first.account(int(another.instance.id[1:]))[0] == 1


def test_an_engine_that_comes_back_under_its_id_begins_at_nothing_everywhere(
    tmp_path: Path,
) -> None:
    """As in one process: it is not charged for what it left."""
    with workers(tmp_path, 2) as (one, other):
        assert one.load is not None
        assert other.load is not None
        with one.reserve() as reservation:
            left = reservation.instance
            for worker in (one, other):
                worker.endpoints.remove(left.id)
                worker.endpoints.put(left)
            for load in (one.load, other.load):
                load.look()
            assert other.account(int(left.id[1:])) == (0, 0, 0, 0)
        other.load.take_in()
        assert other.account(int(left.id[1:])) == (0, 0, 0, 0)


def test_taking_in_is_not_repeated_at_once(tmp_path: Path) -> None:
    """It costs time in proportion to engines and workers, so its time is bounded."""
    with workers(tmp_path, 2) as (one, other):
        now = 100.0
        assert one.load is not None
        one.load._clock = lambda: now
        one.load.look()
        with other.reserve() as reservation:
            engine = int(reservation.instance.id[1:])
            one.load.take_in()
            assert one.account(engine)[0] == 0
            now += 0.0001
            one.load.take_in()
            assert one.account(engine)[0] == 1


def test_engines_for_which_there_is_no_row_are_each_workers_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(table, "ROWS", 4)
    with workers(tmp_path, 2) as (one, other):
        with ExitStack() as calls:
            for _ in ENGINES:
                calls.enter_context(one.reserve())
            assert other.load is not None
            other.load.take_in()
            assert [other.account(engine)[0] for engine in range(6)] == [1, 1, 1, 1, 0, 0]
        assert [one.account(engine)[0] for engine in range(6)] == [0] * 6
    assert len(caplog.messages) == 2, "once for each worker"


Step = tuple[int, int, bool]
steps = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.booleans()), max_size=40)


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps)
def test_all_workers_have_the_same_accounts_and_nothing_at_the_end(
    tmp_path: Path, steps: list[Step]
) -> None:
    """Whatever begins, is read, or ends, at whichever worker."""
    with workers(tmp_path, 3) as several:
        running: list[Reservation] = []
        for number, which, reads in steps:
            if which < len(running):
                if reads:
                    running[which].has_read(0.1)
                else:
                    running.pop(which).end()
            else:
                running.append(several[number].reserve())
            for worker in several:
                assert worker.load is not None
                worker.load.take_in()
            for engine in range(len(ENGINES)):
                (account,) = {worker.account(engine) for worker in several}
                assert account[0] == in_flight(running)[engine]

        for reservation in running:
            reservation.end()
        for worker in several:
            assert worker.load is not None
            worker.load.take_in()
            assert {worker.account(engine) for engine in range(len(ENGINES))} == {(0, 0, 0, 0)}


@pytest.mark.parametrize("name", ["least_loaded", "random_two", "round_robin"])
def test_any_policy_looks_first(tmp_path: Path, name: str) -> None:
    with workers(tmp_path, 2) as (one, other), other.reserve() as reservation:
        assert one.load is not None
        endpoints = list(one.endpoints)

        assert one.load.policy(name, PolicyContext()).choose(CALL, endpoints) in endpoints
        assert one.account(int(reservation.instance.id[1:]))[0] == 1
