"""One process decides who serves what, and all do as it says."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pdgate.cluster.directory import StoreAway
from pdgate.gateway.adaptive.adapting import Adapting
from pdgate.gateway.adaptive.leader import SILENT_PERIODS
from pdgate.gateway.adaptive.record import RoleRecord, to_bytes
from pdgate.gateway.adaptive.sides import Sides
from pdgate.gateway.sync.shared_store import FileStore, SharedStore
from pdgate.protocols.instance import Role
from pdgate.scheduling.policy_context import Targets
from pdgate.scheduling.roles import PERSISTS, Roles
from pdgate.scheduling.status import Status
from tests.support.clock import Clock
from tests.support.scripted import P0, fleet

PERIOD_SECONDS, NAMES = 5.0, ("e0", "e1", "e2", "e3")

NewStore = Callable[[], SharedStore]


@pytest.fixture
def new_store(tmp_path: Path) -> NewStore:
    return lambda: FileStore(tmp_path / "roles")


class Away(SharedStore):
    """It answers once it is told to."""

    def __init__(self, store: SharedStore) -> None:
        self.store = store
        self.away = True

    async def read(self) -> bytes | None:
        if self.away:
            raise StoreAway("nobody answers")
        return await self.store.read()

    async def pin(self, value: bytes) -> None:
        if self.away:
            raise StoreAway("nobody answers")
        await self.store.pin(value)


class Process:
    """One gateway process with four engines that serve both."""

    def __init__(self, store: SharedStore | None, clock: Clock) -> None:
        self.instances = fleet(*(replace(P0, id=name, role=Role.BOTH) for name in NAMES))
        sides = Sides(self.instances, Targets, clock)
        roles = Roles(stay_seconds=0, smooth_seconds=1)
        self.clock = clock
        self.adapting = Adapting(sides, roles, PERIOD_SECONDS, store, clock, lambda: 77.0)

    @property
    def sides(self) -> dict[str, str]:
        decided = self.adapting.sides.decided()
        return {name: decided[name].value for name in NAMES if name in decided}

    def full(self, side: Role) -> None:
        """The KV of those that serve it."""
        for endpoint in self.instances:
            serves = self.adapting.sides.decided()[endpoint.instance.id] is side
            endpoint.status = Status(kv_free=0.0 if serves else 1.0)

    async def round(self) -> None:
        self.clock.now += PERIOD_SECONDS
        self.adapting.look()
        await self.adapting.round()


HALVES = {"e0": "prefill", "e1": "decode", "e2": "prefill", "e3": "decode"}


async def test_a_process_alone_decides_for_itself() -> None:
    process = Process(None, Clock())
    await process.round()
    assert process.sides == HALVES

    process.full(Role.DECODE)
    for _ in range(PERSISTS):
        await process.round()

    assert process.sides == {**HALVES, "e0": "decode"}
    change = process.adapting.changes[-1]
    assert (change.at, change.instance, change.to, change.first) == (77.0, "e0", "decode", False)
    assert change.reason.startswith("decode is at 1.18 of its target, prefill at 0.00")
    assert process.adapting.counted == {("e0", "decode"): 1}


async def test_each_decision_is_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        await Process(None, Clock()).round()

    assert "e3 serves decode from now on: the side with fewer engines" in caplog.text


async def test_others_do_as_the_one_says(new_store: NewStore) -> None:
    clock = Clock()
    one, other = Process(new_store(), clock), Process(new_store(), clock)
    await one.round()
    one.full(Role.DECODE)
    for _ in range(PERSISTS):
        await one.round()
        # It would decide otherwise.
        await other.round()
        other.full(Role.PREFILL)

    assert other.sides == one.sides == {**HALVES, "e0": "decode"}
    assert list(other.adapting.changes) == list(one.adapting.changes)
    assert other.adapting.counted == {}
    assert other.adapting.leader.known == one.adapting.leader.own


async def test_who_is_silent_is_replaced(new_store: NewStore) -> None:
    clock = Clock()
    one, other = Process(new_store(), clock), Process(new_store(), clock)
    await one.round()
    await other.round()
    other.full(Role.DECODE)

    for _ in range(SILENT_PERIODS):
        await other.round()
        assert other.sides == HALVES
    for _ in range(PERSISTS):
        await other.round()

    assert other.sides == {**HALVES, "e0": "decode"}
    await one.round()
    assert one.sides == other.sides, "the first one is back, and follows"


async def test_two_that_begin_at_once_agree_after_a_round(new_store: NewStore) -> None:
    """Both have found nothing in the store, and both have written."""
    clock = Clock()
    one, other = Process(new_store(), clock), Process(new_store(), clock)
    await one.round()
    await new_store().pin(to_bytes(RoleRecord("somebody", 1, {"e0": "decode", "e1": "prefill"})))
    await other.round()

    await one.round()

    assert one.sides["e0"] == other.sides["e0"] == "decode"
    assert one.adapting.leader.known == other.adapting.leader.known == "somebody"


async def test_nobody_changes_anything_while_the_store_is_away(
    new_store: NewStore, caplog: pytest.LogCaptureFixture
) -> None:
    store = Away(new_store())
    process = Process(store, Clock())
    for _ in range(2):
        await process.round()
    assert process.sides == {}
    assert caplog.text.count("nobody answers") == 1

    store.away = False
    await process.round()

    assert process.sides == HALVES


async def test_nonsense_in_the_store_is_told_and_written_over(
    new_store: NewStore, caplog: pytest.LogCaptureFixture
) -> None:
    await new_store().pin(b'{"by": 7}')
    process = Process(new_store(), Clock())

    await process.round()

    assert process.sides == HALVES
    assert "cannot be read" in caplog.text
    assert b"decode" in (await new_store().read() or b"")


async def test_engines_that_only_others_know_are_no_concern_of_ours(new_store: NewStore) -> None:
    await new_store().pin(to_bytes(RoleRecord("somebody", 1, {"elsewhere": "decode"})))
    process = Process(new_store(), Clock())

    await process.round()

    assert process.sides == {}
