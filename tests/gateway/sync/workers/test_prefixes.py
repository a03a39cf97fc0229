"""What one worker sends where, the others know before they choose."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from pdgate.gateway.sync.workers.policy import LooksAround
from pdgate.gateway.sync.workers.prefixes import SharedPrefixes
from pdgate.protocols.call import Call
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.policies.round_robin import RoundRobin
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import PolicyContext
from pdgate.scheduling.prefix.index import PrefixIndex
from tests.support.scripted import chat

ENGINES = [Instance(f"e{n}", f"http://10.0.0.{n}", Role.PLAIN, "plain") for n in range(3)]
TOKENS = 128


def prompt(*blocks: int) -> Call:
    return msgspec.structs.replace(chat(), prompt_tokens=TOKENS * len(blocks), blocks=blocks)


class ByPrefix(Policy):
    needs_prefixes = True

    def choose(self, call: Call, endpoints: Sequence[Endpoint]) -> Endpoint:
        return endpoints[0]


class Worker:
    def __init__(self, folder: Path) -> None:
        self.index = PrefixIndex()
        self.endpoints = Endpoints(ENGINES)
        self.shared = SharedPrefixes(folder, self.endpoints, self.index)

    def joins(self) -> Policy:
        return self.shared.around(lambda name, around: ByPrefix())("by_prefix", PolicyContext())

    def knows(self, call: Call) -> dict[str, int]:
        return {one: tokens // TOKENS for one, tokens in self.index.matched(call).items()}


@contextmanager
def workers(folder: Path, count: int = 2) -> Iterator[list[Worker]]:
    several = [Worker(folder) for _ in range(count)]
    for worker in several:
        worker.joins()
    for worker in several:
        worker.shared.look()
    try:
        yield several
    finally:
        for worker in several:
            worker.shared.close()


def test_a_worker_knows_what_another_has_sent_where_before_it_chooses(tmp_path: Path) -> None:
    with workers(tmp_path) as (one, other):
        policy = other.joins()
        one.index.routed(prompt(1, 2, 3), "e1")
        assert other.knows(prompt(1, 2, 3)) == {}

        policy.choose(prompt(1, 2, 3), list(other.endpoints))

        assert other.knows(prompt(1, 2, 3)) == {"e1": 3}


def test_what_is_taken_back_is_taken_back_everywhere(tmp_path: Path) -> None:
    with workers(tmp_path) as (one, other):
        one.index.routed(prompt(1, 2), "e1")
        had = one.index.routed(prompt(1, 2, 3), "e1")
        one.index.unrouted(prompt(1, 2, 3), "e1", had)
        other.shared.take_in()

        assert other.knows(prompt(1, 2, 3)) == {"e1": 2}


def test_what_is_heard_is_not_told_again(tmp_path: Path) -> None:
    with workers(tmp_path) as (one, other):
        one.index.routed(prompt(1, 2), "e1")
        other.shared.take_in()
        one.index.clear()
        one.shared.take_in()

        assert one.knows(prompt(1, 2)) == {}


def test_engines_that_a_worker_does_not_know_are_not_in_its_index(tmp_path: Path) -> None:
    with workers(tmp_path) as (one, other):
        other.endpoints.remove("e1")
        one.index.routed(prompt(1), "e1")
        one.index.routed(prompt(1), "e2")
        other.shared.take_in()
        assert other.knows(prompt(1)) == {"e2": 1}

        other.endpoints.put(ENGINES[1])
        other.shared.look()
        one.index.routed(prompt(1), "e1")
        other.shared.take_in()
        assert other.knows(prompt(1)) == {"e1": 1, "e2": 1}


def test_who_joins_later_hears_of_what_comes_later(tmp_path: Path) -> None:
    with workers(tmp_path, 1) as (one,):
        one.index.routed(prompt(1), "e0")
        late = Worker(tmp_path)
        late.joins()
        one.index.routed(prompt(2), "e0")
        late.shared.take_in()

        assert (late.knows(prompt(1)), late.knows(prompt(2))) == ({}, {"e0": 1})
        late.shared.close()


def test_nothing_is_shared_before_a_policy_asks(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    loaded = worker.shared.around(lambda name, around: RoundRobin())("rr", PolicyContext())
    worker.shared.look()

    assert isinstance(loaded, RoundRobin)
    assert worker.index.told == []
    assert list(tmp_path.iterdir()) == []

    assert isinstance(worker.joins(), LooksAround)
    assert len(list(tmp_path.iterdir())) == 1
    worker.shared.close()
    assert list(tmp_path.iterdir()) == []


def test_without_room_a_worker_goes_on_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(tmp_path / "gone")
    worker.joins()
    worker.index.routed(prompt(1), "e0")

    assert worker.knows(prompt(1)) == {"e0": 1}
    assert "cannot tell each other" in caplog.text


def test_it_runs_from_the_first_policy_that_asks_until_its_end(tmp_path: Path) -> None:
    worker = Worker(tmp_path)

    async def serve() -> None:
        running = asyncio.create_task(worker.shared.run())
        await asyncio.sleep(0)
        worker.joins()
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        worker.shared.close()

    asyncio.run(serve())
    assert list(tmp_path.iterdir()) == []
    assert worker.index.told == []
